// The style of all charts, light and dark.

const RUN_COLOURS = ["#1f83c4", "#e08e00", "#0a9a73", "#c76aa0", "#8a6fd1", "#d0571a", "#7d8794"];
const DASHES = ["solid", "dot", "dash", "dashdot"];
const narrow = () => innerWidth < 620;

function styleOf(run) {
  const { runs } = content;
  const methods = [...new Set(runs.map((r) => r.method))];
  const place = runs.indexOf(run);
  if (runs.length <= RUN_COLOURS.length || methods.length === 1)
    return { color: RUN_COLOURS[place % 7], dash: DASHES[Math.floor(place / 7) % 4] };
  // Many runs: one colour per method, one dash per run of it.
  const among = runs.filter((r) => r.method === run.method).indexOf(run);
  return { color: RUN_COLOURS[methods.indexOf(run.method) % 7], dash: DASHES[among % 4] };
}

// A colour of the style sheet in the current theme.
const probe = document.createElement("i");
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function axis(more = {}) {
  return {
    gridcolor: colour("line"),
    linecolor: colour("line"),
    zeroline: false,
    automargin: true,
    fixedrange: true,
    ...more,
    title: { text: more.title ?? "", standoff: 8, font: { size: 12 } },
  };
}

function draw(place, traces, layout, config = {}) {
  const style = getComputedStyle(document.documentElement);
  const shared = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 12, color: colour("soft") },
    margin: { l: 8, r: 12, t: 8, b: 8 },
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: colour("card"),
      bordercolor: colour("line"),
      font: { color: colour("ink"), family: style.fontFamily },
    },
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" },
    dragmode: false,
    autosize: true,
  };
  return Plotly.react(typeof place === "string" ? at(place) : place, traces, { ...shared, ...layout }, {
    responsive: true,
    displayModeBar: false,
    displaylogo: false,
    ...config,
  });
}

// Errors by time ahead, one line per run; the selected step is marked.
function aheadChart(place, runs, values, legend) {
  const most = Math.max(...runs.map((run) => minutesOf(run, horizonOf(run))));
  const [unit, factor] = most > 240 ? ["hours", 60] : ["minutes", 1];
  const traces = runs.flatMap((run) => {
    const y = values(run);
    if (!y) return [];
    return {
      name: run.name,
      x: y.map((_, k) => minutesOf(run, k + 1) / factor),
      y,
      mode: "lines+markers",
      line: { ...styleOf(run), width: run === theRun() ? 2.5 : 1.5 },
      marker: { size: 5 },
      ...formatted(y),
    };
  });
  const mark = state.step === 0 ? [] : [{
    type: "line", yref: "paper", y0: 0, y1: 1, line: { color: colour("soft"), width: 1, dash: "dot" },
    x0: minutesOf(theRun(), state.step) / factor, x1: minutesOf(theRun(), state.step) / factor,
  }];
  return draw(place, traces, {
    shapes: mark,
    showlegend: legend && runs.length > 1,
    xaxis: axis({ title: `${unit} ahead`, ...(most === 60 ? { dtick: 15 } : {}) }),
    yaxis: axis({ title: FIGURES[state.figure], rangemode: "tozero" }),
  });
}
