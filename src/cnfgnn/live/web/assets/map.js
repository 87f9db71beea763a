// The map: every sensor at its place, coloured by what is forecast for it or by its error.

import { SCALES } from "./colours.js";
import { at, colour, count, exactSpan, isNumber, moment, number, seconds } from "./format.js";
import { box, placesOf } from "./places.js";
import { change, horizon, newest, part, state, told, watched } from "./state.js";

const canvas = at("map"), frame = at("map-frame"), tip = at("map-tip"), pen = canvas.getContext("2d");
const PADDING = 26, BELOW = 48, MOST_ZOOM = 40, FADE_MS = 350, MOST_FADING = 600; // sensors that fade smoothly from one colour to the next
const still = matchMedia("(prefers-reduced-motion: reduce)");

let places = { points: [], unit: null, kind: "grid" };
let view = { zoom: 1, x: 0, y: 0 }; // x, y: how far the middle is moved, in pixels at zoom 1
let xs = new Float32Array(0), ys = new Float32Array(0), scale = 1;
let from = new Float32Array(0), to = new Float32Array(0), faded = 1, fadeBegun = 0; // red, green, blue of each sensor
let domain = [0, 1], hovered = -1, hollow = []; // hollow: which sensors are late

// ---- where ------------------------------------------------------------------------------------------

function fit() {
  const { clientWidth: width, clientHeight: height } = frame;
  if (!width || !height || !places.points.length) return;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const [left, top, right, bottom] = box(places.points);
  // Below are the scale and the buttons.
  const room = height - PADDING - BELOW;
  const fits = Math.min((width - 2 * PADDING) / (right - left || 1e-9), room / (bottom - top || 1e-9));
  scale = (fits < 1e8 ? fits : 1) * view.zoom;
  places.points.forEach(([x, y], i) => {
    xs[i] = width / 2 + (x - (left + right) / 2) * scale + view.x * view.zoom;
    ys[i] = PADDING + room / 2 + (y - (top + bottom) / 2) * scale + view.y * view.zoom;
  });
  canvas.classList.toggle("zoomed", view.zoom > 1);
  at("zoom-reset").hidden = view.zoom === 1;
  at("zoom-out").disabled = view.zoom === 1;
  scaleBar(width);
  draw();
}

// A round number of metres that is up to a quarter of the width long.
function scaleBar(width) {
  const bar = at("scalebar");
  bar.hidden = places.unit === null || places.points.length < 2;
  if (bar.hidden) return;
  const most = (width / 4 / scale) * places.unit, power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].find((digit) => digit * power <= most) * power;
  bar.style.width = `${(length / places.unit) * scale}px`;
  bar.textContent = length >= 1000 ? `${length / 1000} km` : `${Number(length.toPrecision(1))} m`;
}

function zoom(factor, x = frame.clientWidth / 2, y = frame.clientHeight / 2) {
  const zoomed = Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor));
  // What is under the pointer stays there.
  const dx = x - frame.clientWidth / 2, dy = y - frame.clientHeight / 2;
  view = zoomed === 1 ? { zoom: 1, x: 0, y: 0 } : { zoom: zoomed, x: view.x + dx / zoomed - dx / view.zoom, y: view.y + dy / zoomed - dy / view.zoom };
  fit();
}

// Move the map if a sensor that was chosen elsewhere is not in sight.
function bringIntoSight(i) {
  const { clientWidth: width, clientHeight: height } = frame;
  if (xs[i] > 0 && xs[i] < width && ys[i] > 0 && ys[i] < height) return;
  view = { ...view, x: view.x - (xs[i] - width / 2) / view.zoom, y: view.y - (ys[i] - height / 2) / view.zoom };
  fit();
}

// ---- colours ----------------------------------------------------------------------------------------

function valueOf(i) {
  const { id } = state.sensors[i];
  return (state.colour === "error" ? watched(id)?.rmse : told(id)?.values[state.ahead - 1]) ?? null;
}

function domainOf(values) {
  if (state.colour === "forecast" && state.range) return state.range;
  const known = values.filter(isNumber).sort((a, b) => a - b);
  const quantile = (q) => known[Math.round(q * (known.length - 1))] ?? 0;
  return [quantile(0.02), quantile(0.98)];
}

const stops = (theme) => SCALES[theme].map((hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)));

function shade(value, [low, high], colours) {
  const place = Math.min(1, Math.max(0, (value - low) / (high - low || 1))) * (colours.length - 1);
  const below = Math.min(colours.length - 2, Math.floor(place)), part = place - below;
  return colours[below].map((v, k) => v + (colours[below + 1][k] - v) * part);
}

const NONE = [NaN, NaN, NaN];

function recolour() {
  const values = state.sensors.map((_, i) => valueOf(i)), step = newest();
  hollow = state.sensors.map(({ id }) => step !== null && (seconds(told(id)?.lastReading) ?? -1) < step);
  const colours = stops(state.theme);
  domain = domainOf(values);
  from = faded < 1 ? mixed() : to;
  to = new Float32Array(values.flatMap((value) => (isNumber(value) ? shade(value, domain, colours) : NONE)));
  const fades = from.length === to.length && !still.matches && !document.hidden && values.length > 0 && values.length <= MOST_FADING;
  faded = fades ? 0 : 1;
  fadeBegun = performance.now();
  if (fades) requestAnimationFrame(fade);
  else draw();
  key(values);
}

function fade(now) {
  if (faded === 1) return;
  faded = Math.min(1, Math.max(0, (now - fadeBegun) / FADE_MS));
  draw();
  if (faded < 1) requestAnimationFrame(fade);
}

const mixed = () => to.map((v, k) => (Number.isNaN(from[k]) ? v : from[k] + (v - from[k]) * faded));

function key(values) {
  const known = values.some(isNumber), error = state.colour === "error";
  at("key").hidden = !known;
  at("key-name").textContent = error ? "RMSE of the last forecasts" : `Forecast for ${moment(seconds(state.forecast?.times[state.ahead - 1]), newest())}`;
  at("key-low").textContent = number(domain[0], domain[1]);
  at("key-high").textContent = `${number(domain[1], domain[0])}${state.unit ? ` ${state.unit}` : ""}`;
  at("gradient").style.backgroundImage = `linear-gradient(to right, ${SCALES[state.theme].join(", ")})`;
}

// ---- drawing ----------------------------------------------------------------------------------------

function radius() {
  const area = (frame.clientWidth * frame.clientHeight) / Math.max(1, state.sensors.length);
  return Math.min(10, Math.max(2.6, 0.13 * Math.sqrt(area))) * Math.min(2, view.zoom ** 0.35);
}

function draw() {
  const ratio = devicePixelRatio || 1, r = radius();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, frame.clientWidth, frame.clientHeight);
  if (places.kind !== "grid") drawEdges();
  const colours = mixed(), card = colour("card"), ink = colour("ink"), none = colour("edge");
  const dim = state.stale || state.connection.state === "lost" ? 0.4 : 1;
  for (let i = 0; i < xs.length; i++) {
    const red = colours[3 * i];
    const fill = Number.isNaN(red) || red === undefined ? none : `rgb(${red} ${colours[3 * i + 1]} ${colours[3 * i + 2]})`;
    pen.globalAlpha = dim;
    marker(xs[i], ys[i], r, fill, card, hollow[i]);
  }
  pen.globalAlpha = 1;
  const alarm = colour("bad");
  for (const i of alarmed()) ring(xs[i], ys[i], i === state.sensor ? r + 7.5 : r + 3.5, alarm, 2);
  if (hovered >= 0 && hovered !== state.sensor) ring(xs[hovered], ys[hovered], r + 3, ink, 1.2);
  if (state.sensor < xs.length) ring(xs[state.sensor], ys[state.sensor], r + 4, ink, 2.5);
}

// A sensor that is late is hollow, so that nobody takes its colour for a measurement's consequence.
function marker(x, y, r, fill, card, isHollow) {
  pen.beginPath();
  pen.arc(x, y, isHollow ? r - 1 : r, 0, 7);
  pen.fillStyle = isHollow ? card : fill;
  pen.fill();
  pen.lineWidth = isHollow ? Math.max(1.6, r / 3) : Math.min(1, r / 5);
  pen.strokeStyle = isHollow ? fill : card;
  pen.stroke();
}

function ring(x, y, r, stroke, width) {
  pen.beginPath();
  pen.arc(x, y, r, 0, 7);
  pen.strokeStyle = stroke;
  pen.lineWidth = width;
  pen.stroke();
}

function drawEdges() {
  pen.beginPath();
  for (const [i, j] of state.edges) {
    pen.moveTo(xs[i], ys[i]);
    pen.lineTo(xs[j], ys[j]);
  }
  pen.strokeStyle = colour("edge");
  pen.globalAlpha = state.edges.length > 500 ? 0.35 : 0.6;
  pen.lineWidth = 0.9;
  pen.stroke();
  pen.globalAlpha = 1;
}

function alarmed() {
  const names = new Set((state.watch?.alarms ?? []).map((alarm) => alarm.sensor));
  return state.sensors.flatMap(({ id }, i) => (names.has(id) ? [i] : []));
}

export const spotOf = (i) => [xs[i], ys[i]]; // for tests

// ---- choosing ---------------------------------------------------------------------------------------

function nearest(x, y, within) {
  let found = -1, best = within ** 2;
  for (let i = 0; i < xs.length; i++) {
    const distance = (xs[i] - x) ** 2 + (ys[i] - y) ** 2;
    if (distance < best) [found, best] = [i, distance];
  }
  return found;
}

// The next sensor in a direction: near, and not far aside.
function neighbour(dx, dy) {
  let found = state.sensor, best = Infinity;
  for (let i = 0; i < xs.length; i++) {
    const x = xs[i] - xs[state.sensor], y = ys[i] - ys[state.sensor];
    const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (i === state.sensor || along <= 0 || aside > 2 * along) continue;
    if (along + 2 * aside < best) [found, best] = [i, along + 2 * aside];
  }
  return found;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (ARROWS[event.key]) change({ sensor: neighbour(...ARROWS[event.key]) });
  else if (event.key === "Home") change({ sensor: 0 });
  else if (event.key === "End") change({ sensor: state.sensors.length - 1 });
  else if (event.key === "+" || event.key === "=") zoom(1.5, xs[state.sensor], ys[state.sensor]);
  else if (event.key === "-") zoom(1 / 1.5);
  else if (event.key === "0") zoom(0);
  else return;
  event.preventDefault();
}

function showTip(i) {
  hovered = i;
  tip.hidden = i < 0;
  canvas.classList.toggle("over", i >= 0);
  draw();
  if (i < 0) return;
  const { id } = state.sensors[i], value = valueOf(i);
  const what = state.colour === "error" ? "RMSE" : `${exactSpan(state.ahead * state.step)} ahead`;
  tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: id }), ` ${what}: ${number(value)}`);
  tip.style.left = `${Math.min(frame.clientWidth - tip.offsetWidth - 4, Math.max(4, xs[i] - tip.offsetWidth / 2))}px`;
  const above = ys[i] - tip.offsetHeight - radius() - 8;
  tip.style.top = `${above > 0 ? above : ys[i] + radius() + 8}px`;
}

function listen() {
  let held = null;
  const place = (event) => {
    const edge = canvas.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    held = { from: place(event), view, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!held) return showTip(event.pointerType === "mouse" ? nearest(x, y, radius() + 8) : -1);
    const [dx, dy] = [x - held.from[0], y - held.from[1]];
    if (Math.hypot(dx, dy) > 4) held.moved = true;
    if (!held.moved || view.zoom === 1) return undefined;
    view = { ...view, x: held.view.x + dx / view.zoom, y: held.view.y + dy / view.zoom };
    return fit();
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = held && !held.moved ? nearest(...place(event), Math.max(22, radius() + 8)) : -1;
    held = null;
    if (found >= 0) change({ sensor: found });
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("pointerleave", () => showTip(-1));
  canvas.addEventListener("keydown", onKey);
  // The wheel scrolls the page unless the map is being used.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && view.zoom === 1) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 400), ...place(event));
  }, { passive: false });
  at("zoom-in").addEventListener("click", () => zoom(1.6));
  at("zoom-out").addEventListener("click", () => zoom(1 / 1.6));
  at("zoom-reset").addEventListener("click", () => zoom(0));
  for (const input of document.querySelectorAll("input[name=colour]"))
    input.addEventListener("change", () => change({ colour: input.value }));
  at("ahead").addEventListener("input", (event) => change({ ahead: Number(event.target.value) }));
  new ResizeObserver(fit).observe(frame);
}

// ---- parts ------------------------------------------------------------------------------------------

listen();

part(["sensors"], () => {
  places = placesOf(state.sensors);
  xs = new Float32Array(places.points.length);
  ys = new Float32Array(places.points.length);
  from = to = new Float32Array(0);
  view = { zoom: 1, x: 0, y: 0 };
  hovered = -1;
  tip.hidden = true;
  canvas.setAttribute("aria-label", `Map of ${count(state.sensors.length, "sensor")}. Arrow keys choose a sensor, plus and minus zoom.`);
  recolour();
  fit();
});
part(["forecast", "ahead", "colour", "watch", "theme", "range", "stale"], recolour);
part(["sensor"], () => {
  bringIntoSight(state.sensor);
  draw();
});
part(["connection", "edges"], draw);

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
