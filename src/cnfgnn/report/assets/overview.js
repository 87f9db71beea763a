// Runs side by side: a summary of the data, the controls of the page, and the table of test errors.

function summary() {
  const about = content.data.map((d) => {
    const missing = d.missing > 0 ? `, ${(100 * d.missing).toFixed(1)} % missing` : "";
    const day = (time) => time.replace("T", " ").slice(0, 16);
    return `${d.name}: ${count(d.sensors.length, "sensor")}, ${count(d.pairs, "connected pair")}, ` +
      `${day(d.from)} to ${day(d.to)}, a reading every ${span(d.step_seconds / 60)}${missing}`;
  });
  at("summary").textContent = `${about.join("; ")}.`;
}

function controls() {
  const { runs } = content;
  runs.forEach((run, i) => at("run").append(element("option", { value: i }, run.name)));
  at("run-field").hidden = runs.length < 2;
  at("run").addEventListener("change", (event) => pick(Number(event.target.value)));
  for (const input of document.querySelectorAll("input[name=figure]"))
    input.addEventListener("change", () => change({ figure: input.value }));
  for (const input of document.querySelectorAll("input[name=count]"))
    input.addEventListener("change", () => change({ count: input.value }));
  const rows = 41 * runs.length + 33 * runs[0].baselines.length;
  at("ahead").style.height = `${Math.min(420, Math.max(230, 70 + rows))}px`; // as high as the table beside it
  at("step").addEventListener("input", (event) => change({ step: Number(event.target.value) }));
}

// Show another run; keep the selected sensor and step if that run has them.
function pick(run) {
  const sensor = theData().sensors[state.sensor];
  const data = dataOf(content.runs[run]), there = data.sensors.indexOf(sensor);
  change({ run, sensor: there < 0 ? firstSensor(data) : there, step: Math.min(state.step, horizonOf(content.runs[run])) });
}

part(["run", "step"], () => {
  const run = theRun(), horizon = horizonOf(run);
  at("run").value = state.run;
  at("step").max = horizon;
  at("step").value = state.step;
  const name = state.step === 0 ? "all steps" : `${span(minutesOf(run, state.step))} (step ${state.step} of ${horizon})`;
  at("step-name").textContent = name;
  at("step").setAttribute("aria-valuetext", name);
  at("shortcuts").replaceChildren(...[0, ...namedSteps(horizon)].map((step) =>
    element(
      "button",
      { type: "button", "aria-pressed": String(step === state.step), "data-step": step, onclick: () => change({ step }) },
      step === 0 ? "all" : span(minutesOf(run, step)),
    )));
});

const MASKED = ["masked_mae", "masked_rmse", "masked_mape"], UNMASKED = ["rmse", "mae"];
const SHORT = { masked_mae: "MAE", masked_rmse: "RMSE", masked_mape: "MAPE", rmse: "RMSE", mae: "MAE" };

function errorsHead(first, more) {
  const kind = (span, text, title) => element("th", { colspan: span, scope: "colgroup", class: "group", title }, text);
  const names = [...MASKED, ...UNMASKED].map((figure) =>
    element("th", { scope: "col", class: figure === "masked_mae" || figure === "rmse" ? "group" : null }, SHORT[figure]));
  return element("thead", {},
    element("tr", {},
      ...[first, ...more.slice(0, 1)].map((name) => element("th", { rowspan: 2, scope: "col", class: "text" }, name)),
      kind(3, "masked: over observed readings"),
      kind(2, "unmasked: over all readings"),
      ...more.slice(1).map((name) => element("th", { rowspan: 2, scope: "col", class: "group" }, name))),
    element("tr", {}, ...names));
}

function errorCells(errors, least = {}) {
  return [...MASKED, ...UNMASKED].map((figure) => {
    const value = errors?.[figure] ?? null;
    const classes = [figure === "masked_mae" || figure === "rmse" ? "group" : "", value !== null && value === least[figure] ? "least" : ""];
    return element("td", { class: classes.join(" ").trim() || null, "data-figure": figure },
      figure === "masked_mape" ? share(value) : number(value));
  });
}

function oneRun() {
  const run = theRun();
  const rows = [["all steps", run.test?.overall]];
  for (const step of namedSteps(horizonOf(run))) rows.push([aheadName(run, step), run.test?.per_step[step - 1]]);
  for (const kind of ["seen", "unseen"]) if (run.test?.[kind]) rows.push([`${kind} sensors`, run.test[kind]]);
  const row = ([name, errors]) =>
    element("tr", { "data-row": name }, element("th", { scope: "row" }, name), ...errorCells(errors));
  const simple = run.baselines.map((baseline) => row([baseline.name, baseline.overall]));
  at("errors").replaceChildren(errorsHead("ahead", []), element("tbody", {}, ...rows.map(row)),
    ...simpleForecasts(run, simple, 6));
}

// The errors of simple forecasts, which a run should be better than, as a part of the table below it.
function simpleForecasts(run, rows, columns) {
  if (!rows.length) return [];
  const title = element("th", { colspan: columns, scope: "rowgroup", class: "text" },
    "simple forecasts" + (content.data.length > 1 ? ` on ${dataOf(run).name}` : "") + " to compare with");
  return [element("tbody", { class: "simple" }, element("tr", {}, title), ...rows)];
}

function manyRuns() {
  const { runs } = content;
  const errors = runs.map((run) => (state.step === 0 ? run.test?.overall : run.test?.per_step[state.step - 1]));
  const least = {};
  for (const figure of [...MASKED, ...UNMASKED]) {
    // Errors on different data may have different units: no minimum is marked.
    const known = errors.map((e) => e?.[figure]).filter((v) => v !== null && v !== undefined);
    if (content.data.length === 1 && known.length > 1) least[figure] = Math.min(...known);
  }
  const simple = theRun().baselines.map((baseline) => element("tr", { "data-row": baseline.name },
    element("th", { scope: "row" }, baseline.name), element("td", { class: "text" }),
    ...errorCells(state.step === 0 ? baseline.overall : baseline.per_step[state.step - 1]),
    element("td", { class: "group" })));
  at("errors").replaceChildren(
    errorsHead("run", ["best round", "bytes until that round"]),
    element("tbody", {}, ...runs.map((run, i) => {
      const best = run.rounds.find((round) => round.round === run.best);
      const style = `background:${styleOf(run).color}`;
      return element("tr", { class: i === state.run ? "shown" : null, "data-row": run.name },
        element("th", { scope: "row" }, element("button", {
          type: "button", "aria-pressed": String(i === state.run), title: "Select this run", onclick: () => pick(i),
        }, element("i", { class: "swatch", style }), run.name)),
        element("td", { class: "text" }, `${run.best} of ${run.rounds.length}${run.finished ? "" : ", not finished"}`),
        ...errorCells(errors[i], least),
        element("td", { class: "group" }, bytes(best.training_bytes.per_node)));
    })),
    ...simpleForecasts(theRun(), simple, 8));
}

part(["run", "step", "theme"], () => {
  const run = theRun(), single = content.runs.length === 1;
  const ahead = state.step === 0 ? "over all steps ahead" : aheadName(run, state.step);
  const soFar = run.finished ? "" : " so far (the run is not finished)";
  at("errors-hint").textContent = single
    ? `${run.method}: errors of round ${run.best} of ${run.rounds.length}, the best on the validation split${soFar}, in the unit of the readings.`
    : `Errors of each run's best round, ${ahead}, in the unit of the readings. ${content.data.length === 1 ? "The lowest are bold. " : ""}Bytes are counted per node. ` +
      "Select a name to see that run below.";
  if (!run.test) at("errors-hint").textContent += " Test errors appear once a run is finished or its data are available.";
  single ? oneRun() : manyRuns();
});

// How good the intervals are: a row for each run, three columns for each level.
function intervalsTable(runs, levels) {
  const ofLevel = (run, level) => {
    const found = run.test?.intervals?.[level];
    return state.step === 0 ? found?.overall : found?.per_step[state.step - 1];
  };
  const head = element("thead", {},
    element("tr", {}, element("th", { rowspan: 2, scope: "col", class: "text" }, "run"),
      ...levels.map((level) => element("th", { colspan: 3, scope: "colgroup", class: "group" }, `${level} % interval`))),
    element("tr", {}, ...levels.flatMap(() => ["coverage", "mean width", "interval score"].map((name, i) =>
      element("th", { scope: "col", class: i ? null : "group" }, name)))));
  const cells = (errors) => [share(errors?.coverage), number(errors?.width), number(errors?.score)];
  return [head, element("tbody", {}, ...runs.map((run) => element("tr", { "data-row": run.name },
    element("th", { scope: "row" }, run.name),
    ...levels.flatMap((level) => cells(ofLevel(run, level)).map((text, i) =>
      element("td", { class: i ? null : "group" }, text))))))];
}

part(["run", "step"], () => {
  const runs = content.runs.filter((run) => Object.keys(run.test?.intervals ?? {}).length);
  at("intervals-part").hidden = !runs.length;
  if (!runs.length) return;
  const levels = Object.keys(runs[0].test.intervals);
  const ahead = state.step === 0 ? "over all steps ahead" : aheadName(theRun(), state.step);
  at("intervals-hint").textContent = `Coverage is the share of observed readings within their intervals, ${ahead}; it should equal the level. ` +
    "Widths and scores are in the unit of the readings: the lower the interval score, the better.";
  at("intervals").replaceChildren(...intervalsTable(runs, levels));
});

part(["run", "figure", "step", "theme"], () => {
  aheadChart("ahead", content.runs, (run) => run.test?.per_step.map((errors) => errors[state.figure]), false);
});
