// The map: every sensor at its place, coloured by what is forecast for it or by its error.

import { SCALES } from "./colours.js";
import { at, colour, count, exactSpan, isNumber, moment, number, seconds } from "./format.js";
import { placesOf } from "./places.js";
import { rangeOf, SensorMap, shade, showKey } from "./sensor_map.js";
import { change, horizon, newest, part, state, told, watched } from "./state.js";

const FADE_MS = 350, MOST_FADING = 600; // sensors that fade smoothly from one colour to the next
const still = matchMedia("(prefers-reduced-motion: reduce)");
const NONE = [NaN, NaN, NaN];

let places = { points: [], unit: null, kind: "grid" };
let from = new Float32Array(0), to = new Float32Array(0), now = to, faded = 1, fadeBegun = 0; // red, green, blue of each sensor
let domain = [0, 1], hollow = [], none = ""; // hollow: which sensors are late; none: the colour of those without a value

const map = new SensorMap({
  colour,
  // A sensor that is late is hollow, so that nobody takes its colour for a measurement's consequence.
  look: (i) => ({ fill: isNumber(now[3 * i]) ? `rgb(${now.slice(3 * i, 3 * i + 3).join(" ")})` : none, hollow: hollow[i] }),
  dim: () => (state.stale || state.connection.state === "lost" ? 0.4 : 1),
  rings: () => alarmed().map((i) => [i, i === state.sensor ? 7.5 : 3.5, colour("bad"), 2]),
  words: (i) => [state.sensors[i].id, `${state.colour === "error" ? "RMSE" : `${exactSpan(state.ahead * state.step)} ahead`}: ${number(valueOf(i))}`],
  chosen: () => state.sensor,
  choose: (sensor) => change({ sensor }),
  moved: scaleBar,
});

// A round number of metres that is up to a quarter of the width long.
function scaleBar(scale) {
  const bar = at("scalebar");
  bar.hidden = places.unit === null || places.points.length < 2;
  if (bar.hidden) return;
  const most = (at("map-frame").clientWidth / 4 / scale) * places.unit, power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((digit) => digit * power <= most) * power;
  bar.style.width = `${(length / places.unit) * scale}px`;
  bar.textContent = length >= 1000 ? `${length / 1000} km` : `${Number(length.toPrecision(1))} m`;
}

// ---- colours ----------------------------------------------------------------------------------------

function valueOf(i) {
  const { id } = state.sensors[i];
  return (state.colour === "error" ? watched(id)?.rmse : told(id)?.values[state.ahead - 1]) ?? null;
}

function recolour() {
  const values = state.sensors.map((_, i) => valueOf(i)), step = newest();
  hollow = state.sensors.map(({ id }) => step !== null && (seconds(told(id)?.lastReading) ?? -1) < step);
  domain = state.colour === "forecast" && state.range ? state.range : rangeOf(values);
  from = now;
  to = new Float32Array(values.flatMap((value) => (isNumber(value) ? shade(value, domain, SCALES[state.theme]) : NONE)));
  const fades = from.length === to.length && !still.matches && !document.hidden && values.length > 0 && values.length <= MOST_FADING;
  faded = fades ? 0 : 1;
  fadeBegun = performance.now();
  if (fades) requestAnimationFrame(fade);
  else draw();
  key(values);
}

function fade(time) {
  if (faded === 1) return;
  faded = Math.min(1, Math.max(0, (time - fadeBegun) / FADE_MS));
  draw();
  if (faded < 1) requestAnimationFrame(fade);
}

function draw() {
  none = colour("edge");
  now = faded === 1 ? to : to.map((v, k) => (Number.isNaN(from[k]) ? v : from[k] + (v - from[k]) * faded));
  map.draw();
}

function key(values) {
  at("key").hidden = !values.some(isNumber);
  const name = state.colour === "error" ? "RMSE of the last forecasts" : `Forecast for ${moment(seconds(state.forecast?.times[state.ahead - 1]), newest())}`;
  showKey(name, number(domain[0], domain[1]), `${number(domain[1], domain[0])}${state.unit ? ` ${state.unit}` : ""}`, SCALES[state.theme]);
}

function alarmed() {
  const names = new Set((state.watch?.alarms ?? []).map((alarm) => alarm.sensor));
  return state.sensors.flatMap(({ id }, i) => (names.has(id) ? [i] : []));
}

export const spotOf = (i) => [map.xs[i], map.ys[i]]; // for tests

// ---- parts ------------------------------------------------------------------------------------------

for (const input of document.querySelectorAll("input[name=colour]"))
  input.addEventListener("change", () => change({ colour: input.value }));
at("ahead").addEventListener("input", (event) => change({ ahead: Number(event.target.value) }));

const edges = () => (places.kind === "grid" ? [] : state.edges);

part(["sensors"], () => {
  places = placesOf(state.sensors);
  now = new Float32Array(0);
  map.show(places.points, edges());
  recolour();
});
part(["forecast", "ahead", "colour", "watch", "theme", "range", "stale"], recolour);
part(["sensor"], () => {
  map.bringIntoSight(state.sensor);
  map.draw();
});
part(["connection"], draw);
part(["edges"], () => {
  map.edges = edges();
  map.draw();
});

part(["forecast", "ahead", "colour"], () => {
  const slider = at("ahead"), name = `${exactSpan(state.ahead * state.step)}`;
  slider.max = horizon();
  slider.value = state.ahead;
  slider.setAttribute("aria-valuetext", name);
  at("ahead-name").textContent = name;
  at("ahead-field").hidden = horizon() < 2 || state.colour === "error";
});

const KINDS = {
  map: "North is up; lines join neighbours.",
  graph: "Positions are unknown: neighbours are drawn close together.",
  grid: "Positions are unknown: sensors are in the order of the data.",
};

part(["sensors", "watch", "forecast", "edges"], () => {
  const error = document.querySelector("input[name=colour][value=error]");
  const known = Object.values(state.watch?.sensors ?? {}).some((found) => isNumber(found.rmse));
  error.disabled = !known;
  const why = state.watch ? " Errors follow once there are readings to compare with." : " This service does not tell errors.";
  const alone = places.kind === "map" && !state.edges.length ? "North is up." : KINDS[places.kind];
  const lost = places.lost ? ` ${count(places.lost, "sensor")} without a position: below the others.` : "";
  const marks = state.watch ? " Hollow sensors are late; a red ring is an alarm." : " Hollow sensors are late.";
  at("map-hint").textContent = `${alone}${marks}${lost}${known ? "" : why}`;
});
