// Follow the service: load what is there, then its forecasts as they come; if the connection is lost, begin again.

import { at, seconds } from "./format.js";
import "./map.js";
import "./chart.js";
import "./panels.js";
import { chosenBefore } from "./sensor.js";
import { follow } from "./connection.js";
import { ask, askIfThere, events } from "./service.js";
import { change, chosenId, forget, isRealTime, part, remember, serviceNow, setClock, state } from "./state.js";

const REFRESH_MS = 5000;
const RANGE_MS = 3_600_000;
const PATIENCE_MS = 1000;
const WATCH_MS = 2000; // errors and alarms of many sensors are long: not with every forecast of a fast recording

// ---- what is there --------------------------------------------------------------------------------------

async function load() {
  const found = await ask("/sensors?steps=1");
  setClock(found.now, found.speed);
  const same = found.sensors.length === state.sensors.length && found.sensors.every(({ id }, i) => id === state.sensors[i].id);
  if (!same) {
    const sensor = chosenBefore(found.sensors);
    forget();
    change({ sensors: found.sensors, sensor, history: null, watch: null });
  }
  change({ step: found.step, unit: found.unit ?? "", edges: found.edges ?? [], range: found.range ?? null });
  at("main").hidden = !found.sensors.length;
  await Promise.all([refreshHealth(), refreshWatch(), refreshModel(), refreshHistory()]);
}

let toldStale = false; // as the service said last, with its health or with a forecast
async function refreshHealth() {
  const health = await ask("/health", [503]);
  setClock(health.now);
  toldStale = health.status === "stale";
  change({ health });
  watchAge();
}

const lacking = new Set(); // routes that this service does not have
async function refreshRoute(path, key) {
  if (lacking.has(path)) return;
  const [status, found] = await askIfThere(path);
  if (status === 404) lacking.add(path);
  change({ [key]: found });
}

const refreshModel = () => refreshRoute("/model", "model");

let watchedAt = -Infinity;
async function refreshWatch() {
  if (performance.now() - watchedAt < WATCH_MS) return;
  watchedAt = performance.now();
  await refreshRoute("/watch", "watch");
}

async function historyOf(id) {
  const found = await ask(`/sensors?sensor=${encodeURIComponent(id)}`);
  return { id, times: found.times.map(seconds), readings: found.sensors[0].readings };
}

function refreshWatchNow() {
  watchedAt = -Infinity;
  return refreshWatch();
}

async function refreshHistory() {
  const id = chosenId();
  if (id === undefined) return;
  const history = await historyOf(id);
  if (chosenId() === id) change({ history });
}

// A page on a wall stays open for weeks: what is a usual reading changes.
async function refreshRange() {
  const { range } = await ask("/sensors?steps=1");
  change({ range: range ?? null });
}

// One refresh at a time; what is asked for meanwhile follows afterwards.
const wanted = new Set();
let refreshing = false;
async function refresh(...what) {
  for (const one of what) wanted.add(one);
  if (refreshing) return;
  refreshing = true;
  while (wanted.size) {
    const now = [...wanted];
    wanted.clear();
    await Promise.allSettled(now.map((one) => one())); // the stream notices if the connection is lost
  }
  refreshing = false;
}

// ---- what comes -----------------------------------------------------------------------------------------

// If forecasts come faster than they can be shown, some are left out, never the last.
let waiting = null, showing = false;
async function receive(forecast) {
  remember(forecast);
  if (seconds(forecast.made) > serviceNow()) setClock(forecast.made);
  waiting = forecast;
  if (showing) return;
  showing = true;
  while (waiting) {
    const next = waiting;
    waiting = null;
    await show(next);
  }
  showing = false;
}

// A forecast is shown together with the reading that it follows, unless that takes too long.
async function show(forecast) {
  const late = new Promise((resolve) => setTimeout(resolve, PATIENCE_MS, null));
  const history = await Promise.race([historyOf(chosenId()).catch(() => null), late]);
  change({ forecast, ahead: Math.min(state.ahead, forecast.times.length), history: history?.id === chosenId() ? history : state.history });
  toldStale = Boolean(forecast.stale);
  watchAge();
  refresh(refreshWatch);
}

// The service knows best whether its forecast may be used; without it, the time tells.
function watchAge() {
  const until = seconds(state.forecast?.validUntil);
  const passed = until !== null && isRealTime() && serviceNow() > until;
  change({ stale: passed || (state.connection.state === "live" && toldStale) });
}

// Another model is in use: its card is drawn anew, and whoever cannot see it is told.
function switched({ from, to }) {
  at("said").textContent = `Model ${to} is in use instead of ${from}.`;
  refresh(refreshModel);
}

follow(
  async (heard) => {
    await load();
    for await (const [kind, content] of events(() => change({ connection: { state: "live" } }))) {
      heard();
      if (kind === "forecast") receive(content);
      else if (kind === "alarms") refresh(refreshWatchNow);
      else if (kind === "switch") switched(content);
    }
  },
  (connection) => {
    if (connection.state === "lost") lacking.clear(); // another version of the service may come back
    change({ connection });
  },
);

// ---- time -------------------------------------------------------------------------------------------------

part(["sensor"], () => refresh(refreshHistory));
setInterval(() => {
  if (!document.hidden && state.connection.state === "live") refresh(refreshHealth, refreshHistory, refreshWatch, refreshModel);
}, REFRESH_MS);
setInterval(() => refresh(refreshRange), RANGE_MS);
setInterval(() => {
  watchAge();
  change({ tick: state.tick + 1 });
}, 1000);
document.addEventListener("themechange", () => change({ theme: document.documentElement.dataset.theme }));
change({ theme: document.documentElement.dataset.theme });
