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
const KINDS = { f8: Float64Array, f4: Float32Array, i2: Int16Array, u2: Uint16Array, u4: Uint32Array };

// One row along the last axis of a packed array; missing values are null, which Plotly draws as gaps.
function row(spec, ...place) {
  const length = spec.shape.at(-1);
  let at = 0;
  place.forEach((index, axis) => (at = at * spec.shape[axis] + index));
  const numbers = new KINDS[spec.kind](buffer, spec.at, spec.shape.reduce((a, b) => a * b, 1));
  const cut = Array.from(numbers.subarray(at * length, (at + 1) * length));
  if (spec.kind === "u2") return cut.map((v) => (v === 65535 ? null : spec.unit ? spec.low + v * spec.unit : v && spec.low * spec.ratio ** (v - 1)));
  if (spec.kind !== "i2") return cut.map((v) => (Number.isNaN(v) ? null : v));
  const digits = Math.max(0, spec.digits);
  return cut.map((v) => (v === -32768 ? null : Number(((v + spec.origin) / 10 ** spec.digits).toFixed(digits))));
}

// Anything that was packed as JSON.
const unpacked = (spec) => JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, spec.at, spec.shape[0])));

// Of many sensors, names, positions and edges are packed too.
function unpackSensors() {
  for (const data of content.data.filter((d) => d.many)) {
    data.sensors = unpacked(data.sensors);
    [data.x, data.y] = [row(data.x), row(data.y)];
    data.edges = data.edges.map((ends) => row(ends));
    data.many.place = new Map(data.many.full.map((sensor, place) => [sensor, place]));
  }
  for (const run of content.runs.filter((r) => dataOf(r).many && r.seen)) run.seen = unpacked(run.seen);
}

// The place of a sensor among those that are shown in full; undefined if it is not.
const placeOf = (data, sensor) => (data.many ? data.many.place.get(sensor) : sensor);

// The sensor to begin with: of many, one that is shown in full.
const firstSensor = (data) => (data.many ? Object.values(data.many.kinds).flat()[0] ?? 0 : 0);

const theRun = () => content.runs[state.run];
const dataOf = (run) => content.data[run.data];
const theData = () => dataOf(theRun());
const horizonOf = (run) => Number(run.settings["data.horizon"]);
// Runs on the same data: their errors of one sensor can be compared.
const siblings = () => content.runs.filter((run) => run.data === theRun().data);

// Each sensor's error; over all steps it comes from the run's events. null if unknown.
function bySensor(run, figure, step) {
  const data = dataOf(run), f = content.figures.indexOf(figure), none = () => data.sensors.map(() => null);
  if (!run.test) return none();
  if (step === 0) return data.many ? row(run.test.errors, f) : run.test.per_node.map((errors) => errors[figure]);
  if (step > horizonOf(run)) return none();
  if (data.many) return run.steps_of_all ? row(run.steps_of_all[f], step - 1) : none();
  return run.by_step ? data.sensors.map((_, i) => row(run.by_step, f, i)[step - 1]) : none();
}

// One sensor's error at each step ahead; null if unknown.
function ofSensor(run, figure, sensor) {
  const f = content.figures.indexOf(figure);
  if (run.steps_of_all) return Array.from({ length: horizonOf(run) }, (_, k) => row(run.steps_of_all[f], k)[sensor]);
  return run.by_step ? row(run.by_step, f, sensor) : null;
}

// The coverage and the mean width of one sensor's intervals of a level; null if unknown.
function intervalsOf(found, sensor) {
  if (found.per_node) return found.per_node[sensor];
  return found.packed ? { coverage: row(found.packed, 0)[sensor], width: row(found.packed, 1)[sensor] } : null;
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
