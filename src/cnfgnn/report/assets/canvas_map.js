// The map of many sensors, drawn on a canvas: thousands of elements would be too slow.

const ABOVE = 8, BELOW = 52, ASIDE = 8, MOST_ZOOM = 60, SHADES = 48; // room around the sensors in pixels; below are the colours and the buttons
const map = { zoom: 1, x: 0, y: 0, errors: [], order: [], hovered: -1, data: null, xs: [], ys: [] }; // x, y: how far it is moved, at zoom 1

function canvasMap(errors) {
  const data = theData();
  if (map.data !== data) Object.assign(map, { data, zoom: 1, x: 0, y: 0, hovered: -1 });
  map.errors = errors;
  // The highest errors are drawn last, so that nothing hides them.
  map.order = errors.map((_, i) => i).sort((a, b) => (errors[a] ?? -Infinity) - (errors[b] ?? -Infinity));
  const known = errors.some((v) => v !== null), [low, high] = scaleOf(state.figure);
  at("map-key").hidden = !known;
  at("key-name").textContent = `${FIGURES[state.figure]}, ${aheadName(theRun(), state.step)}`;
  [at("key-low").textContent, at("key-high").textContent] = [number(low), number(high)];
  at("gradient").style.backgroundImage = `linear-gradient(to right, ${SCALES[state.theme].join(", ")})`;
  at("map-canvas").setAttribute("aria-label", `Map of ${data.sensors.length.toLocaleString("en")} sensors coloured by error. Arrow keys choose a sensor, plus and minus zoom.`);
  fitCanvas();
  bringIntoSight();
}

// ---- where ------------------------------------------------------------------------------------------

const frameSize = () => [at("canvas-map").clientWidth, at("canvas-map").clientHeight];

function fitCanvas() {
  const [width, height] = frameSize(), { data } = map, canvas = at("map-canvas");
  if (!width || !height || !data) return;
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const ends = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  data.box ??= [ends(data.x), ends(data.y)];
  const [[left, right], [bottom, top]] = data.box, room = height - ABOVE - BELOW;
  const fits = Math.min((width - 2 * ASIDE) / (right - left || 1e-9), room / (top - bottom || 1e-9));
  const scale = (fits < 1e8 ? fits : 1) * map.zoom;
  map.xs = data.x.map((x) => width / 2 + (x - (left + right) / 2) * scale + map.x * map.zoom);
  map.ys = data.y.map((y) => ABOVE + room / 2 - (y - (bottom + top) / 2) * scale + map.y * map.zoom);
  canvas.classList.toggle("zoomed", map.zoom > 1);
  at("zoom-reset").hidden = map.zoom === 1;
  at("zoom-out").disabled = map.zoom === 1;
  drawCanvas();
}

function zoomMap(factor, x = frameSize()[0] / 2, y = frameSize()[1] / 2) {
  const zoom = Math.min(MOST_ZOOM, Math.max(1, map.zoom * factor)), [width, height] = frameSize();
  const dx = x - width / 2, dy = y - (ABOVE + (height - ABOVE - BELOW) / 2); // what is under the pointer stays there
  Object.assign(map, zoom === 1 ? { zoom, x: 0, y: 0 } : { zoom, x: map.x + dx / zoom - dx / map.zoom, y: map.y + dy / zoom - dy / map.zoom });
  fitCanvas();
}

// Move the map if a sensor that was chosen elsewhere is not in sight.
function bringIntoSight() {
  const [width, height] = frameSize(), x = map.xs[state.sensor], y = map.ys[state.sensor];
  if (map.zoom === 1 || (x > 0 && x < width && y > 0 && y < height - BELOW)) return;
  Object.assign(map, { x: map.x - (x - width / 2) / map.zoom, y: map.y - (y - height / 2) / map.zoom });
  fitCanvas();
}

// ---- drawing ----------------------------------------------------------------------------------------

function radiusOf() {
  const [width, height] = frameSize(), area = (width * height) / Math.max(1, map.xs.length);
  return Math.min(5, Math.max(1.5, 0.22 * Math.sqrt(area))) * Math.min(3, map.zoom ** 0.5);
}

// The colours of errors from low to high, and that of an unknown one last.
function shades() {
  const stops = SCALES[state.theme].map((hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16)));
  const mixed = Array.from({ length: SHADES }, (_, k) => {
    const place = (k / (SHADES - 1)) * (stops.length - 1), below = Math.min(stops.length - 2, Math.floor(place));
    return `rgb(${stops[below].map((v, c) => v + (stops[below + 1][c] - v) * (place - below)).join(" ")})`;
  });
  return [...mixed, colour("edge")];
}

function drawCanvas() {
  const canvas = at("map-canvas"), pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1, [width, height] = frameSize();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, width, height - BELOW + 8);
  pen.clip();
  drawEdges(pen, width, height);
  drawSensors(pen, width, height);
  pen.restore();
}

function drawEdges(pen, width, height) {
  const { xs, ys, data } = map, [from, to] = data.edges;
  if (!from) return;
  pen.beginPath();
  from.forEach((i, k) => {
    const j = to[k];
    if (Math.max(xs[i], xs[j]) < 0 || Math.min(xs[i], xs[j]) > width || Math.max(ys[i], ys[j]) < 0 || Math.min(ys[i], ys[j]) > height) return;
    pen.moveTo(xs[i], ys[i]);
    pen.lineTo(xs[j], ys[j]);
  });
  pen.strokeStyle = colour("edge");
  pen.globalAlpha = 0.6;
  pen.lineWidth = map.zoom > 3 ? 1 : 0.6;
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawSensors(pen, width, height) {
  const { xs, ys, data, errors } = map, r = radiusOf(), run = theRun(), [low, high] = scaleOf(state.figure), palette = shades();
  const marks = palette.map(() => new Path2D());
  for (const i of map.order) {
    if (xs[i] < -r || xs[i] > width + r || ys[i] < -r || ys[i] > height + r) continue;
    const share = Math.min(1, Math.max(0, (errors[i] - low) / (high - low || 1)));
    mark(marks[errors[i] === null ? SHADES : Math.round(share * (SHADES - 1))], xs[i], ys[i], r, trained(run, i));
  }
  pen.fillStyle = palette[SHADES];
  pen.fill(marks[SHADES]);
  for (let k = 0; k < SHADES; k++) {
    pen.fillStyle = palette[k];
    pen.fill(marks[k]);
  }
  const ink = colour("ink");
  for (const i of data.many.full) ring(pen, xs[i], ys[i], r + 0.8, ink, 1);
  if (map.hovered >= 0 && map.hovered !== state.sensor) ring(pen, xs[map.hovered], ys[map.hovered], r + 3, ink, 1.2);
  ring(pen, xs[state.sensor], ys[state.sensor], r + 5, ink, 2.5);
}

function mark(path, x, y, r, isTrained) {
  if (isTrained) {
    path.moveTo(x + r, y);
    path.arc(x, y, r, 0, 7);
    return;
  }
  path.moveTo(x, y - 1.4 * r);
  path.lineTo(x + 1.4 * r, y);
  path.lineTo(x, y + 1.4 * r);
  path.lineTo(x - 1.4 * r, y);
  path.closePath();
}

function ring(pen, x, y, r, stroke, width) {
  pen.beginPath();
  pen.arc(x, y, r, 0, 7);
  pen.strokeStyle = stroke;
  pen.lineWidth = width;
  pen.stroke();
}

// ---- choosing ---------------------------------------------------------------------------------------

function nearestSensor(x, y, within) {
  let found = -1, best = within ** 2;
  for (let i = 0; i < map.xs.length; i++) {
    const distance = (map.xs[i] - x) ** 2 + (map.ys[i] - y) ** 2;
    if (distance < best) [found, best] = [i, distance];
  }
  return found;
}

// The next sensor in a direction: near, and not far aside.
function neighbourOf(dx, dy) {
  let found = state.sensor, best = Infinity;
  for (let i = 0; i < map.xs.length; i++) {
    const x = map.xs[i] - map.xs[state.sensor], y = map.ys[i] - map.ys[state.sensor];
    const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (i === state.sensor || along <= 0 || aside > 2 * along) continue;
    if (along + 2 * aside < best) [found, best] = [i, along + 2 * aside];
  }
  return found;
}

function showTip(i) {
  const tip = at("map-tip"), r = radiusOf(), [width] = frameSize();
  if (i === map.hovered) return;
  map.hovered = i;
  tip.hidden = i < 0;
  at("map-canvas").classList.toggle("over", i >= 0);
  drawCanvas();
  if (i < 0) return;
  const untrained = trained(theRun(), i) ? "" : " (not trained)";
  tip.replaceChildren(element("b", {}, map.data.sensors[i]), `${untrained} ${number(map.errors[i])}`);
  tip.style.left = `${Math.min(width - tip.offsetWidth - 4, Math.max(4, map.xs[i] - tip.offsetWidth / 2))}px`;
  const above = map.ys[i] - tip.offsetHeight - r - 8;
  tip.style.top = `${above > 0 ? above : map.ys[i] + r + 8}px`;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function onMapKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (ARROWS[event.key]) change({ sensor: neighbourOf(...ARROWS[event.key]) });
  else if (event.key === "+" || event.key === "=") zoomMap(1.6, map.xs[state.sensor], map.ys[state.sensor]);
  else if (event.key === "-") zoomMap(1 / 1.6);
  else if (event.key === "0") zoomMap(0);
  else return;
  event.preventDefault();
}

function listenToCanvasMap() {
  const canvas = at("map-canvas");
  let held = null;
  const place = (event) => {
    const edge = canvas.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    held = { from: place(event), x: map.x, y: map.y, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!held) return showTip(event.pointerType === "mouse" ? nearestSensor(x, y, radiusOf() + 6) : -1);
    const [dx, dy] = [x - held.from[0], y - held.from[1]];
    if (Math.hypot(dx, dy) > 4) held.moved = true;
    if (!held.moved || map.zoom === 1) return undefined;
    Object.assign(map, { x: held.x + dx / map.zoom, y: held.y + dy / map.zoom });
    return fitCanvas();
  });
  canvas.addEventListener("pointerup", (event) => {
    const found = held && !held.moved ? nearestSensor(...place(event), Math.max(16, radiusOf() + 6)) : -1;
    held = null;
    if (found >= 0) change({ sensor: found });
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("pointerleave", () => showTip(-1));
  canvas.addEventListener("keydown", onMapKey);
  // The wheel scrolls the page unless the map is being used.
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey && map.zoom === 1) return;
    event.preventDefault();
    zoomMap(Math.exp(-event.deltaY / 400), ...place(event));
  }, { passive: false });
  at("zoom-in").addEventListener("click", () => zoomMap(1.8));
  at("zoom-out").addEventListener("click", () => zoomMap(1 / 1.8));
  at("zoom-reset").addEventListener("click", () => zoomMap(0));
  new ResizeObserver(fitCanvas).observe(at("canvas-map"));
}
