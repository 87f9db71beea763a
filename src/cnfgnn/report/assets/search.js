// Choosing one of many sensors: a list of those that are shown in full, and a search for any of them.

const KIND_NAMES = { named: "asked for", highest: "highest errors", typical: "typical errors", lowest: "lowest errors" };
const MOST_FOUND = 30;

part(["run", "sensor"], () => {
  const data = theData();
  at("search").hidden = !data.many;
  at("search").parentElement.classList.toggle("many", Boolean(data.many));
  at("not-in-full").hidden = !data.many || !theRun().forecasts || placeOf(data, state.sensor) !== undefined;
  if (!data.many) return;
  const groups = Object.entries(data.many.kinds).filter(([, sensors]) => sensors.length);
  const option = (i) => element("option", { value: i }, data.sensors[i]);
  const listed = groups.some(([, sensors]) => sensors.includes(state.sensor));
  at("sensor").replaceChildren(...(listed ? [] : [option(state.sensor)]), ...groups.map(([kind, sensors]) =>
    element("optgroup", { label: KIND_NAMES[kind] }, ...sensors.map(option))));
  at("sensor").value = state.sensor;
  at("not-in-full").textContent = `The readings and forecasts of this sensor are not on the page, which has those of ${data.many.full.length} ` +
    `of ${data.sensors.length.toLocaleString("en")} sensors: see the list above. To add it, write the page with ` +
    `cnfgnn report --sensor ${data.sensors[state.sensor]}.`;
});

// Names that begin with what was typed come first, then those that contain it.
function matches(typed) {
  const wanted = typed.toLowerCase(), begin = [], contain = [];
  for (const id of theData().sensors) {
    const found = id.toLowerCase().indexOf(wanted);
    if (found === 0) begin.push(id);
    else if (found > 0 && contain.length < MOST_FOUND) contain.push(id);
    if (begin.length === MOST_FOUND) break;
  }
  return [...begin, ...contain].slice(0, MOST_FOUND);
}

function listenToSearch() {
  const field = at("search");
  const choose = (id) => {
    const sensor = theData().sensors.indexOf(id);
    if (sensor >= 0) change({ sensor });
    return sensor >= 0;
  };
  field.addEventListener("input", () => {
    const found = field.value ? matches(field.value) : [];
    at("found").replaceChildren(...found.map((id) => element("option", { value: id })));
    choose(field.value);
  });
  field.addEventListener("change", () => {
    // Enter takes the first match of a part of a name.
    const found = field.value ? matches(field.value) : [];
    if (!choose(field.value) && found.length) choose((field.value = found[0]));
  });
}
