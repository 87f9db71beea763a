// The numbers of the runs, how they are formatted, and what the user has selected.

const content = JSON.parse(document.getElementById("content").textContent);
const FIGURES = {
  masked_mae: "masked MAE",
  masked_rmse: "masked RMSE",
  rmse: "unmasked RMSE",
  mae: "unmasked MAE",
};
const state = { run: 0, figure: "masked_mae", step: 0, sensor: 0, days: innerWidth < 620 ? 1 : 2, count: "per_node", theme: "" };
const parts = []; // [keys of the state that it depends on, function that draws it]

function part(keys, draw) {
  parts.push([keys, draw]);
}

// Redraw only the parts that depend on a change.
function change(changes) {
  const changed = Object.keys(changes).filter((key) => state[key] !== changes[key]);
  Object.assign(state, changes);
  for (const [keys, draw] of parts) if (keys.some((key) => changed.includes(key))) draw();
}

async function inflated(id) {
  const text = atob(document.getElementById(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

let buffer = null; // all packed arrays
const KINDS = { f8: Float64Array, f4: Float32Array, i2: Int16Array };

// One row along the last axis of a packed array; missing values are null, which Plotly draws as gaps.
function row(spec, ...place) {
  const length = spec.shape.at(-1);
  let at = 0;
  place.forEach((index, axis) => (at = at * spec.shape[axis] + index));
  const numbers = new KINDS[spec.kind](buffer, spec.at, spec.shape.reduce((a, b) => a * b, 1));
  const cut = Array.from(numbers.subarray(at * length, (at + 1) * length));
  if (spec.kind !== "i2") return cut.map((v) => (Number.isNaN(v) ? null : v));
  const digits = Math.max(0, spec.digits);
  return cut.map((v) => (v === -32768 ? null : Number(((v + spec.origin) / 10 ** spec.digits).toFixed(digits))));
}

const theRun = () => content.runs[state.run];
const dataOf = (run) => content.data[run.data];
const theData = () => dataOf(theRun());
const horizonOf = (run) => Number(run.settings["data.horizon"]);
// Runs on the same data: their errors of one sensor can be compared.
const siblings = () => content.runs.filter((run) => run.data === theRun().data);

// Each sensor's error; over all steps it comes from the run's events. null if unknown.
function bySensor(run, figure, step) {
  if (!run.test) return dataOf(run).sensors.map(() => null);
  if (step === 0) return run.test.per_node.map((errors) => errors[figure]);
  if (!run.by_step || step > horizonOf(run)) return dataOf(run).sensors.map(() => null);
  const f = content.figures.indexOf(figure);
  return dataOf(run).sensors.map((_, i) => row(run.by_step, f, i)[step - 1]);
}

function ofSensor(run, figure, sensor) {
  return run.by_step ? row(run.by_step, content.figures.indexOf(figure), sensor) : null;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(3);
  return size > 0 && size < 0.01 ? value.toPrecision(3) : value.toFixed(3);
}

// Format numbers in charts as in tables.
const formatted = (values) => ({ text: values.map(number), hovertemplate: "%{text}" });

const count = (amount, one, many = `${one}s`) => `${amount} ${amount === 1 ? one : many}`;

function share(value) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`;
}

function bytes(count) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (count >= factor) return `${(count / factor).toFixed(2)} ${unit}`;
  return `${count} B`;
}

function span(minutes) {
  if (minutes > 60 && minutes % 60 === 0) return `${minutes / 60} h`;
  return `${Number(minutes.toFixed(2))} min`;
}

const minutesOf = (run, step) => (step * dataOf(run).step_seconds) / 60;
const aheadName = (run, step) => (step === 0 ? "all steps" : `${span(minutesOf(run, step))} ahead`);
const namedSteps = (horizon) =>
  [...new Set([Math.floor(horizon / 4), Math.floor(horizon / 2), horizon])].filter((step) => step > 0);

// Make an element; children are inserted as text, because names from files must not become markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const at = (id) => document.getElementById(id);
