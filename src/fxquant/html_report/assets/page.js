"use strict";
/* What stands on the page, and what buttons do. */
function tile(name, value, unit, more, tone) {
  const made = make("div", "tile"), big = make("div", `value ${tone || ""}`, value);
  if (unit) big.append(" ", make("small", "", unit));
  made.append(make("div", "name", name), big, make("div", "more", more || ""));
  at("tiles").append(made);
}

/* How much better the second of two is, in words. */
function times(before, after, better, worse) {
  return before >= after ? `${(before / after).toFixed(1)}× ${better}` : `${(after / before).toFixed(1)}× ${worse}`;
}

function fillSummary() {
  at("title").textContent = DATA.title;
  const { score, agreement: same, compare, speed, account } = DATA, sqnr = compare.sqnr;
  const rows = speed ? speed.rows : [], base = rows.find((row) => row.name === "float");
  const best = rows.filter((row) => row.name !== "float").sort((a, b) => a.ms - b.ms)[0];
  const verdict = [];
  if (best && base) verdict.push(`${times(base.size, best.size, "smaller", "larger")} and ${times(base.ms, best.ms, "faster", "slower")} than float on ${best.name}`);
  if (score) verdict.push(`scoring ${show.number(score.int8)} where float scores ${show.number(score.float)}`);
  if (sqnr !== null) verdict.push(`outputs ${sqnr >= 200 ? "equal to" : `${sqnr.toFixed(1)} dB from`} the float model's over ${compare.batches} ${compare.batches === 1 ? "batch" : "batches"}`);
  const text = verdict.join(", ");
  at("verdict").textContent = text && `${text[0].toUpperCase()}${text.slice(1)}.`;
  if (score) { const change = score.int8 - score.float; tile("Score", show.number(score.int8), "", `float ${show.number(score.float)} (${change >= 0 ? "+" : ""}${show.number(change)})`); }
  if (same) tile("Same top answer", show.share(same.same / same.every), "", `${same.same} of ${same.every} samples`, same.same / same.every > 0.97 ? "good" : same.same / same.every > 0.9 ? "mid" : "bad");
  if (sqnr !== null) tile("Outputs against float", sqnr >= 200 ? "equal" : sqnr.toFixed(1), sqnr >= 200 ? "" : "dB", `signal to noise: ${sqnr >= 25 ? "close" : sqnr >= 15 ? "usable, worth a look" : "far off"}`, sqnr >= 25 ? "good" : sqnr >= 15 ? "mid" : "bad");
  if (best && base) {
    tile("Size", show.mib(best.size), "MiB", `float ${show.mib(base.size)} MiB: ${times(base.size, best.size, "smaller", "larger")}`, base.size >= best.size ? "" : "bad");
    tile("Time of a call", show.ms(best.ms), "ms", `${best.name}; float ${show.ms(base.ms)} ms: ${times(base.ms, best.ms, "faster", "slower")}${speed.busy ? ", on a busy machine" : ""}`, base.ms >= best.ms ? "" : "bad");
  }
  const [quantized, every] = account.weighted;
  tile("Ops with weights in int8", every ? show.share(quantized / every) : "–", "", `${quantized} of ${every}`);
}

function codeLine(text) {
  const made = make("div", "code"), copy = make("button", "", "copy");
  copy.type = "button";
  copy.onclick = async () => { try { await navigator.clipboard.writeText(text); copy.textContent = "copied"; } catch { copy.textContent = "select it"; } };
  made.append(make("code", "", text), copy);
  return made;
}

function fillFixes() {
  const list = at("fix-list"), { tried } = DATA;
  if (tried) at("fixes-note").textContent = `Each was tried on this model${tried.batches < DATA.compare.batches ? `, with the first ${tried.batches} of ${DATA.compare.batches} batches` : ""}: the gain is that of the outputs' signal-to-noise ratio.`;
  if (DATA.fixes.length && DATA.compare.sqnr >= 40) at("fixes-note").prepend("Nothing has to be done: the outputs are close to the float model's already. ");
  for (const fix of DATA.fixes) {
    const made = make("div", "fix card"), gain = make("div", "gain", `+${fix.gain.toFixed(1)} dB`), side = make("div");
    gain.append(make("small", "", `${show.db(DATA.tried.sqnr)} → ${show.db(fix.sqnr)}`));
    if (fix.score !== undefined) gain.append(make("small", "", `score ${show.number(DATA.score.int8)} → ${show.number(fix.score)}`));
    side.append(make("div", "title", fix.title), codeLine(fix.code));
    made.append(gain, side);
    list.append(made);
  }
  if (DATA.fixes.length && DATA.tried.kernels.length && !DATA.fixes.some((fix) => fix.code.includes("ignore="))) list.prepend(make("div", "card", "No layer stands out: leaving the worst in float gains less than 0.5 dB."));
  if (!DATA.fixes.length) list.append(make("div", "card", DATA.tried ? "Nothing that was tried gains 0.5 dB or more: the error is spread evenly." : "Nothing was tried: the report was made with most=0."));
  for (const line of DATA.compare.text.slice(1)) at("remarks").append(make("li", "", `${line[0].toUpperCase()}${line.slice(1)}`));
}

function facts(rows) {
  const made = make("dl", "facts");
  for (const [name, value] of rows) if (value !== null && value !== undefined && value !== "") made.append(make("dt", "", name), make("dd", "", value));
  return made;
}

function showDetail(found) {
  const panel = at("detail");
  panel.replaceChildren();
  if (!found) {
    panel.append(make("h3", "", "Click an op"), make("p", "sub", "to see what was decided for it and why, how its values lie in the range that was chosen, and the line of code that it comes from."));
    const worst = TENSORS.filter((tensor) => tensor.enters > 0).sort((a, b) => b.enters - a.enters).slice(0, 8);
    if (worst.length) panel.append(make("h4", "", "Where most error enters"), table([{ name: "op", path: 1 }, { name: "share", number: 1 }, { name: "SQNR", number: 1 }],
      worst.map((tensor) => [link(show.tail(tensor.path, 26), tensor.box), show.share(tensor.enters), show.db(tensor.sqnr)])));
    return;
  }
  const box = BOXES[found.side].get(found.id), from = measured(found.side, box) || box;
  const title = make("h3", "", box.path || box.label), badge = make("span", "badge", STATUS[from.status] || "not quantized");
  badge.style.background = statusColour(from.status);
  title.append(" ", badge);
  panel.append(title, make("p", "sub", [box.label, box.shape ? box.shape.join("×") : "", from !== box && from.label !== box.label ? `in int8: ${from.label}` : ""].filter(Boolean).join(" · ")));
  for (const made of from.decisions || []) {
    const line = make("div", "why");
    line.append(make("b", "", made.kind), ` ${STATUS[made.status] || made.status}: ${made.reason}`, made.rule && made.rule !== "global" ? ` (rule: ${made.rule})` : "");
    panel.append(line);
  }
  if (box.where) { const source = make("div", "source"); source.append(make("span", "", box.where), box.code); panel.append(source); }
  for (const tensor of from.tensors || []) {
    if ((from.tensors || []).length > 1) panel.append(make("h4", "", `${tensor.kind} · ${tensor.path}`));
    if (tensor.counts) { const chart = make("div", "chart small"); panel.append(chart); drawHistogram(chart, tensor); }
    panel.append(facts([
      ["SQNR here", show.db(tensor.sqnr)], ["this op by itself", tensor.own === null ? null : show.db(tensor.own)], ["error that enters", tensor.enters ? show.share(tensor.enters) : null],
      ["range", show.range([tensor.low, tensor.high])], ["grid covers", tensor.calibrated ? show.range(tensor.calibrated) : null], ["clipped", tensor.clipped === null ? null : show.share(tensor.clipped)],
      ["rounded to zero", tensor.collapsed === null ? null : show.share(tensor.collapsed)], ["largest error", show.number(tensor.max_error)], ["cosine", tensor.cosine.toFixed(5)], ["range, spread over batches", show.share(tensor.spread)],
    ]));
  }
  const weight = DATA.weights.find((each) => each.path === box.path);
  if (weight) {
    const chart = make("div", "chart small");
    panel.append(make("h4", "", `weight · ${weight.spec}`), chart);
    drawHistogram(chart, { ...weight, calibrated: null });
    panel.append(facts([["shape", weight.shape.join("×")], ["SQNR", show.db(weight.sqnr)], ["largest by channel", show.range(weight.channels)], ["grown by fusing", Math.abs(weight.fused_gain - 1) > 0.01 ? `${show.number(weight.fused_gain)}×` : null]]));
  }
}

function link(path, id) {
  const made = make("a", "", path);
  if (id) made.onclick = () => select(id, true);
  return made;
}

function boxAt(path) {
  const found = DATA.graphs.int8.nodes.find((box) => box.path === path) || DATA.graphs.int8.nodes.find((box) => box.nodes.includes(path));
  return found ? found.id : null;
}

function fillSpeed() {
  const { speed } = DATA;
  if (!speed) { at("speed").hidden = true; return; }
  at("speed-note").textContent = `One call with inputs of ${speed.inputs.join(", ")}, on ${speed.threads} thread${speed.threads === 1 ? "" : "s"}; engines in turn. ${speed.advice || ""}`;
  if (speed.busy) at("speed-note").append(" ", make("b", "", `${speed.busy[0].toUpperCase()}${speed.busy.slice(1)}`));
  chart("engines-chart", drawEngines);
  if (speed.kernels.length) { at("kernels-note").textContent = `Native code, ${speed.machine}; the ${Math.min(20, speed.kernels.length)} slowest.`; chart("kernels-chart", drawKernels); }
  else { at("kernels-note").textContent = speed.no_kernels; at("kernels-chart").remove(); }
  at("engines-table").append(table(
    [{ name: "engine" }, { name: "ms", number: 1 }, { name: "against float", number: 1 }, { name: "10% … 90%", number: 1 }, { name: "size, MiB", number: 1 }, { name: "a call adds, MiB", number: 1 }],
    speed.rows.map((row) => [row.name, show.ms(row.ms), row.speedup ? `${row.speedup.toFixed(2)}×` : "", `${show.ms(row.low)} … ${show.ms(row.high)}`, show.mib(row.size), row.memory === null ? "" : row.memory.toFixed(1)])));
}

/* Ops that stayed in float for one reason, as the blocks of a transformer do, are one row: the first, and how many more. */
function alike(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.kind, row.why.replace(/operand \S+ is/g, "operand is"), row.hint || ""]);
    groups.set(key, [...(groups.get(key) || []), row]);
  }
  return [...groups.values()];
}

function places(rows) {
  const made = make("div"), first = link(rows[0].path, boxAt(rows[0].path));
  made.append(first);
  if (rows.length === 1) return made;
  const more = make("details"), list = make("div", "more");
  more.append(make("summary", "", `and ${rows.length - 1} more`), list);
  for (const row of rows.slice(1)) list.append(link(row.path, boxAt(row.path)), " ");
  made.append(more);
  return made;
}

function fillTables() {
  const columns = [{ name: "op", path: 1 }, { name: "kind" }, { name: "ops", number: 1 }, { name: "why" }, { name: "line", path: 1 }, { name: "what to do" }];
  const rows = alike(DATA.account.float).map((same) => [places(same), same[0].kind, String(same.length), same[0].why, same[0].where, same[0].hint || ""]);
  const hints = rows.some((row) => row[5]);
  if (rows.length) at("float-table").append(table(hints ? columns : columns.slice(0, -1), hints ? rows : rows.map((row) => row.slice(0, -1))));
  else at("float-table").append("Nothing: every op runs in int8.");
  at("weights-table").append(table([{ name: "weight", path: 1 }, { name: "op" }, { name: "shape", number: 1 }, { name: "SQNR", number: 1 }, { name: "largest error", number: 1 }, { name: "spec" }],
    DATA.weights.map((row) => [link(row.path, boxAt(row.path)), row.kind, row.shape.join("×"), show.db(row.sqnr), show.number(row.max_error), row.spec])));
  for (const [rule, count] of Object.entries(DATA.account.rules)) { const line = make("div", "rule"); line.append(make("b", "", `${count}×`), make("span", "", rule)); at("rules").append(line); }
  at("rules").append(make("p", "note", DATA.account.summary));
  at("versions").replaceWith(facts([["engine", DATA.account.engines.join(", ")], ...Object.entries(DATA.made)]));
}

function press(ids, id) {
  for (const each of ids) at(each).setAttribute("aria-pressed", String(each === id));
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  recolour();
  redrawCharts();
  showDetail(chosen);
}

document.documentElement.dataset.theme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
fillSummary();
fillFixes();
chart("depth-chart", drawDepth);
if (DATA.tried && DATA.tried.kernels.length) chart("sensitivity-chart", drawSensitivity);
else at("sensitivity-chart").replaceWith(make("p", "note", "Not measured."));
if (DATA.tried) at("halves").textContent = `The outputs are at ${show.db(DATA.tried.sqnr)}; with exact weights they would be at ${show.db(DATA.tried.exact_weights)}, with exact activations at ${show.db(DATA.tried.exact_activations)}.`;
fillSpeed();
fillTables();
showDetail(null);
recolour();
at("theme").onclick = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
at("by-precision").onclick = () => { colourBy = "precision"; press(["by-precision", "by-error"], "by-precision"); recolour(); };
at("by-error").onclick = () => { colourBy = "error"; press(["by-precision", "by-error"], "by-error"); recolour(); };
at("zoom-in").onclick = () => zoom(1.4);
at("zoom-out").onclick = () => zoom(1 / 1.4);
at("zoom-fit").onclick = () => Object.values(views).forEach((view) => view.animate({ fit: { padding: 24 } }, { duration: 200 }));
at("search").oninput = (event) => search(event.target.value);
at("search").onkeydown = (event) => { if (event.key === "Enter") nextHit(); if (event.key === "Escape") { event.target.value = ""; search(""); event.target.blur(); } };
document.onkeydown = (event) => {
  if (event.target !== document.body || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") { event.preventDefault(); at("graphs").scrollIntoView({ block: "start" }); at("search").focus({ preventScroll: true }); }
  if (event.key === "Escape") select(null);
};
for (const side of ["float", "int8"]) {
  at(`count-${side}`).textContent = `${DATA.graphs[side].nodes.length} ${side === "int8" ? "kernels and ops" : "ops"}`;
  at(`see-${side}`).onclick = () => {
    document.querySelector(".board").dataset.see = side;
    press(["see-float", "see-int8"], `see-${side}`);
    if (views[side]) { views[side].resize(); startAt(side); }
  };
  at(`graph-${side}`).classList.add("waiting");
}
watchCharts();
/* the page is ready once both graphs are painted; the one that a phone hides is never painted */
let waiting = 2;
const painted = () => { if (--waiting === 0) document.documentElement.dataset.ready = String(Math.round(performance.now())); };
for (const side of ["int8", "float"]) requestAnimationFrame(() => setTimeout(() => findPlaces(side, (found) => {
  buildView(side, found);
  if (at(`graph-${side}`).clientWidth) views[side].one("render", painted); else painted();
}), 0));
