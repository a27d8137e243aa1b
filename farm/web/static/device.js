// Readings of one device over time: temperatures, battery, clocks (uPlot). Colours come from the page's own names.
"use strict";
(() => {
  const place = document.getElementById("plots");
  const names = { temperature: "Temperature, °C", battery: "Battery, %", clock: "Clocks, MHz" };
  const tones = ["--accent", "--busy", "--warm", "--hold", "--bad", "--good", "--going", "--off"];
  const dashes = [[], [6, 3], [2, 2], [8, 3, 2, 3]]; // distinct without colour, too
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // As the rest of the page says times: 24 hours, whatever the browser's language.
  const clock = (seconds, fine) => new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(fine && { second: "2-digit" }), hourCycle: "h23" });
  const clocks = (_, splits, axis, space, step) => splits.map((at) => (at == null ? "" : clock(at, step < 60)));
  let plots = [], span = 3600, latest = null, wanted = 0;

  function draw() {
    for (const plot of plots) plot.destroy();
    plots = [];
    place.replaceChildren();
    if (!latest || latest.at.length < 2) {
      const note = document.createElement("p");
      note.className = "legend-note";
      note.textContent = "Not enough readings yet: a device is probed every few seconds.";
      place.append(note);
      return;
    }
    const ink = token("--soft"), line = token("--line");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
    for (const [quantity, title] of Object.entries(names)) {
      const columns = latest.columns.filter((column) => column.quantity === quantity);
      if (!columns.length) continue;
      const figure = document.createElement("div");
      figure.className = "plot";
      figure.setAttribute("role", "img");
      figure.setAttribute("aria-label", `${title} over time: ${columns.map((c) => c.name).join(", ")}; the table above has the figures`);
      place.append(figure);
      const series = columns.map((column, i) => ({
        label: column.name, stroke: token(tones[i % tones.length]), width: 1.6, dash: dashes[Math.floor(i / 4) % dashes.length],
        points: { show: false }, spanGaps: false, value: (_, v) => (v == null ? "-" : `${v.toFixed(quantity === "temperature" ? 1 : 0)} ${column.unit}`),
      }));
      const range = quantity === "battery" ? [0, 100] : undefined;
      plots.push(new uPlot({
        title, width: figure.clientWidth || 600, height: 190, cursor: { sync: { key: "readings" }, drag: { x: true, y: false } },
        scales: { x: { min: Math.max(latest.asked - span, Math.min(latest.at[0], latest.asked - 300)), max: latest.asked }, y: range ? { range } : {} },
        axes: [{ ...axis, values: clocks, space: 80 }, { ...axis, size: 56 }], series: [{ value: (_, v) => (v == null ? "" : clock(v, true)) }, ...series],
      }, [latest.at, ...columns.map((column) => column.values)], figure));
    }
  }
  async function load() {
    const asked = ++wanted;
    try {
      const answer = await fetch(`${place.dataset.readings}?seconds=${span}`);
      if (!answer.ok || asked !== wanted) return;
      latest = { ...(await answer.json()), asked: Date.now() / 1000 };
      draw();
    } catch { /* the daemon is away: what is drawn stays, the page says "not connected" */ }
  }
  for (const button of document.querySelectorAll("[data-span]")) {
    button.addEventListener("click", () => {
      span = Number(button.dataset.span);
      for (const each of document.querySelectorAll("[data-span]")) each.setAttribute("aria-pressed", String(each === button));
      load();
    });
  }
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(draw, 200); });
  document.addEventListener("farm:theme", draw);
  setInterval(() => { if (!document.hidden && !place.matches(":hover")) load(); }, 15000);
  load();
})();
