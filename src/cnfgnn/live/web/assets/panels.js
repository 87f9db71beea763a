// How the service is: the tiles above the map, the banner, and who is late, what is wrong, which model it is.

import { bar, list, tile } from "./blocks.js";
import { at, bytes, clockTime, count, element, exactSpan, isNumber, moment, number, seconds, share, span, withTimes } from "./format.js";
import { ORDER, quality } from "./sensor.js";
import { change, late, newest, part, serviceNow, state } from "./state.js";

// ---- the connection -----------------------------------------------------------------------------------

const SAYS = { connecting: "connecting", live: "live", lost: "connection lost", token: "token needed" };

part(["connection", "stale", "health"], () => {
  const shown = state.connection.state === "live" && state.stale ? "stale" : state.connection.state;
  const pill = at("connection");
  const before = pill.dataset.state;
  pill.dataset.state = shown;
  at("connection-text").textContent = SAYS[shown] ?? shown;
  if (before !== shown && ["live", "lost"].includes(shown) && ["live", "lost", "stale"].includes(before)) at("said").textContent = SAYS[shown];
});

part(["connection", "stale", "health", "tick"], () => {
  const [kind, sentence] = trouble();
  at("banner").hidden = !sentence;
  at("banner").dataset.kind = kind;
  at("retry").hidden = state.connection.state !== "lost";
  if (at("banner-text").textContent !== sentence) at("banner-text").textContent = sentence;
});

function trouble() {
  const { connection, health, forecast } = state;
  if (connection.state === "lost") {
    const shown = forecast ? ` What you see is as of ${clockTime(newest())}.` : "";
    return ["bad", `No connection to the service (${connection.why}); the page tries again by itself.${shown}`];
  }
  if (connection.state !== "live") return ["", ""];
  const problems = Object.entries(health?.problems ?? {}).map(([name, sentence]) => `${name}: ${sentence}`);
  if (state.stale) {
    const until = forecast ? `: they could be used until ${moment(seconds(forecast.validUntil), serviceNow())}` : "";
    return ["bad", [`The forecasts are out of date${until}, and no newer ones have been made.`, ...problems].join(" ")];
  }
  if (!forecast) return ["fair", "The service has not made a forecast yet."];
  if (health?.server === "unreachable") problems.unshift("the server of the federation cannot be reached, and this site goes on by itself");
  return problems.length ? ["warn", `Something does not work: ${problems.join("; ")}`] : ["", ""];
}

// ---- tiles ----------------------------------------------------------------------------------------------

function forecastTile() {
  const step = newest(), until = seconds(state.forecast?.validUntil);
  const under = state.stale ? `stale since ${moment(until, step)}` : `next one by ${moment(until, step)}`;
  return tile("Newest forecast", clockTime(step), under, state.stale ? "bad" : "");
}

function sensorTile() {
  const counts = new Map();
  for (const { quality: name } of Object.values(state.forecast?.sensors ?? {})) counts.set(name, (counts.get(name) ?? 0) + 1);
  const parts = [...counts].sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
  const words = parts.map(([name, amount]) => `${amount} ${name}`).join(", ");
  const full = counts.get("full") ?? 0, coloured = bar(parts.map(([name, amount]) => [quality(name)[0], amount]), words);
  return tile("Sensors", String(state.sensors.length), [`${full} with all readings`, coloured]);
}

function errorTile({ rmse, coverage }) {
  const [narrowest] = Object.entries(coverage ?? {}).filter(([, value]) => isNumber(value)).sort(([a], [b]) => a - b);
  const words = narrowest ? `${share(narrowest[1])} in the ${narrowest[0]}\u00a0% interval` : "of all sensors";
  return tile("RMSE lately", number(rmse), isNumber(rmse) ? words : "too few readings yet");
}

const switches = () => [...(state.model?.switches ?? [])].sort((a, b) => seconds(b.time) - seconds(a.time));

// How long ago by the clock that the time was written with: a time with an offset is the machine's own.
function ago(text) {
  const then = seconds(text);
  const now = /(Z|[+-]\d\d:?\d\d)$/.test(text ?? "") ? Date.now() / 1000 : serviceNow();
  return then === null || now === null || now < then ? null : now - then;
}

const sinceWords = (text) => (ago(text) === null ? `since ${moment(seconds(text), null)}` : `for ${span(ago(text))}`);
const agoWords = (text) => (ago(text) === null ? moment(seconds(text), null) : `${span(ago(text))} ago`);

function modelTile() {
  const [last] = switches();
  const age = ago(state.model.trained);
  const under = last ? `last switch ${agoWords(last.time)}` : "no switch so far";
  return tile("Model age", age === null ? "–" : span(age), under);
}

function lateTile() {
  const found = late();
  const [first] = found;
  const under = !first ? "all readings have arrived" : first.last === null ? `${first.id}, no reading` : `${first.id}, by ${span(newest() - first.last)}`;
  return tile("Late", String(found.length), under, found.length ? "warn" : "");
}

function alarmTile() {
  const alarms = state.watch.alarms ?? [];
  return tile("Alarms", String(alarms.length), alarms.length ? [alarms[0].kind, alarms[0].sensor].filter(Boolean).join(": ") : "nothing is wrong", alarms.length ? "bad" : "");
}

part(["forecast", "sensors", "watch", "model", "stale", "tick"], () => {
  const made = [forecastTile(), sensorTile(), lateTile()];
  if (state.watch?.overall) made.push(errorTile(state.watch.overall));
  if (state.watch) made.push(alarmTile());
  if (state.model) made.push(modelTile());
  at("tiles").replaceChildren(...made);
});

part(["model", "health"], () => {
  if (state.model?.site) at("served-by").textContent = "cnfgnn federation live";
  const run = state.model?.run ?? state.health?.run?.split(/[\\/]/).at(-1) ?? "";
  at("about").textContent = [state.model?.site && `Site ${state.model.site}`, run && `run ${run}`, state.model?.method && `method ${state.model.method}`].filter(Boolean).join(", ").replace(/^r/, "R");
});

part(["forecast"], () => {
  at("zone").textContent = state.forecast?.step.endsWith("Z") ? "Times are in UTC." : "Times are the local times of the readings.";
});

part(["watch", "stale", "connection"], () => {
  const alarms = state.watch?.alarms?.length ?? 0;
  const trouble = state.connection.state === "lost" ? "(lost) " : state.stale ? "(stale) " : alarms ? `(${alarms}) ` : "";
  document.title = `${trouble}Live forecasts`;
});

// ---- lists ----------------------------------------------------------------------------------------------

const chooser = (index, name) =>
  index < 0 ? element("b", {}, name) : element("button", { type: "button", class: "name", onclick: () => change({ sensor: index }) }, name);

part(["forecast", "sensors"], () => {
  const found = late(), step = newest();
  at("late-hint").hidden = step === null;
  at("late-hint").textContent = found.length
    ? `${count(found.length, "sensor has", "sensors have")} sent no reading for ${clockTime(step)}.`
    : `Every sensor has sent its reading for ${clockTime(step)}.`;
  list("late", found.map(({ id, index, last }) => [id, index, last === null ? "no reading" : `${span(step - last)} late`]), ([id, index, words]) =>
    element("li", {}, chooser(index, id), element("span", {}, words)));
});

let alarmsBefore = 0;
part(["watch", "sensors"], () => {
  const alarms = state.watch?.alarms ?? [];
  at("alarms-card").hidden = !state.watch;
  at("alarms-hint").hidden = alarms.length > 0;
  const index = new Map(state.sensors.map(({ id }, i) => [id, i]));
  const rows = alarms.map(({ sensor, kind, text }) => [sensor, index.get(sensor) ?? -1, kind, withTimes(text, newest())]);
  if (rows.length > alarmsBefore) at("said").textContent = `Alarm: ${rows[0][3]}`;
  alarmsBefore = rows.length;
  list("alarms", rows, ([sensor, place, kind, text]) =>
    element("li", { class: "alarm" }, element("span", { class: "when" }, element("span", { class: "badge bad" }, kind), sensor === null ? element("b", {}, "all sensors") : chooser(place, sensor)), element("span", { class: "text" }, text)));
});

part(["health"], () => {
  const { lines, last } = state.health?.refused ?? { lines: 0, last: [] };
  at("refused-card").hidden = !lines;
  at("refused-hint").textContent = `${count(lines, "line of the files is", "lines of the files are")} left out. The last:`;
  list("refused", last, (sentence) => element("li", { class: "alarm" }, element("span", { class: "text" }, sentence)));
});

function lastTraining({ trainings }) {
  const last = (trainings ?? []).at(-1);
  return last ? `${last.outcome}, begun ${agoWords(last.time)}` : null;
}

part(["model", "sensors", "tick"], () => {
  const { model } = state;
  at("model-card").hidden = !model;
  const pairs = !model ? [] : [["Site", model.site], ["Run", model.run], ["Method", model.method], ["Round", isNumber(model.round) ? String(model.round) : null], ["Trained", agoWords(model.trained)], ["In use", sinceWords(model.loaded)], ["Trains again", model.training ? "training now" : model.retrainEvery ? `every ${exactSpan(model.retrainEvery)}` : null], ["Last training", lastTraining(model)], ["Switches so far", String(switches().length)]];
  at("model").replaceChildren(...pairs.filter(([, value]) => value).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  list("switches", switches().slice(0, 8), (made) =>
    element("li", { class: "alarm" }, element("small", { class: "when" }, moment(seconds(made.time), null)), element("b", {}, `${made.from} → ${made.to}`), element("span", { class: "text" }, made.why ?? "")));
});

// To the server of a federation: a service on its own sends nothing.
part(["model"], () => {
  const { tasks, total } = state.model?.sent ?? {};
  at("sent-card").hidden = !tasks?.length;
  if (!tasks) return;
  at("sent-hint").textContent = `Altogether ${bytes(total.sent)} in ${count(total.messages, "message")}; cnfgnn federation sent tells more.`;
  list("sent", tasks, ({ day, do: kind, run, rounds, sent, messages }) =>
    element("li", {}, element("span", {}, element("small", { class: "when" }, day), " ", element("b", {}, [kind, run].filter(Boolean).join(" "))), element("span", {}, [rounds && count(rounds, "round"), bytes(sent), count(messages, "message")].filter(Boolean).join(", "))));
});
