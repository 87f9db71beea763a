// A map of sensors on a canvas, shared by reports and the live page: where sensors are, zoom, and choosing one by
// pointer or keyboard. A page says what its sensors look like.

const PADDING = 26, BELOW = 48, MOST_ZOOM = 60; // pixels around the sensors; below them are the buttons
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const byId = (id) => document.getElementById(id);
const byCode = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));

// [red, green, blue] of a value on a scale of colours.
export function shade(value, [low, high], scale) {
  const place = Math.min(1, Math.max(0, (value - low) / (high - low || 1))) * (scale.length - 1);
  const below = Math.min(scale.length - 2, Math.floor(place)), [from, to] = [byCode(scale[below]), byCode(scale[below + 1])];
  return from.map((v, k) => v + (to[k] - v) * (place - below));
}

// Without the extreme 2 %.
export function rangeOf(values) {
  const known = values.filter((v) => typeof v === "number" && Number.isFinite(v)).sort((a, b) => a - b);
  const quantile = (q) => known[Math.round(q * (known.length - 1))] ?? 0;
  return [quantile(0.02), quantile(0.98)];
}

export function showKey(name, low, high, scale) {
  byId("key-name").textContent = name;
  [byId("key-low").textContent, byId("key-high").textContent] = [low, high];
  byId("gradient").style.backgroundImage = `linear-gradient(to right, ${scale.join(", ")})`;
}

export class SensorMap {
  // colour(name)  a colour of the style sheet
  // look(i)       { fill, hollow, diamond }: how a sensor is drawn
  // order()       the sensors in the order in which they are drawn
  // rings()       [sensor, distance, colour, width] of rings around sensors
  // words(i)      what its tip says: a name, and the rest
  // chosen(), choose(i)
  // moved(scale)  is told the pixels for 1 of x
  constructor(page) {
    Object.assign(this, { page, canvas: byId("map"), frame: byId("map-frame"), tip: byId("map-tip") });
    Object.assign(this, { points: [], edges: [], xs: [], ys: [], scale: 1, hovered: -1, view: { zoom: 1, x: 0, y: 0 } }); // x, y: how far the middle is moved, in pixels at zoom 1
    this.pen = this.canvas.getContext("2d");
    this.canvas.map = this; // for tests
    this.listen();
  }

  // points: [x, y] of each sensor, y downwards; edges: [i, j]
  show(points, edges) {
    Object.assign(this, { points, edges, xs: new Float32Array(points.length), ys: new Float32Array(points.length) });
    Object.assign(this, { view: { zoom: 1, x: 0, y: 0 }, hovered: -1 });
    this.tip.hidden = true;
    this.canvas.setAttribute("aria-label", `Map of ${points.length.toLocaleString("en")} sensor${points.length === 1 ? "" : "s"}. Arrow keys choose a sensor, plus and minus zoom.`);
    const ends = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    this.box = [ends(points.map(([x]) => x)), ends(points.map(([, y]) => y))];
    this.fit();
  }

  // ---- where ----------------------------------------------------------------------------------------

  fit() {
    const { canvas, view } = this, { clientWidth: width, clientHeight: height } = this.frame;
    if (!width || !height || !this.points.length) return;
    const size = [width, height].map((pixels) => Math.round(pixels * (devicePixelRatio || 1)));
    if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
    const [[left, right], [top, bottom]] = this.box, room = height - PADDING - BELOW;
    const fits = Math.min((width - 2 * PADDING) / (right - left || 1e-9), room / (bottom - top || 1e-9));
    this.scale = (fits < 1e8 ? fits : 1) * view.zoom;
    this.points.forEach(([x, y], i) => {
      this.xs[i] = width / 2 + (x - (left + right) / 2) * this.scale + view.x * view.zoom;
      this.ys[i] = PADDING + room / 2 + (y - (top + bottom) / 2) * this.scale + view.y * view.zoom;
    });
    canvas.classList.toggle("zoomed", view.zoom > 1);
    byId("zoom-reset").hidden = view.zoom === 1;
    byId("zoom-out").disabled = view.zoom === 1;
    this.page.moved?.(this.scale);
    this.draw();
  }

  zoom(factor, x = this.frame.clientWidth / 2, y = this.frame.clientHeight / 2) {
    const { view, frame } = this, zoom = Math.min(MOST_ZOOM, Math.max(1, view.zoom * factor));
    const dx = x - frame.clientWidth / 2, dy = y - frame.clientHeight / 2; // what is under the pointer stays there
    this.view = zoom === 1 ? { zoom, x: 0, y: 0 } : { zoom, x: view.x + dx / zoom - dx / view.zoom, y: view.y + dy / zoom - dy / view.zoom };
    this.fit();
  }

  // Move the map if a sensor that was chosen elsewhere is not in sight.
  bringIntoSight(i) {
    const { xs, ys, view } = this, { clientWidth: width, clientHeight: height } = this.frame;
    if (!width || (xs[i] > 0 && xs[i] < width && ys[i] > 0 && ys[i] < height)) return;
    this.view = { ...view, x: view.x - (xs[i] - width / 2) / view.zoom, y: view.y - (ys[i] - height / 2) / view.zoom };
    this.fit();
  }

  // ---- drawing --------------------------------------------------------------------------------------

  get radius() {
    const area = (this.frame.clientWidth * this.frame.clientHeight) / Math.max(1, this.points.length);
    return Math.min(10, Math.max(1.8, 0.13 * Math.sqrt(area))) * Math.min(2.5, this.view.zoom ** 0.4);
  }

  draw() {
    const { pen, xs, ys, page } = this, { clientWidth: width, clientHeight: height } = this.frame;
    const ratio = devicePixelRatio || 1, r = this.radius, card = page.colour("card"), ink = page.colour("ink");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.drawEdges(width, height);
    pen.globalAlpha = page.dim?.() ?? 1;
    for (const i of page.order?.() ?? xs.keys())
      if (xs[i] > -r && xs[i] < width + r && ys[i] > -r && ys[i] < height + r) this.mark(xs[i], ys[i], r, page.look(i), card);
    pen.globalAlpha = 1;
    for (const [i, distance, stroke, thick] of page.rings()) this.ring(i, r + distance, stroke, thick);
    const chosen = page.chosen();
    if (this.hovered >= 0 && this.hovered !== chosen) this.ring(this.hovered, r + 3, ink, 1.2);
    if (chosen < xs.length) this.ring(chosen, r + 4, ink, 2.5);
  }

  drawEdges(width, height) {
    const { pen, xs, ys, edges } = this;
    pen.beginPath();
    for (const [i, j] of edges) {
      if (Math.max(xs[i], xs[j]) < 0 || Math.min(xs[i], xs[j]) > width || Math.max(ys[i], ys[j]) < 0 || Math.min(ys[i], ys[j]) > height) continue;
      pen.moveTo(xs[i], ys[i]);
      pen.lineTo(xs[j], ys[j]);
    }
    pen.strokeStyle = this.page.colour("edge");
    pen.globalAlpha = edges.length > 500 ? 0.35 : 0.6;
    pen.lineWidth = 0.9;
    pen.stroke();
  }

  mark(x, y, r, { fill, hollow, diamond }, card) {
    const { pen } = this, inside = hollow ? r - 1 : r, wide = 1.3 * inside;
    pen.beginPath();
    if (diamond) {
      pen.moveTo(x, y - wide);
      for (const [dx, dy] of [[wide, 0], [0, wide], [-wide, 0]]) pen.lineTo(x + dx, y + dy);
      pen.closePath();
    } else pen.arc(x, y, inside, 0, 7);
    pen.fillStyle = hollow ? card : fill;
    pen.fill();
    pen.lineWidth = hollow ? Math.max(1.6, r / 3) : Math.min(1, r / 5);
    pen.strokeStyle = hollow ? fill : card;
    pen.stroke();
  }

  ring(i, r, stroke, width) {
    const { pen } = this;
    pen.beginPath();
    pen.arc(this.xs[i], this.ys[i], r, 0, 7);
    pen.strokeStyle = stroke;
    pen.lineWidth = width;
    pen.stroke();
  }

  // ---- choosing -------------------------------------------------------------------------------------

  nearest(x, y, within) {
    let found = -1, best = within ** 2;
    for (let i = 0; i < this.xs.length; i++) {
      const distance = (this.xs[i] - x) ** 2 + (this.ys[i] - y) ** 2;
      if (distance < best) [found, best] = [i, distance];
    }
    return found;
  }

  // The next sensor in a direction: near, and not far aside.
  neighbour(dx, dy) {
    const { xs, ys } = this, chosen = this.page.chosen();
    let found = chosen, best = Infinity;
    for (let i = 0; i < xs.length; i++) {
      const x = xs[i] - xs[chosen], y = ys[i] - ys[chosen];
      const along = x * dx + y * dy, aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (i === chosen || along <= 0 || aside > 2 * along) continue;
      if (along + 2 * aside < best) [found, best] = [i, along + 2 * aside];
    }
    return found;
  }

  showTip(i) {
    const { tip, xs, ys, frame } = this;
    if (i === this.hovered) return;
    this.hovered = i;
    tip.hidden = i < 0;
    this.canvas.classList.toggle("over", i >= 0);
    this.draw();
    if (i < 0) return;
    const [name, rest] = this.page.words(i), bold = document.createElement("b"), r = this.radius;
    bold.textContent = name;
    tip.replaceChildren(bold, ` ${rest}`);
    tip.style.left = `${Math.min(frame.clientWidth - tip.offsetWidth - 4, Math.max(4, xs[i] - tip.offsetWidth / 2))}px`;
    const above = ys[i] - tip.offsetHeight - r - 8;
    tip.style.top = `${above > 0 ? above : ys[i] + r + 8}px`;
  }

  onKey(event) {
    const { xs, ys, page } = this, chosen = page.chosen();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (ARROWS[event.key]) page.choose(this.neighbour(...ARROWS[event.key]));
    else if (event.key === "Home") page.choose(0);
    else if (event.key === "End") page.choose(xs.length - 1);
    else if (event.key === "+" || event.key === "=") this.zoom(1.6, xs[chosen], ys[chosen]);
    else if (event.key === "-") this.zoom(1 / 1.6);
    else if (event.key === "0") this.zoom(0);
    else return;
    event.preventDefault();
  }

  listen() {
    const { canvas } = this;
    let held = null;
    const place = (event) => {
      const edge = canvas.getBoundingClientRect();
      return [event.clientX - edge.left, event.clientY - edge.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      held = { from: place(event), view: this.view, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event), { view } = this;
      if (!held) return this.showTip(event.pointerType === "mouse" ? this.nearest(x, y, this.radius + 8) : -1);
      const [dx, dy] = [x - held.from[0], y - held.from[1]];
      if (Math.hypot(dx, dy) > 4) held.moved = true;
      if (!held.moved || view.zoom === 1) return undefined;
      this.view = { ...view, x: held.view.x + dx / view.zoom, y: held.view.y + dy / view.zoom };
      return this.fit();
    });
    canvas.addEventListener("pointerup", (event) => {
      const found = held && !held.moved ? this.nearest(...place(event), Math.max(22, this.radius + 8)) : -1;
      held = null;
      if (found >= 0) this.page.choose(found);
    });
    canvas.addEventListener("pointercancel", () => (held = null));
    canvas.addEventListener("pointerleave", () => this.showTip(-1));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    // The wheel scrolls the page unless the map is being used.
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey && this.view.zoom === 1) return;
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), ...place(event));
    }, { passive: false });
    for (const [id, factor] of [["zoom-in", 1.6], ["zoom-out", 1 / 1.6], ["zoom-reset", 0]]) byId(id).addEventListener("click", () => this.zoom(factor));
    new ResizeObserver(() => this.fit()).observe(this.frame);
  }
}
