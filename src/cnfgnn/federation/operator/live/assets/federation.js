// The federation as its operator sees it: who is there, how fast, which model is in use. There is no reading in it.

import { bar, list, tile } from "./blocks.js";
import { follow } from "./connection.js";
import { at, clockTime, count, day, element, exactSpan, isNumber, seconds, span } from "./format.js";
import { events } from "./service.js";

const SAYS = { connecting: "connecting", live: "live", lost: "connection lost", token: "token needed", away: "not running" };
const OUTCOMES = { better: "good", "not better": "fair", "too few readings": "warn" };

let state = null; // as the server told it last
let heardAt = 0; // when that was, by the clock of the browser
let connection = { state: "connecting" };

// ---- words ----------------------------------------------------------------------------------------------

const now = () => state.now + (performance.now() - heardAt) / 1000;
const ago = (then) => (isNumber(then) ? `${span(Math.max(0, now() - then))} ago` : "never");
const duration = (length) => (!isNumber(length) ? "–" : length < 1 ? `${Math.round(length * 1000)} ms` : `${length.toFixed(1)} s`);
const utc = (second) => new Date(second * 1000).toISOString().slice(0, 16).replace("T", " ");
const percent = (part, whole) => `${((100 * part) / whole).toFixed(1)} %`;
const levels = (sums) => Object.keys(sums).filter((name) => name !== "count").sort((a, b) => a - b);
const asSentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
const sites = () => Object.entries(state.sites);
const runs = () => state.state === "running";

// How a site takes part: [the colour, in a word or two].
function part(site) {
  if (!runs()) return ["fair", "not known"];
  if (!site.reachable) return ["bad", "away"];
  if (String(site.quality).startsWith("absent")) return ["bad", "takes no part"];
  return site.quality === "full" ? ["good", "full"] : ["warn", site.quality ?? "no step yet"];
}

// The sums of all sites that tell them, and how many do; null if none does.
function coverageTold() {
  const found = sites().map(([, site]) => site.coverage).filter(Boolean);
  if (!found.length) return null;
  const all = {};
  for (const sums of found) for (const [name, sum] of Object.entries(sums)) all[name] = (all[name] ?? 0) + sum;
  return [all, found.length];
}

// ---- tiles ----------------------------------------------------------------------------------------------

function stepTile() {
  const step = seconds(state.step), late = runs() && isNumber(state.every) && isNumber(state.made) && now() - state.made > 2.5 * state.every;
  return tile(step === null ? "Last step" : `Last step, ${day(step)}`, clockTime(step), state.steps ? `${ago(state.made)}, ${count(state.steps, "step")} so far` : "no step yet", late ? "warn" : "");
}

function siteTile() {
  const away = sites().filter(([, site]) => !site.reachable).map(([name]) => name), all = sites().length;
  if (all && !runs()) return tile("Sites there", "–", "not known");
  const under = !all ? "none is known yet" : away.length ? `${away.slice(0, 3).join(", ")}${away.length > 3 ? " and others" : ""} away` : "all are there";
  return tile("Sites there", all ? `${all - away.length} of ${all}` : "–", under, away.length ? (away.length === all ? "bad" : "warn") : "");
}

function sensorTile() {
  const all = sites().reduce((sum, [, site]) => sum + (site.sensors ?? 0), 0), sent = sites().reduce((sum, [, site]) => sum + (site.present || 0), 0);
  const words = `${sent} of ${count(all, "sensor")} sent a reading`;
  if (all && !runs()) return tile("Sensors with a reading", "–", "not known");
  return tile("Sensors with a reading", all ? `${sent} of ${all}` : "–", ["for their site's last step", bar([["good", sent], ["warn", all - sent]], words)]);
}

function exchangeTile() {
  return tile("Exchange, median", duration(state.median_seconds), `last ${duration(state.seconds)}, longest ${duration(state.most_seconds)}`);
}

function coverageTile([sums, tellers]) {
  const [level] = levels(sums);
  return tile(`Within the ${level} % intervals`, percent(sums[level], sums.count), `told by ${tellers} of ${count(sites().length, "site")}`);
}

function modelTile() {
  const last = state.switches.at(-1);
  const under = state.training ? "training another one" : last ? `last switch ${ago(last.time)}` : "no switch so far";
  return tile("Model age", isNumber(state.trained) ? span(now() - state.trained) : "–", under);
}

// ---- cards ----------------------------------------------------------------------------------------------

function pairs(facts) {
  return element("dl", { class: "pairs one" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function siteCard([name, site]) {
  const [kind, words] = part(site), sent = site.present || 0, lacking = Math.max(0, (site.sensors ?? 0) - sent);
  const step = seconds(site.step);
  const sums = site.coverage, newcomers = state.new_sensors?.[name] ?? [];
  const facts = [
    [step === null ? "Readings" : `Readings for ${clockTime(step)}`, kind === "bad" || kind === "fair" ? `– of ${site.sensors}` : `${sent} of ${site.sensors}`],
    ["Round trip", duration(site.latency)],
    ["Last heard", ago(site.last_seen)],
    ...(sums ? levels(sums).map((level) => [`Within the ${level} % intervals`, percent(sums[level], sums.count)]) : []),
    ...(sums ? [["Comparisons in a day", sums.count.toLocaleString("en")]] : []),
    ...(newcomers.length ? [["New sensors", newcomers.join(", ")]] : []),
  ];
  const why = site.problem && kind !== "good" ? [element("p", { class: "why" }, site.problem)] : [];
  const first = element("div", { class: "first" }, element("b", {}, name), element("span", { class: `badge ${kind}` }, words));
  return element("li", { class: "site" }, first, pairs(facts), ...why, bar([[kind, sent], ["rest", lacking]], `${sent} of ${count(site.sensors, "sensor")}`));
}

function modelPairs() {
  const every = state.retrain_every;
  return [
    ["Run", state.model ?? state.run],
    ["Method", state.method],
    ["Round", isNumber(state.round) ? String(state.round) : null],
    ["Trained", isNumber(state.trained) ? ago(state.trained) : null],
    ["In use", isNumber(state.model_since) ? `since ${utc(state.model_since)} UTC` : null],
    ["Trains again", every ? `every ${exactSpan(every)}` : "no: started without --retrain"],
    ["Rollback to", state.rollback_to],
  ].filter(([, value]) => value);
}

function drawTraining() {
  const { training, training_problem: problem } = state;
  at("under-way").hidden = !training;
  if (training) {
    const rounds = isNumber(training.rounds) ? `round ${training.round} of ${training.rounds}` : "getting ready";
    at("under-way-text").textContent = training.waiting ? "Waiting for sites." : `Under way: ${rounds}, began ${ago(training.began)}.`;
    const progress = at("under-way-bar");
    if (isNumber(training.rounds)) {
      progress.max = training.rounds;
      progress.value = training.done ?? training.round - 1;
    } else progress.removeAttribute("value");
  }
  const hint = problem ? `The last one failed: ${problem}` : training || state.trainings.length ? "" : "Nothing has been trained beside the service yet.";
  at("trainings-hint").textContent = hint;
  at("trainings-hint").hidden = !hint;
  list("trainings", [...state.trainings].reverse(), ({ outcome, text, time }) =>
    element("li", { class: "alarm" }, element("span", { class: "when" }, element("span", { class: `badge ${OUTCOMES[outcome] ?? "warn"}` }, outcome), element("small", {}, `began ${utc(time)} UTC`)), element("span", { class: "text" }, text)));
}

function drawSwitches() {
  at("switches-hint").textContent = state.switches.length ? "" : "The federation is still on the model that it went live with.";
  at("switches-hint").hidden = state.switches.length > 0;
  list("switches", [...state.switches].reverse(), ({ before, after, why, time }) =>
    element("li", { class: "alarm" }, element("small", { class: "when" }, `${utc(time)} UTC`), element("b", {}, `${before} → ${after}`), element("span", { class: "text" }, why)));
}

// ---- drawing --------------------------------------------------------------------------------------------

function draw() {
  drawConnection();
  at("main").hidden = !state;
  if (!state) return;
  at("about").textContent = [state.run && `Went live with run ${state.run}`, state.method && `method ${state.method}`].filter(Boolean).join(", ");
  const coverage = coverageTold();
  at("tiles").replaceChildren(stepTile(), siteTile(), sensorTile(), exchangeTile(), ...(coverage ? [coverageTile(coverage)] : []), modelTile());
  at("sites-hint").textContent = sites().length ? "" : "The sites are shown as soon as the task has begun.";
  at("sites-hint").hidden = sites().length > 0;
  at("sites").replaceChildren(...sites().map(siteCard));
  at("model").replaceChildren(pairs(modelPairs()));
  drawTraining();
  drawSwitches();
  document.documentElement.dataset.drawn = state.step ?? ""; // for tests
}

function drawConnection() {
  const shown = connection.state === "live" && state && !runs() ? "away" : connection.state;
  at("connection").dataset.state = shown === "away" ? "stale" : shown;
  at("connection-text").textContent = SAYS[shown] ?? shown;
  const [kind, sentence] = trouble();
  at("banner").hidden = !sentence;
  at("banner").dataset.kind = kind;
  at("retry").hidden = connection.state !== "lost";
  if (at("banner-text").textContent !== sentence) at("banner-text").textContent = sentence;
  const away = state ? sites().filter(([, site]) => !site.reachable).length : 0;
  document.title = `${connection.state === "lost" ? "(lost) " : away ? `(${away} away) ` : ""}Live federation`;
}

function trouble() {
  if (connection.state === "lost") return ["bad", `The command that serves this page does not answer (${connection.why}); the page tries again by itself.`];
  if (connection.state !== "live" || !state) return ["", ""];
  if (!runs()) {
    const away = state.state === "connecting" ? "The task is connecting to the sites." : state.old ? `The server's task runs, but ${state.old}.` : "The server's task does not run. The sites go on by themselves, and the command starts it again.";
    return [state.state === "connecting" ? "fair" : "bad", away];
  }
  const said = [state.problem, ...state.warnings].filter(Boolean);
  return said.length ? ["warn", said.map(asSentence).join(" ")] : ["", ""];
}

// ---- what comes -----------------------------------------------------------------------------------------

function tell(changed) {
  const before = connection.state;
  connection = changed;
  if (before !== changed.state && ["live", "lost"].includes(changed.state)) at("said").textContent = SAYS[changed.state];
  draw();
}

follow(async (heard) => {
  for await (const [kind, content] of events(() => tell({ state: "live" }))) {
    heard();
    if (kind === "switch") at("said").textContent = `Model ${content.after} is in use instead of ${content.before}.`;
    if (kind !== "status") continue;
    state = content;
    heardAt = performance.now();
    draw();
  }
}, tell);
setInterval(() => { if (state && !document.hidden) draw(); }, 1000);
