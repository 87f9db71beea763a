// Where sensors are drawn: points with true proportions, north up.

import { isNumber } from "./format.js";

const METRES_PER_DEGREE = 111_320;

// { points: [[x, y]], unit: metres per 1 of x, or null, kind: "map", "graph" or "grid" }
export function placesOf(sensors) {
  const located = sensors.filter((s) => isNumber(s.latitude) && isNumber(s.longitude));
  if (located.length) return onMap(sensors, located);
  if (sensors.every((s) => isNumber(s.x) && isNumber(s.y)))
    return { points: sensors.map((s) => [s.x, -s.y]), unit: null, kind: "graph" };
  return { points: grid(sensors.length), unit: null, kind: "grid" };
}

// Sensors without a position stand in a row below the others.
function onMap(sensors, located) {
  const middle = located.reduce((sum, s) => sum + s.latitude, 0) / located.length;
  const shrink = Math.max(0.1, Math.cos((middle * Math.PI) / 180));
  const points = located.map((s) => [s.longitude * shrink, -s.latitude]);
  const [left, , right, bottom] = box(points);
  const width = right - left || 0.01, lost = sensors.length - located.length;
  let placed = 0, unplaced = 0;
  return {
    points: sensors.map((s) =>
      isNumber(s.latitude) && isNumber(s.longitude) ? points[placed++] : [left + (width * (unplaced++ + 0.5)) / lost, bottom + width / 10],
    ),
    unit: METRES_PER_DEGREE,
    kind: "map",
    lost,
  };
}

function grid(sensors) {
  const columns = Math.ceil(Math.sqrt(sensors * 1.3));
  return Array.from({ length: sensors }, (_, i) => [i % columns, Math.floor(i / columns)]);
}

function box(points) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    left = Math.min(left, x);
    right = Math.max(right, x);
    top = Math.min(top, y);
    bottom = Math.max(bottom, y);
  }
  return [left, top, right, bottom];
}
