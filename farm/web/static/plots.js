// Result plots: draws what figures carry in data-plot (farm/web/plots.py), one uPlot per panel on one axis of x.
// Colours are those of the page's theme; a plot is drawn anew when that or its width changes.
"use strict";
(() => {
  const drawn = new Map(); // figure -> {text, charts}
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const TONES = { a: "--busy", b: "--warm", warm: "--bad", warn: "--warn", quiet: "--soft", mark: "--accent", band: "--accent" };
  const tone = (name) => style(TONES[name] || "--busy");
  const faded = (color, share) => `color-mix(in srgb, ${color} ${share}%, transparent)`;
  const FONT = '12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';
  const WHOLE = [1, 2, 5].flatMap((step) => [0, 1, 2, 3, 4, 5].map((power) => step * 10 ** power)).sort((a, b) => a - b); // steps of a count
  const AXIS_PX = 70; // the same for all panels: their x axes lie under each other

  function number(value) {
    if (value == null) return "–";
    return Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
  }

  // Dates and times by the reader's clock: of an axis as short as its steps allow.
  const two = (n) => String(n).padStart(2, "0");
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = (at, fine) => `${two(at.getHours())}:${two(at.getMinutes())}${fine ? `:${two(at.getSeconds())}` : ""}`;
  const moment = (seconds) => (seconds == null ? "–" : `${day(new Date(seconds * 1000))} ${clock(new Date(seconds * 1000), true)}`);
  function dates(_, ticks, axis, space, step) {
    let shown = "";
    return ticks.map((tick) => {
      if (tick == null) return "";
      const at = new Date(tick * 1000), date = day(at), before = shown;
      shown = date;
      if (step >= 86400) return step >= 28 * 86400 ? date.slice(0, 7) : date.slice(5);
      return before === date ? clock(at, step < 60) : `${clock(at, step < 60)}\n${date.slice(5)}`;
    });
  }

  function seriesOf(line, count) {
    const color = tone(line.tone);
    const style = { label: line.name, stroke: color, value: (_, value) => number(value), spanGaps: line.kind === "line" };
    if (line.kind === "line") return { ...style, width: 1.6, points: { show: count < 40, size: 5, fill: color } };
    if (line.kind === "steps") return { ...style, width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: count < 60, size: 5, fill: color } };
    if (line.kind === "bars") return { ...style, width: 1, fill: faded(color, 45), paths: uPlot.paths.bars({ size: [1, Infinity], gap: 1 }), points: { show: false } };
    if (line.kind === "high" || line.kind === "low") return { ...style, paths: () => null, points: { show: false } };
    const size = line.kind === "beyond" ? 7 : count > 1200 ? 3 : count > 300 ? 4 : 5;
    return { ...style, paths: () => null, points: { show: true, size, width: 1, stroke: color, fill: faded(color, 55) } };
  }

  function errorBars(panel) { // from each high to its low, with a cap at both ends
    return (chart) => {
      const { ctx } = chart, cap = 4 * devicePixelRatio;
      panel.lines.forEach((line, place) => {
        if (line.kind !== "high" || !chart.series[place + 1].show) return;
        ctx.save();
        ctx.strokeStyle = tone(line.tone);
        ctx.lineWidth = devicePixelRatio;
        ctx.beginPath();
        panel.x.forEach((x, i) => {
          const high = line.values[i], low = panel.lines[place + 1].values[i];
          if (high == null || low == null) return;
          const at = chart.valToPos(x, "x", true), ends = [high, low].map((value) => chart.valToPos(value, "y", true));
          ctx.moveTo(at, ends[0]); ctx.lineTo(at, ends[1]);
          for (const end of ends) { ctx.moveTo(at - cap, end); ctx.lineTo(at + cap, end); }
        });
        ctx.stroke();
        ctx.restore();
      });
    };
  }

  function marks(panel) {
    return (chart) => {
      const { ctx, bbox } = chart;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.font = FONT.replace("12px", `${11 * devicePixelRatio}px`);
      let free = -Infinity; // where the next name of an upright mark may begin
      const named = [], beside = []; // names above the plot, and at its right edge
      for (const mark of panel.marks) {
        const color = tone(mark.tone), across = mark.axis === "x";
        const at = chart.valToPos(mark.at, mark.axis, true);
        if (mark.to != null) {
          const to = chart.valToPos(mark.to, mark.axis, true);
          ctx.fillStyle = faded(color, 20);
          if (across) ctx.fillRect(at, bbox.top, to - at, bbox.height);
          else ctx.fillRect(bbox.left, to, bbox.width, at - to);
          continue;
        }
        ctx.strokeStyle = color;
        ctx.lineWidth = (mark.tone === "quiet" ? 1 : 1.5) * devicePixelRatio;
        ctx.setLineDash(mark.tone === "quiet" ? [4 * devicePixelRatio, 4 * devicePixelRatio] : []);
        ctx.beginPath();
        if (across) { ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); }
        else { ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); }
        ctx.stroke();
        const gap = 8 * devicePixelRatio, width = ctx.measureText(mark.name).width;
        if (across && at - width / 2 > free) {
          named.push([mark.name, at]);
          free = at + width / 2 + gap;
        }
        if (!across) beside.push([mark.name, at]);
      }
      ctx.restore();
      ctx.save();
      ctx.font = FONT.replace("12px", `${11 * devicePixelRatio}px`);
      ctx.fillStyle = style("--soft");
      ctx.textAlign = "center";
      ctx.textBaseline = "alphabetic";
      for (const [name, at] of named) ctx.fillText(name, at, bbox.top - 5 * devicePixelRatio);
      ctx.textAlign = "right";
      let above = bbox.top + bbox.height; // the lowest first; a name too near the one below it stands above that
      for (const [name, at] of beside.sort((one, other) => other[1] - one[1])) {
        above = Math.min(at - 3 * devicePixelRatio, above - 13 * devicePixelRatio);
        ctx.fillText(name, bbox.left + bbox.width - 4 * devicePixelRatio, above);
      }
      ctx.restore();
    };
  }

  function chart(box, data, panel, last, width, key) {
    const axis = { stroke: style("--soft"), font: FONT, labelFont: FONT, labelGap: 2, ticks: { stroke: style("--line"), width: 1 }, grid: { stroke: style("--line"), width: 1 } };
    const range = (_, low, high) => {
      const most = Math.max(...panel.marks.filter((m) => m.axis === "y").map((m) => m.to ?? m.at), high);
      const least = Math.min(...panel.marks.filter((m) => m.axis === "y").map((m) => m.at), low);
      if (panel.log) return [least / 1.2, most * 1.2];
      if (panel.zero) return [0, panel.top ?? (most * 1.06 || 1)];
      const lack = panel.least_span - (most - least);
      const room = lack > 0 ? lack / 2 : (most - least) * 0.12 || Math.abs(most) * 0.01 || 1;
      const bottom = panel.top == null ? least - room : Math.min(least, low) - (panel.top - least) * 0.12;
      return [panel.top != null && lack > 0 ? bottom - lack : bottom, panel.top ?? most + room];
    };
    const options = {
      width,
      height: panel.height + (last ? (data.time ? 38 : 24) : 0),
      padding: [panel.marks.some((m) => m.axis === "x") ? 20 : 8, data.time ? 32 : 12, last ? 0 : 4, 0],
      cursor: { sync: { key }, points: { size: 7 }, y: false },
      select: { show: true },
      legend: { show: true },
      scales: { x: { time: data.time, range: (_, low, high) => (low === high ? data.span : [low, high]) }, y: { range, ...(panel.log && { distr: 3 }) } },
      axes: [
        { ...axis, size: last ? (data.time ? 58 : 44) : 8, label: last ? data.x_label : undefined, labelSize: 18, values: last ? (data.time ? dates : undefined) : () => [], ...(data.time && { space: 80 }), ...(!data.time && panel.x.every(Number.isInteger) && { incrs: WHOLE }) },
        { ...axis, size: AXIS_PX - 18, label: panel.label, labelSize: 18, space: 34, ...(panel.log && { values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) }) },
      ],
      series: [{ label: data.x_label, value: (_, value) => (data.time ? moment(value) : number(value)) }, ...panel.lines.map((line) => seriesOf(line, panel.x.length))],
      hooks: { drawAxes: [marks(panel)], draw: [errorBars(panel)] },
    };
    const plot = new uPlot(options, [panel.x, ...panel.lines.map((line) => line.values)], box);
    plot.setScale("x", { min: data.span[0], max: data.span[1] });
    plot.root.querySelector(".u-over").addEventListener("dblclick", () => plot.setScale("x", { min: data.span[0], max: data.span[1] }));
    return plot;
  }

  function draw(figure) {
    const box = figure.querySelector(".drawn");
    const text = figure.dataset.plot, width = Math.floor(box.clientWidth);
    if (!width) return;
    drop(figure);
    const data = JSON.parse(text), key = uPlot.sync(`${figure.id}-x`).key;
    box.textContent = "";
    const charts = data.panels.map((panel, place) => chart(box, data, panel, place === data.panels.length - 1, width, key));
    drawn.set(figure, { text, width, charts });
  }

  function drop(figure) {
    for (const plot of drawn.get(figure)?.charts ?? []) plot.destroy();
    drawn.delete(figure);
  }

  function drawAll(anew) {
    for (const figure of drawn.keys()) if (!figure.isConnected) drop(figure);
    if (typeof uPlot === "undefined") return;
    for (const figure of document.querySelectorAll("figure[data-plot]")) {
      const known = drawn.get(figure);
      if (anew || !known || known.text !== figure.dataset.plot) draw(figure);
    }
  }

  drawAll(false);
  document.addEventListener("farm:theme", () => drawAll(true));
  document.body.addEventListener("htmx:afterSwap", () => drawAll(false));
  let waits = 0;
  addEventListener("resize", () => { clearTimeout(waits); waits = setTimeout(() => drawAll(true), 150); });

  // A log that goes on stays at its end as long as its reader is there.
  const log = document.querySelector("[data-tail]");
  if (log) {
    let atEnd = true;
    log.scrollTop = log.scrollHeight;
    log.addEventListener("scroll", () => { atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40; });
    let height = 0;
    document.body.addEventListener("htmx:beforeSwap", () => { height = log.scrollHeight; });
    document.body.addEventListener("htmx:afterSettle", (event) => {
      if (!log.contains(event.target)) return;
      if (atEnd) log.scrollTop = log.scrollHeight;
      else if (event.detail.requestConfig?.path.includes("before=")) log.scrollTop += log.scrollHeight - height;
    });
  }
  // A job that has ended has another page: its result, its files.
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const now = document.getElementById("now");
    if (event.detail.target === now && now.querySelector("[data-ended]")) location.reload();
  });
})();
