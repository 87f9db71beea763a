// How numbers, times and names are written, and how elements are made.

export const at = (id) => document.getElementById(id);

// Make an element; children are inserted as text, because names from files must not become markup.
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// A colour of the style sheet in the current theme.
const probe = document.createElement("i");
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// With as many digits as can be compared at a glance; beside others that are like the second number, with as many as
// they have.
export function number(value, like = value) {
  if (!isNumber(value)) return "–";
  const size = Math.max(Math.abs(value), isNumber(like) ? Math.abs(like) : 0);
  if (size >= 1e6 || (size > 0 && size < 0.001)) return value.toExponential(2);
  return value.toFixed(size >= 1000 ? 0 : size >= 1 || size === 0 ? 1 : 3);
}

export const between = (low, high) => `${number(low, high)} – ${number(high, low)}`;
export const share = (value) => (isNumber(value) ? `${(100 * value).toFixed(0)}\u00a0%` : "–");
export function bytes(amount) {
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(amount, 1)) / 10), 0), 4);
  return `${power ? (amount / 1024 ** power).toFixed(1) : amount}\u00a0${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
export const count = (amount, one, many = `${one}s`) => `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;

// ---- times: as the service writes them, never moved into the time zone of the browser ----------------

// Seconds since 1970 of a time in ISO 8601; one without an offset counts as it is written.
export function seconds(text) {
  if (typeof text !== "string") return null;
  const found = Date.parse(/(Z|[+-]\d\d:?\d\d)$/.test(text) ? text : `${text}Z`);
  return Number.isNaN(found) ? null : found / 1000;
}

const written = (second) => new Date(second * 1000).toISOString();
export const clockTime = (second) => (second === null ? "–" : written(second).slice(11, 16));
export const day = (second) => written(second).slice(0, 10);

// The time alone if it is on the same day as `near`, otherwise with the day.
export function moment(second, near) {
  if (second === null || second === undefined) return "–";
  return near !== null && near !== undefined && day(near) === day(second) ? clockTime(second) : `${day(second)} ${clockTime(second)}`;
}

// A sentence of the service with its times as the page writes them.
const TIME = /\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?/g;
export const withTimes = (text, near) => text.replace(TIME, (time) => moment(seconds(time), near));

// A length of time in its largest unit.
export function span(length) {
  for (const [unit, size] of [["days", 172_800], ["h", 7200], ["min", 120]])
    if (length >= size) return `${Math.floor(length / { days: 86_400, h: 3600, min: 60 }[unit])} ${unit}`;
  return `${Math.max(0, Math.round(length))} s`;
}

// A length of time that is a multiple of the step: 15 min, 1 h, 2 days.
export function exactSpan(length) {
  for (const [unit, size] of [["day", 86_400], ["h", 3600], ["min", 60]])
    if (length >= size && length % size === 0) return unit === "day" ? count(length / size, "day") : `${length / size} ${unit}`;
  return length >= 60 ? `${Number((length / 60).toFixed(1))} min` : `${length} s`;
}
