// The map: sensors at their positions, joined by edges, coloured by error.

// One colour scale for all steps and runs, so that colours can be compared; it ignores the extreme 2 %.
const scales = new Map();
function scaleOf(figure) {
  const key = `${figure} ${theRun().data}`;
  if (!scales.has(key)) {
    const all = siblings().flatMap((run) => {
      const steps = run.by_step || run.steps_of_all ? Array.from({ length: horizonOf(run) + 1 }, (_, k) => k) : [0];
      return steps.flatMap((step) => bySensor(run, figure, step));
    }).filter((v) => v !== null).sort((a, b) => a - b);
    const quantile = (q) => all[Math.round(q * (all.length - 1))] ?? 0;
    const [low, high] = [quantile(0.02), quantile(0.98)];
    scales.set(key, low < high ? [low, high] : [0, high || 1]);
  }
  return scales.get(key);
}

function edgeLines(data) {
  const [from, to] = data.edges, x = [], y = [];
  from.forEach((i, k) => {
    x.push(data.x[i], data.x[to[k]], null);
    y.push(data.y[i], data.y[to[k]], null);
  });
  return { x, y, mode: "lines", hoverinfo: "skip", line: { color: colour("edge"), width: data.sensors.length > 100 ? 0.7 : 1.2 } };
}

// In pixels: the more sensors, the smaller.
function markerSize(sensors) {
  if (sensors <= 40) return 16;
  const [, size] = [[250, 8], [100, 9], [40, 12]].find(([more]) => sensors > more);
  return narrow() ? size - 3 : size;
}

part(["run", "figure", "step", "sensor", "theme"], () => {
  const data = theData(), errors = bySensor(theRun(), state.figure, state.step);
  at("map").hidden = Boolean(data.many);
  at("canvas-map").hidden = !data.many;
  data.many ? canvasMap(errors) : plottedMap(errors);
  mapHint(errors);
  worst(errors);
});

const trained = (run, sensor) => !run.seen || run.seen[sensor];

function plottedMap(errors) {
  const run = theRun(), data = theData(), n = data.sensors.length;
  const known = errors.some((v) => v !== null);
  const [cmin, cmax] = scaleOf(state.figure);
  const size = markerSize(n);
  const name = `${FIGURES[state.figure]}, ${aheadName(run, state.step)}`;
  const markers = (hasError, marker) => {
    const shown = data.sensors.map((_, i) => i).filter((i) => (errors[i] !== null) === hasError);
    return {
      x: shown.map((i) => data.x[i]), y: shown.map((i) => data.y[i]), mode: "markers", customdata: shown,
      text: shown.map((i) => `${data.sensors[i]}${trained(run, i) ? "" : " (not trained)"}<br>${number(errors[i])}`),
      hovertemplate: "%{text}<extra></extra>",
      marker: {
        size, symbol: shown.map((i) => (trained(run, i) ? "circle" : "diamond")),
        line: { width: 1, color: colour("card") }, ...marker(shown),
      },
    };
  };
  const evaluated = markers(true, (shown) => ({
    color: shown.map((i) => errors[i]), cmin, cmax,
    colorscale: SCALES[state.theme].map((shade, k, all) => [k / (all.length - 1), shade]),
    colorbar: {
      title: { text: name, side: "top", font: { size: 12 } }, orientation: "h", thickness: 10, len: 0.9,
      x: 0.5, xanchor: "center", y: -0.01, yanchor: "top", outlinewidth: 0,
    },
    showscale: known,
  }));
  const unevaluated = markers(false, () => ({ color: colour("edge") }));
  const chosen = {
    x: [data.x[state.sensor]], y: [data.y[state.sensor]], mode: "markers", hoverinfo: "skip",
    marker: { size: size + 10, symbol: "circle-open", color: colour("ink"), line: { width: 2.5 } },
  };
  const hidden = { visible: false, fixedrange: !matchMedia("(pointer: fine)").matches };
  draw("map", [edgeLines(data), evaluated, unevaluated, chosen], {
    hovermode: "closest", showlegend: false, margin: { l: 4, r: 4, t: 4, b: 4 },
    dragmode: hidden.fixedrange ? false : "pan",
    xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" },
    uirevision: run.data, // keeps the zoom
  }, {
    displayModeBar: !hidden.fixedrange,
    modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  });
  listenToPlottedMap();
}

function mapHint(errors) {
  const run = theRun(), data = theData(), known = errors.some((v) => v !== null);
  const shape = run.seen?.includes(false) ? " Diamonds were not trained on." : "";
  const lines = data.edges.length || !data.pairs ? "lines are edges" : "there are too many edges to draw";
  at("map-hint").textContent =
    (data.located ? "Sensors at their positions, north up" : "Positions are unknown: connected sensors are drawn close together") +
    `; ${lines}. Select a sensor to see its forecasts.${shape}` +
    (data.many ? ` Forecasts of ${data.many.full.length} sensors are on this page: those with a ring.` : "") +
    (known || !run.test ? "" : " Errors of single sensors are only available over all steps.") +
    (known && errors.includes(null) ? " Grey sensors have no readings to compare with." : "");
}

function worst(errors) {
  const sensors = theData().sensors;
  const order = errors.map((v, i) => [v, i]).filter(([v]) => v !== null).sort((a, b) => b[0] - a[0]).slice(0, 5);
  at("worst").replaceChildren(...(order.length ? ["Highest:"] : []), ...order.map(([v, i]) =>
    element("button", { type: "button", "aria-pressed": String(i === state.sensor), onclick: () => change({ sensor: i }) },
      element("b", {}, sensors[i]), ` ${number(v)}`)));
}

function listenToMap() {
  // Its height follows the card beside it, which does not cause a resize event of the window.
  new ResizeObserver(() => at("map").data && !at("map").hidden && Plotly.Plots.resize(at("map"))).observe(at("map"));
}

let listening = false;
function listenToPlottedMap() {
  if (listening) return;
  listening = true;
  at("map").on("plotly_click", ({ points }) => {
    if (points[0]?.customdata !== undefined) change({ sensor: points[0].customdata });
  });
}
