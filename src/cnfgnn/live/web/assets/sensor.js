// The chosen sensor in words and numbers, and the list to choose from.

import { at, between, clockTime, count, element, exactSpan, isNumber, moment, number, seconds, share, span, withTimes } from "./format.js";
import { change, chosenId, horizon, levels, newest, part, state, told, watched } from "./state.js";

const QUALITIES = {
  full: ["good", "full", "The sensor and all its neighbours sent a reading."],
  "neighbours missing": ["fair", "neighbours missing", "A neighbour sent no reading."],
  "last embedding": ["fair", "last embedding", "The server is away: what is known of the neighbours is of an earlier step."],
  "no embedding": ["warn", "no embedding", "The server is away: the sensor's own readings alone."],
  "own readings missing": ["warn", "own readings missing", "The sensor sent no reading for this step."],
  fallback: ["warn", "fallback", "The sensor has been silent: this is what it usually reads, or its last reading."],
};
const CHOSEN = "cnfgnn-live-sensor";

export const ORDER = Object.keys(QUALITIES);
export const quality = (name) => QUALITIES[name] ?? ["warn", name ?? "no forecast", ""];

// About a quarter, a half and the whole of the time that is forecast.
const namedSteps = () => [...new Set([Math.round(horizon() / 4), Math.round(horizon() / 2), horizon()])].filter((step) => step > 0);

part(["sensors"], () => {
  const list = at("sensor");
  list.replaceChildren(...state.sensors.map(({ id }, i) => element("option", { value: i }, id)));
  list.value = state.sensor;
});
part(["sensor"], () => {
  at("sensor").value = state.sensor;
  try { sessionStorage.setItem(CHOSEN, chosenId()); } catch { /* then it is forgotten on reload */ }
});
at("sensor").addEventListener("change", (event) => change({ sensor: Number(event.target.value) }));

// The sensor that was chosen before the page was loaded again.
export function chosenBefore(sensors) {
  let id = null;
  try { id = sessionStorage.getItem(CHOSEN); } catch { /* the first one */ }
  return Math.max(0, sensors.findIndex((sensor) => sensor.id === id));
}

part(["forecast", "sensor", "sensors"], () => {
  const found = told(chosenId()), [kind, name, why] = quality(found?.quality), step = newest();
  if (step === null) return;
  const last = seconds(found?.lastReading);
  const when = last === null ? "No reading is known" : last < step ? `Last reading at ${moment(last, step)}, ${span(step - last)} before the others` : `Last reading at ${clockTime(last)}`;
  at("sensor-about").replaceChildren(element("span", { class: `badge ${kind}`, title: why }, name), ` ${when}.`);
});

part(["watch", "sensor", "sensors"], () => {
  const alarms = watched(chosenId())?.alarms ?? [];
  at("sensor-alarms").hidden = !alarms.length;
  at("sensor-alarms").replaceChildren(...alarms.map((text) => element("li", {}, withTimes(text, newest()))));
});

function figure(name, value, more = "") {
  const under = more ? [element("small", {}, more)] : [];
  return element("div", {}, element("dt", {}, name), element("dd", {}, value, ...under));
}

part(["forecast", "history", "sensor", "sensors"], () => {
  const id = chosenId(), found = told(id);
  const readings = state.history?.id === id ? state.history.readings : [];
  const last = readings.findLast(isNumber);
  const narrowest = levels(found).at(-1);
  const range = (k) => {
    const bounds = narrowest && [found.intervals[narrowest].low[k], found.intervals[narrowest].high[k]];
    return bounds?.every(isNumber) ? between(bounds[0], bounds[1]) : "";
  };
  const made = [figure("Last reading", number(last), state.unit)];
  for (const step of namedSteps()) made.push(figure(`In ${exactSpan(step * state.step)}`, number(found?.values[step - 1]), range(step - 1)));
  at("sensor-figures").replaceChildren(...made);
});

part(["watch", "sensor", "sensors"], () => {
  const errors = watched(chosenId());
  at("sensor-errors").hidden = !errors;
  if (!errors) return;
  const told = [isNumber(errors.rmse) ? `RMSE ${number(errors.rmse)} over ${count(errors.count ?? 0, "forecast")} of the last day` : "There are too few readings yet to tell the error"];
  if (isNumber(errors.skill)) told[0] += errors.skill < 0 ? `; the last value is ${share(-errors.skill)} better` : `, ${share(errors.skill)} better than the last value`;
  const covered = Object.entries(errors.coverage ?? {}).filter(([, value]) => isNumber(value)).sort(([a], [b]) => a - b);
  if (covered.length) told.push(covered.map(([level, value], k) => `${share(value)} ${k ? "" : "of the readings were "}inside the ${level}\u00a0% interval`).join(", "));
  at("sensor-errors").textContent = `${told.join(". ")}.`;
});

part(["forecast", "sensor", "sensors"], () => {
  const found = told(chosenId()), bounds = levels(found).reverse();
  const head = ["Time", "Forecast", ...bounds.map((level) => `${level} % interval`)];
  const largest = Math.max(...(found?.values ?? []).filter(isNumber).map(Math.abs), 0);
  const rows = (state.forecast?.times ?? []).map((time, k) => [
    clockTime(seconds(time)),
    number(found?.values[k], largest),
    ...bounds.map((level) => `${number(found.intervals[level].low[k], largest)} – ${number(found.intervals[level].high[k], largest)}`),
  ]);
  at("numbers").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...rows.map(([time, ...cells]) => element("tr", {}, element("th", { scope: "row" }, time), ...cells.map((cell) => element("td", {}, cell))))),
  );
});

// Said aloud when another sensor is chosen, not with every forecast.
part(["sensor"], () => {
  const found = told(chosenId());
  if (found) at("said").textContent = `Sensor ${chosenId()}: forecast in ${exactSpan(state.ahead * state.step)} ${number(found.values[state.ahead - 1])}, ${found.quality}`;
});
