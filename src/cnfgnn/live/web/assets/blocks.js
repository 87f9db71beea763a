// What the page of a service and that of a federation are made of: tiles, bars and lists.

import { at, element } from "./format.js";

const MOST_ROWS = 40; // in a list

export function tile(name, value, under, kind = "") {
  return element("div", { class: `tile ${kind}` }, element("dt", {}, name), element("dd", {}, element("strong", {}, value), element("span", { class: "under" }, ...[under].flat())));
}

// A bar of coloured parts, each as long as its amount: [[class, amount]].
export function bar(parts, words) {
  const made = element("span", { class: "bar", role: "img", "aria-label": words, title: words });
  for (const [kind, amount] of parts.filter(([, amount]) => amount > 0)) {
    const piece = element("i", { class: kind });
    piece.style.flexGrow = amount;
    made.append(piece);
  }
  return made;
}

// Lists are only built anew when they differ, so that whoever uses the keyboard does not lose their place.
const listed = new Map();
export function list(id, rows, draw) {
  const content = JSON.stringify(rows);
  if (listed.get(id) === content) return;
  listed.set(id, content);
  const place = [...at(id).querySelectorAll("button")].indexOf(document.activeElement);
  const more = rows.length > MOST_ROWS ? [element("li", { class: "hint" }, `and ${rows.length - MOST_ROWS} more`)] : [];
  at(id).replaceChildren(...rows.slice(0, MOST_ROWS).map(draw), ...more);
  if (place >= 0) at(id).querySelectorAll("button")[Math.min(place, rows.length - 1)]?.focus();
}
