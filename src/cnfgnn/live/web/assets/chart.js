// The chosen sensor: what was measured, what is forecast, and the intervals around it.

import { at, between, clockTime, day, element, exactSpan, isNumber, moment, number, seconds, shape } from "./format.js";
import { change, chosenId, earlier, horizon, levels, newest, part, state, told } from "./state.js";

const svg = at("chart"), frame = at("chart-frame"), tip = at("chart-tip");
const MARGIN = { left: 46, right: 14, top: 12, bottom: 28 };
const TICKS = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];
const WINDOWS = [36, 144, 288]; // steps of the past
const SLIDE_MS = 300;
const still = matchMedia("(prefers-reduced-motion: reduce)");

let size = { width: 0, height: 0 };
let scaleX = (time) => time, scaleY = (value) => value;
let drawn = null; // { id, step, low, high }: what the chart shows
let series = new Map(); // time -> { measured, forecast, before, intervals }
let pointed = null; // the time that is pointed at

// ---- numbers ----------------------------------------------------------------------------------------

function collect() {
  const id = chosenId(), forecast = told(id), step = newest();
  const first = step - state.window * state.step, last = step + horizon() * state.step;
  const history = state.history?.id === id ? state.history : { times: [], readings: [] };
  const measured = history.times.map((time, k) => [time, history.readings[k]]).filter(([time]) => time >= first && time <= last);
  const times = state.forecast.times.map(seconds);
  const line = times.map((time, k) => [time, forecast?.values[k] ?? null]);
  const bands = levels(forecast).map((level) => ({
    level,
    points: times.map((time, k) => [time, forecast.intervals[level].low[k], forecast.intervals[level].high[k]]).filter((p) => isNumber(p[1]) && isNumber(p[2])),
  }));
  const before = earlier(state.sensor, state.ahead).filter(([time]) => time >= first && time <= step);
  return { id, step, first, last, measured, line, bands, before };
}

function index({ measured, line, bands, before }) {
  series = new Map();
  const put = (time, more) => series.set(time, { ...series.get(time), ...more });
  for (const [time, value] of measured) put(time, { measured: value });
  for (const [time, value] of before) put(time, { before: value });
  for (const [time, value] of line) put(time, { forecast: value });
  for (const { level, points } of bands)
    for (const [time, low, high] of points) put(time, { intervals: { ...series.get(time)?.intervals, [level]: [low, high] } });
}

// The axis keeps its range while everything fits and it is not mostly empty.
function rangeOf({ id, measured, line, bands, before }) {
  const values = [measured, line, before].flatMap((points) => points.map(([, value]) => value));
  values.push(...bands.flatMap(({ points }) => points.flatMap(([, low, high]) => [low, high])));
  const known = values.filter(isNumber);
  if (!known.length) return [0, 1];
  const lowest = Math.min(...known), highest = Math.max(...known), room = (highest - lowest || Math.abs(highest) || 1) * 0.08;
  if (drawn?.id === id && drawn.window === state.window && lowest >= drawn.low && highest <= drawn.high && highest - lowest > 0.55 * (drawn.high - drawn.low))
    return [drawn.low, drawn.high];
  return [lowest >= 0 ? Math.max(0, lowest - room) : lowest - room, highest + room];
}

// Round numbers between the ends of an axis, at most so many.
function roundNumbers(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const distance = [1, 2, 5, 10].find((digit) => digit * power >= rough) * power;
  const first = Math.ceil(low / distance);
  const digits = Math.max(0, -Math.floor(Math.log10(distance)));
  return Array.from({ length: Math.floor(high / distance) - first + 1 }, (_, k) => [(first + k) * distance, digits]);
}

// ---- drawing ----------------------------------------------------------------------------------------

function draw() {
  size = { width: frame.clientWidth, height: frame.clientHeight };
  if (!state.forecast || size.width < 120 || !size.height) return;
  const found = collect(), [low, high] = rangeOf(found);
  const before = drawn;
  drawn = { id: found.id, step: found.step, window: state.window, low, high };
  const { width, height } = size, right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  scaleX = (time) => MARGIN.left + ((time - found.first) / (found.last - found.first)) * (right - MARGIN.left);
  scaleY = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - MARGIN.top);
  index(found);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const curves = shape("g", { "clip-path": "url(#plot-area)" }, shape("g", { class: "moving" }, ...lines(found)));
  const title = svg.querySelector("title");
  title.textContent = summary(found);
  svg.replaceChildren(title, clip(right, bottom), ...axes(found, right, bottom), curves, shape("g", { id: "pointer" }));
  frame.classList.toggle("old", state.stale || state.connection.state === "lost");
  slide(before, found);
  point(pointed);
}

function clip(right, bottom) {
  const area = { x: MARGIN.left, y: 0, width: right - MARGIN.left + 4, height: bottom + 4 };
  return shape("defs", {}, shape("clipPath", { id: "plot-area" }, shape("rect", area)));
}

function axes({ first, last, step }, right, bottom) {
  const made = [];
  const ahead = scaleX(step);
  made.push(shape("rect", { class: "ahead", x: ahead, y: MARGIN.top, width: Math.max(0, right - ahead), height: bottom - MARGIN.top }));
  for (const [value, digits] of roundNumbers(drawn.low, drawn.high, size.height > 240 ? 5 : 4)) {
    const y = scaleY(value);
    made.push(shape("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y, y2: y }));
    made.push(shape("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, Math.abs(value) >= 1e6 ? value.toExponential(1) : value.toFixed(digits)));
  }
  const room = (last - first) / Math.max(2, Math.floor((right - MARGIN.left) / 74));
  const distance = TICKS.find((tick) => tick >= room) ?? TICKS.at(-1);
  for (let time = Math.ceil(first / distance) * distance; time <= last; time += distance) {
    const x = scaleX(time), name = time % 86_400 === 0 ? day(time).slice(5) : clockTime(time);
    made.push(shape("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 4 }));
    made.push(shape("text", { x: Math.min(x, right - 4), y: bottom + 18, "text-anchor": "middle" }, name));
  }
  made.push(shape("line", { class: "now", x1: ahead, x2: ahead, y1: MARGIN.top - 6, y2: bottom }));
  return made;
}

function lines({ measured, line, bands, before, step }) {
  const quality = told(chosenId())?.quality;
  const last = measured.findLast(([, value]) => isNumber(value));
  // The forecast begins at the reading of its step; if there is none, there is a gap.
  const joined = measured.find(([time, value]) => time === step && isNumber(value)) ?? null;
  const made = bands.map(({ level, points }, k) => shape("path", { class: `band band-${k}`, "data-level": level, d: area(points, joined) }));
  made.push(shape("path", { class: "before", d: path(before, state.step) }));
  made.push(shape("path", { class: "measured", d: path(measured, state.step) }));
  for (const [time, value] of alone(measured)) made.push(shape("circle", { class: "measured-dot", cx: scaleX(time), cy: scaleY(value), r: 1.8 }));
  made.push(shape("path", { class: `forecast${quality === "fallback" ? " simple" : ""}`, d: path(joined ? [joined, ...line] : line, state.step) }));
  for (const [time, value] of line)
    if (isNumber(value)) made.push(shape("circle", { class: "forecast-dot", cx: scaleX(time), cy: scaleY(value), r: size.width > 500 && state.window <= 72 ? 2.6 : 1.6 }));
  if (last) made.push(shape("circle", { class: "last", cx: scaleX(last[0]), cy: scaleY(last[1]), r: 4 }));
  return made;
}

const spot = (time, value) => `${scaleX(time).toFixed(1)},${scaleY(value).toFixed(1)}`;

// A line with gaps where there is no number, or no time.
function path(points, step) {
  let text = "", end = null;
  for (const [time, value] of points) {
    if (!isNumber(value)) { end = null; continue; }
    text += `${end !== null && time - end <= step ? "L" : "M"}${spot(time, value)}`;
    end = time;
  }
  return text;
}

function area(points, joined) {
  if (!points.length) return "";
  const upper = points.map(([time, , high]) => spot(time, high)), lower = points.map(([time, low]) => spot(time, low)).reverse();
  return `M${[...(joined ? [spot(...joined)] : []), ...upper, ...lower].join("L")}Z`;
}

// Readings between two gaps, of which no line can be drawn.
function alone(points) {
  return points.filter(([, value], k) => isNumber(value) && !isNumber(points[k - 1]?.[1]) && !isNumber(points[k + 1]?.[1]));
}

// The curves move to the left as time passes, instead of jumping.
function slide(before, { id, step }) {
  if (!before || before.id !== id || before.window !== state.window || still.matches || document.hidden) return;
  const steps = (step - before.step) / state.step;
  if (steps <= 0 || steps > 3) return;
  const distance = scaleX(step) - scaleX(before.step);
  svg.querySelector(".moving").animate([{ transform: `translateX(${distance}px)` }, { transform: "none" }], { duration: SLIDE_MS, easing: "ease-out" });
}

function summary({ id, measured, line, bands }) {
  const last = measured.filter(([, value]) => isNumber(value)).at(-1), end = line.at(-1);
  const widest = bands[0]?.points.at(-1);
  const range = widest ? `, with ${bands[0].level} % probability between ${number(widest[1], widest[2])} and ${number(widest[2])}` : "";
  return `Sensor ${id}: last reading ${last ? `${number(last[1])} at ${clockTime(last[0])}` : "unknown"}; forecast for ${clockTime(end[0])}: ${number(end[1])}${range}.`;
}

// ---- pointing ---------------------------------------------------------------------------------------

function point(time) {
  pointed = time;
  const group = svg.querySelector("#pointer"), found = time === null ? null : series.get(time);
  group?.replaceChildren();
  tip.hidden = !found;
  if (!found || !group) return;
  const x = scaleX(time);
  group.append(shape("line", { class: "pointer", x1: x, x2: x, y1: MARGIN.top, y2: size.height - MARGIN.bottom }));
  const rows = [["measured", found.measured], ["forecast", found.forecast], [`forecast ${exactSpan(state.ahead * state.step)} before`, found.before]]
    .filter(([, value]) => isNumber(value))
    .map(([name, value]) => element("div", {}, `${name} `, element("b", {}, number(value))));
  for (const [level, [low, high]] of Object.entries(found.intervals ?? {}))
    rows.push(element("div", {}, `${level} %: `, element("b", {}, between(low, high))));
  if (!rows.length) rows.push(element("div", {}, "no reading"));
  tip.replaceChildren(element("div", { class: "when" }, moment(time, newest())), ...rows);
  tip.style.left = `${x + 12 + tip.offsetWidth > size.width ? x - tip.offsetWidth - 12 : x + 12}px`;
  tip.style.top = `${MARGIN.top}px`;
}

function listen() {
  frame.addEventListener("pointermove", (event) => {
    if (!drawn) return;
    const x = event.clientX - svg.getBoundingClientRect().left;
    let best = null;
    for (const time of series.keys()) if (best === null || Math.abs(scaleX(time) - x) < Math.abs(scaleX(best) - x)) best = time;
    point(best);
  });
  frame.addEventListener("pointerleave", () => point(null));
  svg.addEventListener("blur", () => point(null));
  svg.addEventListener("keydown", (event) => {
    const times = [...series.keys()].sort((a, b) => a - b), moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key === "Escape") return point(null);
    if (!moves[event.key] || !times.length) return undefined;
    event.preventDefault();
    const place = pointed === null ? times.indexOf(newest()) : times.indexOf(pointed) + moves[event.key];
    return point(times[Math.min(times.length - 1, Math.max(0, place))]);
  });
  at("window").addEventListener("change", (event) => change({ window: Number(event.target.value) }));
  new ResizeObserver(draw).observe(frame);
}

// ---- parts ------------------------------------------------------------------------------------------

listen();
part(["forecast", "history", "sensor", "sensors", "window", "ahead", "stale", "connection"], draw);

part(["forecast", "sensor", "ahead", "sensors"], () => {
  const found = levels(told(chosenId()));
  const entries = [["measured", "measured"], ["forecast", "forecast"], ...found.map((level, k) => [`band band-${k}`, `${level} % interval`])];
  if (earlier(state.sensor, state.ahead).some(([time]) => time <= newest())) entries.push(["before", `forecast ${exactSpan(state.ahead * state.step)} before`]);
  at("chart-legend").replaceChildren(...entries.map(([kind, name]) => element("li", {}, element("span", { class: `mark ${kind}`, "aria-hidden": "true" }), name)));
});

part(["step", "sensors"], () => {
  const choices = WINDOWS.map((steps) =>
    element("label", {}, element("input", { type: "radio", name: "window", value: steps, checked: steps === state.window }), element("span", {}, exactSpan(steps * state.step))));
  at("window").replaceChildren(...choices);
});
