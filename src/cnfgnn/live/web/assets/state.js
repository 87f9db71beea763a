// What is known, what is chosen, and who draws which part of it.

import { seconds } from "./format.js";

export const state = {
  // known
  sensors: [], // of /sensors: id and place
  edges: [],
  step: 300, // seconds between readings
  unit: "",
  range: null, // lowest and highest usual reading
  forecast: null, // the last one
  history: null, // of the chosen sensor: { id, times, readings }
  health: null,
  watch: null, // null: the service does not watch errors
  model: null, // null: the service does not tell its model
  connection: { state: "connecting" },
  stale: false,
  tick: 0, // passes with time, for whatever says how long ago something was
  // chosen
  sensor: 0,
  ahead: 3,
  colour: "forecast",
  window: 36, // steps of the past
  theme: "light",
};

const parts = []; // [keys of the state that it depends on, function that draws it]
const changed = new Set();
let waiting = false;

export function part(keys, draw) {
  parts.push([keys, draw]);
}

// Change something; what depends on it is drawn in the next frame, once however much has changed.
export function change(changes) {
  for (const [key, value] of Object.entries(changes)) {
    if (state[key] === value) continue;
    state[key] = value;
    changed.add(key);
  }
  if (changed.size && !waiting) {
    waiting = true;
    requestAnimationFrame(drawChanged);
  }
}

function drawChanged() {
  waiting = false;
  const keys = new Set(changed);
  changed.clear();
  for (const [needed, draw] of parts) if (needed.some((key) => keys.has(key))) draw();
  if (state.forecast) document.documentElement.dataset.drawn = state.forecast.step; // for tests
}

// ---- what follows from it ---------------------------------------------------------------------------

export const chosenId = () => state.sensors[state.sensor]?.id;
export const told = (id) => state.forecast?.sensors[id] ?? null;
export const horizon = () => state.forecast?.times.length ?? 0;
export const newest = () => (state.forecast ? seconds(state.forecast.step) : null);
export const watched = (id) => state.watch?.sensors?.[id] ?? null;
// Levels of intervals, the widest first.
export const levels = (forecast) => Object.keys(forecast?.intervals ?? {}).sort((a, b) => b - a);

// Sensors whose last reading is older than the forecast's step, the longest silence first.
export function late() {
  if (!state.forecast) return [];
  const step = newest();
  return state.sensors
    .map(({ id }, index) => ({ id, index, last: seconds(told(id)?.lastReading) }))
    .filter(({ id, last }) => told(id) && (last === null || last < step))
    .sort((a, b) => (a.last ?? -1) - (b.last ?? -1));
}

// ---- the time of the service --------------------------------------------------------------------------

const clock = { now: null, at: 0, speed: 1 };

export function setClock(text, speed = clock.speed) {
  clock.now = seconds(text) ?? clock.now;
  clock.at = performance.now();
  clock.speed = speed;
}

// A recording that is played fast may pause at any moment, so that only real time is assumed to go on.
export const isRealTime = () => clock.now !== null && clock.speed === 1;

export function serviceNow() {
  if (clock.now === null) return null;
  return clock.now + (isRealTime() ? (performance.now() - clock.at) / 1000 : 0);
}

// ---- forecasts that were made while the page was open ----------------------------------------------

const MOST_NUMBERS = 8e6;
let remembered = []; // [{ step, values: n rows of `horizon` numbers }]

export function remember(forecast) {
  const step = seconds(forecast.step), length = forecast.times.length;
  if (remembered.length && remembered.at(-1).step >= step) remembered = remembered.filter((made) => made.step < step);
  const values = new Float32Array(state.sensors.length * length).fill(NaN);
  state.sensors.forEach(({ id }, i) => {
    forecast.sensors[id]?.values.forEach((value, k) => { if (value !== null) values[i * length + k] = value; });
  });
  remembered.push({ step, length, values });
  const most = Math.min(288, Math.max(1, Math.floor(MOST_NUMBERS / values.length)));
  if (remembered.length > most) remembered = remembered.slice(-most);
}

export function forget() {
  remembered = [];
}

// What was forecast for one sensor, so many steps before: [time, value].
export function earlier(sensor, ahead) {
  return remembered
    .filter(({ length }) => ahead <= length)
    .map(({ step, length, values }) => [step + ahead * state.step, values[sensor * length + ahead - 1]])
    .filter(([, value]) => !Number.isNaN(value));
}
