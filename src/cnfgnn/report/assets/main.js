// Unpack the numbers, draw everything once, then react to the user.

try {
  const [arrays, plotly] = await Promise.all([inflated("arrays"), inflated("plotly")]);
  buffer = arrays;
  unpackSensors();
  document.head.append(element("script", {}, new TextDecoder().decode(plotly)));
  at("runs").hidden = false;
  summary();
  controls();
  settings();
  change({ theme: document.documentElement.dataset.theme, run: 0, sensor: firstSensor(theData()) });
  for (const [, draw] of parts) draw();
  listenToSensor();
  listenToSearch();
  document.addEventListener("themechange", () => change({ theme: document.documentElement.dataset.theme }));
  document.documentElement.dataset.ready = "yes";
} catch (problem) {
  at("unsupported").hidden = false;
  at("unsupported").textContent = "This browser is too old for this page: use one from 2023 or later.";
  throw problem;
}
