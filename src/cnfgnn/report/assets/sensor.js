// One sensor: its last days, its error by time ahead and by hour of day.

const DAY_MS = 86_400_000;

part(["run"], () => {
  if (theData().many) return; // see search.js
  at("sensor").replaceChildren(...theData().sensors.map((id, i) => element("option", { value: i }, id)));
});

// Whether the readings and forecasts of the sensor are on the page.
const isShown = (run) => Boolean(run.forecasts) && placeOf(dataOf(run), state.sensor) !== undefined;

part(["run", "sensor", "step", "figure"], () => {
  const run = theRun();
  at("sensor").value = state.sensor;
  at("sensor-hint").textContent = run.test ? `Test errors, ${aheadName(run, state.step)}:` : "";
  at("sensor-errors").replaceChildren(...(run.test ? Object.entries(FIGURES) : []).map(([figure, name]) =>
    element("div", { class: figure === state.figure ? "shown" : null, "data-figure": figure },
      element("dt", {}, name),
      element("dd", {}, number(bySensor(run, figure, state.step)[state.sensor])))));
  at("no-predictions").hidden = !run.no_predictions;
  at("no-predictions").textContent = `Forecasts and errors by hour are not available: ${run.no_predictions}.`;
  at("days-part").hidden = at("hours-part").hidden = !isShown(run);
  at("errors-part").hidden = !isShown(run) && !run.steps_of_all;
});

function lastDays(run, data) {
  const rows = data.truth.shape[1], step = data.step_seconds * 1000;
  return { rows, step, first: data.first * 1000, days: (rows * step) / DAY_MS };
}

part(["run", "days"], () => {
  const run = theRun();
  if (!run.forecasts) return;
  const { days } = lastDays(run, theData());
  const choices = [1, 2, 4, 7].filter((d) => d < days);
  at("days").hidden = !choices.length;
  at("days").replaceChildren(...(choices.length ? [...choices, days] : []).map((d) => element(
    "button",
    { type: "button", "aria-pressed": String(d === state.days || (d === days && state.days >= days)), onclick: () => change({ days: d }) },
    d === days ? "all" : d === 1 ? "1 day" : `${d} days`,
  )));
});

// The area between two bounds, in pieces where some are missing.
function band(name, x, low, high, fillcolor) {
  const xs = [], ys = [];
  let from = 0;
  for (let i = 0; i <= x.length; i++) {
    if (i < x.length && low[i] !== null && high[i] !== null) continue;
    for (let j = from; j < i; j++) { xs.push(x[j]); ys.push(high[j]); }
    for (let j = i - 1; j >= from; j--) { xs.push(x[j]); ys.push(low[j]); }
    if (i > from) { xs.push(null); ys.push(null); }
    from = i + 1;
  }
  return { name, x: xs, y: ys, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor, hoverinfo: "skip" };
}

// The widest interval is drawn first and palest.
function bands(run, x, shade) {
  if (!run.bands) return [];
  const alpha = ["59", "2e"]; // of the narrowest interval on, in hexadecimal
  const sensor = placeOf(dataOf(run), state.sensor);
  return run.levels.map((level, l) =>
    band(`${level} % interval`, x, row(run.bands, l, 0, sensor), row(run.bands, l, 1, sensor), shade + alpha[l]),
  ).reverse();
}

part(["run", "sensor"], () => {
  const run = theRun(), levels = Object.entries(run.test?.intervals ?? {});
  at("sensor-intervals").hidden = !levels.length;
  at("sensor-intervals").textContent = levels.flatMap(([level, found]) => {
    const { coverage, width } = intervalsOf(found, state.sensor) ?? {};
    if (coverage === undefined) return [];
    return coverage === null
      ? `No reading of this sensor could be compared with its ${level} % intervals.`
      : `The ${level} % intervals contain ${share(coverage)} of its readings and are ${number(width)} wide on average.`;
  }).join(" ");
  at("bands-hint").hidden = !run.bands;
  if (run.bands) at("bands-hint").textContent = `The shaded intervals are those of the forecasts ${aheadName(run, run.steps.at(-1))}.`;
});

part(["run", "sensor", "days", "theme"], () => {
  const run = theRun(), data = theData(), sensor = placeOf(data, state.sensor);
  if (!isShown(run)) return;
  const { rows, step, first, days } = lastDays(run, data);
  const behind = rows - run.forecasts.shape[2]; // both end with the last row but may begin at different ones
  const x = Array.from({ length: rows }, (_, i) => first + i * step);
  const shades = ["#2a9df4", "#e08e00", "#c2548f"];
  const traces = run.steps.map((ahead, j) => ({
    name: aheadName(run, ahead), x: behind < 0 ? x : x.slice(behind),
    y: row(run.forecasts, j, sensor).slice(Math.max(0, -behind)),
    mode: "lines", line: { color: shades[j], width: 1.4 },
  }));
  const shown = behind < 0 ? x : x.slice(behind);
  traces.unshift(...bands(run, shown, shades[run.steps.length - 1]), {
    name: "measured", x, y: row(data.truth, sensor), mode: "lines", line: { color: colour("ink"), width: 1.8 },
  });
  const end = first + (rows - 1) * step;
  const range = state.days >= days ? [first, end] : [end - state.days * DAY_MS, end];
  draw("last-days", traces, {
    showlegend: true, xaxis: axis({ type: "date", range, nticks: narrow() ? 4 : 8 }), yaxis: axis(),
    margin: { l: 8, r: 12, t: 28, b: 8 },
  });
});

part(["run", "figure", "step", "sensor", "theme"], () => {
  if (isShown(theRun()) || theRun().steps_of_all) aheadChart("sensor-ahead", siblings(), (run) => ofSensor(run, state.figure, state.sensor), false);
});

part(["run", "figure", "sensor", "theme"], () => {
  const f = content.figures.indexOf(state.figure), sensor = placeOf(theData(), state.sensor);
  if (!isShown(theRun())) return;
  const traces = siblings().filter((run) => run.by_hour).map((run) => {
    const y = row(run.by_hour, f, sensor);
    return {
      name: run.name, x: y.map((_, hour) => hour), y, mode: "lines+markers", marker: { size: 4 },
      line: { ...styleOf(run), width: run === theRun() ? 2.5 : 1.5 }, ...formatted(y),
    };
  });
  draw("sensor-hours", traces, {
    showlegend: false,
    xaxis: axis({ title: "hour of day", tickvals: [0, 6, 12, 18, 23], range: [-0.5, 23.5] }),
    yaxis: axis({ title: FIGURES[state.figure], rangemode: "tozero" }),
  });
});

function listenToSensor() {
  at("sensor").addEventListener("change", (event) => change({ sensor: Number(event.target.value) }));
}
