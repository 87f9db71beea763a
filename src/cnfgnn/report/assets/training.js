// Training: loss by round, bytes by verb, and settings.

// Losses of different kinds cannot be compared: one chart each.
part(["run", "theme"], () => {
  const kinds = [...new Set(content.runs.map((run) => run.loss_name))].sort();
  while (at("losses").children.length < kinds.length)
    at("losses").append(element("div", { class: "chart", role: "img", "aria-label": "Validation loss by round" }));
  kinds.forEach((kind, k) => {
    const runs = content.runs.filter((run) => run.loss_name === kind);
    const traces = runs.flatMap((run) => {
      const style = styleOf(run), best = run.rounds.find((round) => round.round === run.best);
      const width = run === theRun() ? 2.5 : 1.5;
      return [
        {
          name: run.name, legendgroup: run.name, x: run.rounds.map((r) => r.round), y: run.rounds.map((r) => r.loss),
          mode: run.rounds.length > 40 ? "lines" : "lines+markers", marker: { size: 4 }, line: { ...style, width },
          ...formatted(run.rounds.map((r) => r.loss)),
        },
        {
          name: `${run.name}, best`, legendgroup: run.name, showlegend: false, hoverinfo: "skip",
          x: [best.round], y: [best.loss], mode: "markers",
          marker: { symbol: "star", size: 14, color: style.color, line: { color: colour("card"), width: 1 } },
        },
      ];
    });
    const most = Math.max(...runs.map((run) => run.rounds.length));
    draw(at("losses").children[k], traces, {
      showlegend: runs.length > 1,
      xaxis: axis({ title: "round", ...(most <= 12 ? { dtick: 1 } : {}) }),
      yaxis: axis({ title: kind }),
      legend: { orientation: "h", x: 0, y: -0.28, yanchor: "top" },
    });
  });
  const run = theRun(), best = run.rounds.find((round) => round.round === run.best);
  at("loss-hint").textContent = `Stars mark best rounds. ${run.name}: round ${run.best} of ${run.rounds.length}, loss ${number(best.loss)}.`;
});

part(["run", "count", "theme"], () => {
  const run = theRun(), column = state.count === "per_node" ? 3 : 4;
  const best = run.rounds.find((round) => round.round === run.best);
  const how = state.count === "per_node" ? "shared tensors counted once per node, as in the paper" : "shared tensors counted once per site, as on the wire";
  const none = run.ledger.every((item) => item[column] === 0);
  at("bytes-hint").textContent = none
    ? `${run.name}: nothing was sent.`
    : `${run.name}, ${how}. Training moved ${bytes(best.training_bytes[state.count])} until the best round; the chart shows the whole run.`;
  at("bytes").hidden = at("bytes-details").hidden = none;
  at("bytes").closest(".card").classList.toggle("brief", none);
  if (none) return;
  const order = ["evaluation", "training", "set-up"];
  const rows = [...new Set(run.ledger.map((item) => `${item[0]}: ${item[1]}`))]
    .sort((a, b) => order.indexOf(a.split(":")[0]) - order.indexOf(b.split(":")[0]));
  const amount = (name, way) => run.ledger.find((item) => `${item[0]}: ${item[1]}` === name && item[2] === way)?.[column] ?? 0;
  const ways = [["down", "down to the nodes", "#1f83c4"], ["up", "up to the server", "#e08e00"]];
  at("bytes").style.height = `${80 + 26 * rows.length}px`;
  draw("bytes", ways.map(([way, name, color]) => ({
    type: "bar", orientation: "h", name, y: rows, x: rows.map((r) => amount(r, way)), marker: { color },
    text: rows.map((r) => bytes(amount(r, way))), textposition: "none", hovertemplate: "%{text}",
  })), {
    barmode: "stack", bargap: 0.35, hovermode: "y unified", showlegend: true,
    xaxis: axis({ ...byteTicks(Math.max(...rows.map((r) => amount(r, "up") + amount(r, "down")))) }),
    yaxis: axis({ ticksuffix: " " }),
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", traceorder: "normal" },
    margin: { l: 8, r: 16, t: 28, b: 8 },
  });
  const cells = (item) => [...item.slice(0, 3).map((text) => element("td", { class: "text" }, text)),
    ...item.slice(3).map((n) => element("td", {}, n.toLocaleString("en")))];
  at("bytes-table").replaceChildren(
    element("thead", {}, element("tr", {}, ...["purpose", "verb", "direction", "per node", "per site"].map((name, i) =>
      element("th", { scope: "col", class: i < 3 ? "text" : null }, name)))),
    element("tbody", {}, ...run.ledger.map((item) => element("tr", {}, ...cells(item)))));
});

// Ticks at round numbers of a readable unit.
function byteTicks(most) {
  const factor = [2 ** 30, 2 ** 20, 2 ** 10, 1].find((f) => most >= f) ?? 1;
  const rough = most / factor / 4, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) ?? 1;
  const tickvals = [0, 1, 2, 3, 4, 5].map((k) => k * step * factor);
  return { tickvals, ticktext: tickvals.map((v) => (v ? bytes(v).replace(/\.00 /, " ") : "0")), range: [0, most * 1.03] };
}

function settings() {
  const { runs } = content, keys = Object.keys(runs[0].settings);
  const shown = (value) => (Array.isArray(value) ? value.join(", ") : String(value)) || "–";
  const differ = keys.filter((key) => new Set(runs.map((run) => shown(run.settings[key]))).size > 1);
  const same = keys.filter((key) => !differ.includes(key));
  if (differ.length) {
    const cells = (key) => runs.map((run) => element("td", {}, shown(run.settings[key])));
    at("settings").append(
      element("p", { class: "hint" }, "Settings that differ:"),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of settings that differ" },
        element("table", {},
          element("thead", {}, element("tr", {}, ...["setting", ...runs.map((run) => run.name)].map((name) =>
            element("th", { scope: "col", class: "text" }, name)))),
          element("tbody", {}, ...differ.map((key) =>
            element("tr", { "data-key": key }, element("th", { scope: "row" }, key), ...cells(key)))))));
  }
  at("settings").append(element("details", { open: runs.length === 1 },
    element("summary", {}, runs.length > 1 ? `The ${same.length} settings that all runs share` : `All ${same.length} settings`),
    element("dl", { class: "pairs" }, ...same.map((key) =>
      element("div", { "data-key": key }, element("dt", {}, key), element("dd", {}, shown(runs[0].settings[key])))))));
}
