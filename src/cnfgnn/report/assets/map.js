// The map: sensors at their positions, joined by edges, coloured by error.

// One colour scale for all steps and runs, so that colours can be compared.
const scales = new Map();
function scaleOf(figure) {
  const key = `${figure} ${theRun().data}`;
  if (!scales.has(key)) {
    const [low, high] = rangeOf(siblings().flatMap((run) => {
      const steps = run.by_step || run.steps_of_all ? Array.from({ length: horizonOf(run) + 1 }, (_, k) => k) : [0];
      return steps.flatMap((step) => bySensor(run, figure, step));
    }));
    scales.set(key, low < high ? [low, high] : [0, high || 1]);
  }
  return scales.get(key);
}

const trained = (run, sensor) => !run.seen || run.seen[sensor];

const shown = { data: null, errors: [], fills: [], order: [] };
let map = null;

function onMap() {
  return new SensorMap({
    colour,
    look: (i) => ({ fill: shown.fills[i], diamond: !trained(theRun(), i) }),
    order: () => shown.order,
    rings: () => {
      const ink = colour("ink");
      return (theData().many?.full ?? []).map((i) => [i, 0.8, ink, 1]);
    },
    words: (i) => [theData().sensors[i], `${trained(theRun(), i) ? "" : "(not trained) "}${number(shown.errors[i])}`],
    chosen: () => state.sensor,
    choose: (sensor) => change({ sensor }),
    errors: () => shown.errors, // for tests
  });
}

part(["run", "figure", "step", "sensor", "theme"], () => {
  const data = theData(), errors = bySensor(theRun(), state.figure, state.step), [low, high] = scaleOf(state.figure);
  shown.errors = errors;
  const unknown = colour("edge");
  shown.fills = errors.map((v) => (v === null ? unknown : `rgb(${shade(v, [low, high], SCALES[state.theme]).join(" ")})`));
  // The highest errors are drawn last, so that nothing hides them.
  shown.order = errors.map((_, i) => i).sort((a, b) => (errors[a] ?? -Infinity) - (errors[b] ?? -Infinity));
  at("key").hidden = errors.every((v) => v === null);
  showKey(`${FIGURES[state.figure]}, ${aheadName(theRun(), state.step)}`, number(low), number(high), SCALES[state.theme]);
  map ??= onMap();
  if (shown.data !== data) {
    shown.data = data;
    const [from = [], to = []] = data.edges;
    map.show(data.sensors.map((_, i) => [data.x[i], -data.y[i]]), from.map((i, k) => [i, to[k]]));
  }
  map.bringIntoSight(state.sensor);
  map.draw();
  mapHint(errors);
  worst(errors);
});

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
