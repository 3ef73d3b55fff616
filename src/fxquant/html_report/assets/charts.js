"use strict";
/* The charts, by plotly. Each is drawn when it comes into view, and again when the colours change. */
const charts = new Map();

function chart(id, draw) {
  charts.set(id, { draw, seen: false });
}

function base(extra) {
  const font = { family: css("sans"), size: 12, color: css("soft") };
  const axis = { gridcolor: css("line"), zerolinecolor: css("line"), linecolor: css("line"), automargin: true, fixedrange: isPhone() };
  return {
    font, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 48, r: 16, t: 10, b: 40 }, bargap: 0.25,
    showlegend: false, hovermode: "closest", hoverlabel: { font: { family: css("sans"), size: 12 }, bgcolor: css("card"), bordercolor: css("line") },
    ...extra, xaxis: { ...axis, ...(extra.xaxis || {}) }, yaxis: { ...axis, ...(extra.yaxis || {}) },
  };
}

function plot(element, traces, layout) {
  return Plotly.react(element, traces, base(layout), { responsive: true, displaylogo: false, displayModeBar: false });
}

/* All tensors that were compared, in the order of the run. */
const TENSORS = DATA.graphs.int8.nodes.flatMap((box) => (box.tensors || []).map((tensor) => ({ ...tensor, box: box.id })));

function drawDepth(element) {
  const x = TENSORS.map((_, i) => i + 1), top = (value) => Math.min(value, 80);
  const text = TENSORS.map((t) => `<b>${t.path}</b> ${t.kind}<br>${show.db(t.sqnr)}, by itself ${show.db(t.own)}<br>${show.share(t.enters)} of the error enters here`);
  plot(element, [
    { type: "bar", x, y: TENSORS.map((t) => 100 * t.enters), yaxis: "y2", marker: { color: css("float"), opacity: 0.55 }, hoverinfo: "skip", width: 0.9 },
    { type: "scatter", mode: TENSORS.length > 150 ? "lines" : "lines+markers", x, y: TENSORS.map((t) => top(t.sqnr)), text, hoverinfo: "text",
      line: { color: css("accent"), width: 2 }, marker: { size: 6, color: TENSORS.map((t) => errorColour(t.sqnr)), line: { width: 1, color: css("card") } } },
  ], {
    margin: { l: 48, r: 48, t: 10, b: 40 }, hovermode: "x",
    xaxis: { title: { text: "tensor, in the order of the run" }, showgrid: false, zeroline: false },
    yaxis: { title: { text: "SQNR, dB" }, rangemode: "tozero" },
    yaxis2: { overlaying: "y", side: "right", title: { text: "error that enters, %" }, showgrid: false, zeroline: false, rangemode: "tozero", fixedrange: true,
      automargin: true, tickmode: "auto", nticks: 5, tickformat: ".1f", range: [0, Math.max(5, 220 * Math.max(...TENSORS.map((t) => t.enters), 0))] },
  });
  element.removeAllListeners?.("plotly_click");
  element.on("plotly_click", (event) => select(TENSORS[event.points[0].pointIndex].box, true));
}

function sideways(element, rows, layout, onClick) {
  element.style.height = `${Math.max(120, 26 * rows.length + 60)}px`;
  const names = rows.map((row) => (row.head ? show.head : show.tail)(row.name, isPhone() ? 20 : 34));
  plot(element, [{
    type: "bar", orientation: "h", y: rows.map((_, i) => i), x: rows.map((row) => row.value), text: rows.map((row) => row.text), textposition: "auto",
    hovertext: rows.map((row) => row.hover || row.name), hoverinfo: "text", marker: { color: rows.map((row) => row.colour || css("accent")) },
    error_x: rows[0] && rows[0].spread ? { type: "data", symmetric: false, array: rows.map((r) => r.spread[1]), arrayminus: rows.map((r) => r.spread[0]), color: css("soft"), thickness: 1 } : undefined,
    cliponaxis: false, textfont: { size: 11 }, insidetextanchor: "end", constraintext: "none",
  }], {
    margin: { l: 20, r: 30, t: 4, b: 40 }, ...layout,
    yaxis: { autorange: "reversed", tickmode: "array", tickvals: rows.map((_, i) => i), ticktext: names, showgrid: false, ...(layout.yaxis || {}) },
  });
  if (onClick) {
    element.removeAllListeners?.("plotly_click");
    element.on("plotly_click", (event) => onClick(rows[event.points[0].pointIndex]));
  }
}

function drawSensitivity(element) {
  const rows = DATA.tried.kernels.map((each) => ({
    name: each.path, value: each.gain, text: `${each.gain >= 0 ? "+" : ""}${each.gain.toFixed(2)}`, box: each.box,
    hover: `${each.path} (${each.kind}): outputs ${show.db(each.sqnr)} with it in float`, colour: each.gain > 0 ? css("accent") : css("io"),
  }));
  /* the number of a loss stands left of its bar: room for it, or it lies on the names */
  const low = Math.min(0, ...rows.map((row) => row.value)), high = Math.max(0, ...rows.map((row) => row.value)), room = (high - low || 1) * (isPhone() ? 0.3 : 0.06);
  sideways(element, rows, { xaxis: { title: { text: "gain, dB" }, range: [low < 0 ? low - room : 0, high + room] } }, (row) => select(row.box, true));
}

function drawEngines(element) {
  const rows = DATA.speed.rows.map((row) => ({
    name: `${row.name}  ${show.ms(row.ms)}`, value: row.ms, text: "", spread: [row.ms - row.low, row.high - row.ms],
    hover: `${row.name}: ${show.ms(row.ms)} ms, 10% … 90%: ${show.ms(row.low)} … ${show.ms(row.high)}`, colour: row.name === "float" ? css("float") : css("int8"),
  }));
  const most = Math.max(...DATA.speed.rows.map((row) => Math.min(row.high, 1.6 * row.ms))); /* one slow call does not set the scale */
  sideways(element, rows, { xaxis: { title: { text: "ms, median of one call" }, range: [0, 1.04 * most] } });
}

function drawKernels(element) {
  const rows = DATA.speed.kernels.slice(0, 20).map((row) => ({
    name: row.count > 1 ? `${row.count}× ${row.kernel}` : row.kernel, head: true, value: row.ms, text: `${show.share(row.share)}`,
    hover: `${row.kernel}: ${row.count} of them, ${row.ms.toFixed(3)} ms${row.peak ? `, ${show.share(row.peak)} of the peak` : ""}`,
  }));
  sideways(element, rows, { xaxis: { title: { text: isPhone() ? "ms on one thread" : "ms, one sample on one thread" } } });
}

/* How the values of a tensor are distributed, with the range that the grid covers. */
function drawHistogram(element, tensor) {
  const count = tensor.counts.length, step = (tensor.high - tensor.low) / count;
  const x = tensor.counts.map((_, i) => tensor.low + step * (i + 0.5)), shapes = [];
  const low = tensor.calibrated ? Math.min(tensor.low, tensor.calibrated[0]) : tensor.low;
  const high = tensor.calibrated ? Math.max(tensor.high, tensor.calibrated[1]) : tensor.high, edge = 0.03 * (high - low);
  if (tensor.calibrated) {
    shapes.push({ type: "rect", xref: "x", yref: "paper", x0: tensor.calibrated[0], x1: tensor.calibrated[1], y0: 0, y1: 1, fillcolor: css("int8"), opacity: 0.13, line: { width: 0 }, layer: "below" });
    for (const end of tensor.calibrated) shapes.push({ type: "line", xref: "x", yref: "paper", x0: end, x1: end, y0: 0, y1: 1, line: { color: css("int8"), width: 1.5, dash: "dot" } });
  }
  plot(element, [{ type: "bar", x, y: tensor.counts, width: step, marker: { color: css("dynamic"), line: { width: 0 } }, hovertemplate: "%{x:.3g}: %{y}<extra></extra>" }], {
    margin: { l: 34, r: 8, t: 6, b: 24 }, bargap: 0, shapes, yaxis: { type: "log", dtick: 2, tickfont: { size: 10 } }, xaxis: { range: [low - edge, high + edge], tickfont: { size: 10 } },
  });
}

function watchCharts() {
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const found = charts.get(entry.target.id);
      if (entry.isIntersecting && !found.seen) { found.seen = true; found.draw(entry.target); }
    }
  }, { rootMargin: "200px" });
  for (const id of charts.keys()) watch.observe(at(id));
}

function redrawCharts() {
  for (const [id, found] of charts) if (found.seen) found.draw(at(id));
}
