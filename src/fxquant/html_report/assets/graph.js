"use strict";
/* Both graphs: dagre finds the places, Cytoscape shows them. */
const WIDTH = 168, HEIGHT = 44;
const BOXES = { float: new Map(), int8: new Map() };
const views = {};
let colourBy = "precision", chosen = null;
for (const side of ["float", "int8"]) for (const box of DATA.graphs[side].nodes) BOXES[side].set(box.id, box);

/* Runs in a worker. Where all paths go through one node the graph is cut, and dagre lays out the parts between, which takes
   time that grows with the size of the parts; arrows that go very far are not laid out. Parts of the same form, such as the
   blocks of a net, are laid out once: `known` has them by their arrows. */
function layout(dagre, nodes, edges, width, height, known) {
  const after = new Map(nodes.map((id) => [id, []])), open = new Map(nodes.map((id) => [id, 0])), rank = new Map(nodes.map((id, i) => [id, i]));
  for (const [from, to] of edges) { after.get(from).push(to); open.set(to, open.get(to) + 1); }
  const order = [], ready = nodes.filter((id) => !open.get(id));
  while (ready.length) {
    let best = 0;
    for (let i = 1; i < ready.length; i++) if (rank.get(ready[i]) < rank.get(ready[best])) best = i;
    const id = ready.splice(best, 1)[0];
    order.push(id);
    for (const to of after.get(id)) { open.set(to, open.get(to) - 1); if (!open.get(to)) ready.push(to); }
  }
  for (const id of nodes) if (open.get(id) > 0) order.push(id);
  const index = new Map(order.map((id, i) => [id, i])), positions = {}, bends = {};
  const spans = edges.map(([from, to]) => [index.get(from), index.get(to)]).filter(([a, b]) => a < b);

  function place(first, last, limit, x, y) { /* lays out order[first..last], with the first one at x, y; gives where the last one is */
    const inside = spans.filter(([a, b]) => a >= first && b <= last && b - a <= limit);
    const reach = new Int32Array(last - first + 2);
    for (const [a, b] of inside) if (b - a > 1) { reach[a + 1 - first]++; reach[b - first]--; }
    const cuts = [];
    for (let i = first, over = 0; i <= last; i++) { over += reach[i - first]; if (!over) cuts.push(i); }
    if (cuts[0] !== first) cuts.unshift(first);
    if (cuts[cuts.length - 1] !== last) cuts.push(last);
    for (let k = 0; k + 1 < cuts.length; k++) {
      const [a, b] = [cuts[k], cuts[k + 1]];
      if (k === 0 && !(order[a] in positions)) positions[order[a]] = [x, y];
      const [left, top] = positions[order[a]];
      if (b === a + 1) positions[order[b]] = [left, top + height + 26];
      else if (b - a > 120 && limit > 2) place(a, b, Math.floor(limit / 4), left, top);
      else part(a, b, inside.filter(([from, to]) => from >= a && to <= b), left, top);
    }
  }
  function part(a, b, inside, left, top) {
    const form = `${b - a}:${inside.map(([from, to]) => `${from - a},${to - a}`).join(" ")}`;
    if (!known.has(form)) known.set(form, lay(b - a, inside.map(([from, to]) => [from - a, to - a])));
    const { places, lines } = known.get(form);
    places.forEach(([dx, dy], i) => { positions[order[a + i]] = [left + dx, top + dy]; });
    for (const [from, to, points] of lines) bends[`${order[a + from]}>${order[a + to]}`] = points.map(([dx, dy]) => [left + dx, top + dy]);
  }
  function lay(last, inside) { /* where nodes 0..last are, and where arrows bend, as seen from node 0 */
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 22, ranksep: 26, edgesep: 12, ranker: last > 60 ? "longest-path" : "network-simplex" });
    graph.setDefaultEdgeLabel(() => ({}));
    for (let i = 0; i <= last; i++) graph.setNode(String(i), { width, height });
    for (const [from, to] of inside) graph.setEdge(String(from), String(to));
    dagre.layout(graph);
    const { x, y } = graph.node("0"), places = [], lines = [];
    for (let i = 0; i <= last; i++) { const node = graph.node(String(i)); places.push([node.x - x, node.y - y]); }
    for (const [from, to] of inside) {
      const points = graph.edge(String(from), String(to)).points.slice(1, -1).map((p) => [p.x - x, p.y - y]);
      if (points.length > 1) lines.push([from, to, points]);
    }
    return { places, lines };
  }
  if (order.length) { positions[order[0]] = [0, 0]; place(0, order.length - 1, 80, 0, 0); }
  return { positions, bends };
}

/* Runs in a worker, too. Regions have no arrows between them: each is laid out by itself, one below the other. */
function layoutRegions(layout, dagre, regions, edges, width, height) {
  const known = new Map(), found = { positions: {}, bends: {} }, regionOf = new Map(regions.flatMap((ids, i) => ids.map((id) => [id, i])));
  let below = 0;
  regions.forEach((ids, i) => {
    const { positions, bends } = layout(dagre, ids, edges.filter(([from]) => regionOf.get(from) === i), width, height, known);
    const ys = ids.map((id) => positions[id][1]), shift = below - Math.min(...ys);
    for (const id of ids) found.positions[id] = [positions[id][0], positions[id][1] + shift];
    for (const [key, points] of Object.entries(bends)) found.bends[key] = points.map(([x, y]) => [x, y + shift]);
    below = Math.max(...ys) + shift + height + 96;
  });
  return found;
}

const REGIONS = [...new Set(DATA.graphs.int8.nodes.map((box) => box.region))];

function findPlaces(side, done) {
  const boxes = DATA.graphs[side].nodes, names = [...new Set(boxes.map((box) => box.region))], edges = DATA.graphs[side].edges.map(([from, to]) => [from, to]);
  const nodes = names.map((name) => boxes.filter((box) => box.region === name).map((box) => box.id));
  const library = at("dagre").textContent;
  const here = () => done(layoutRegions(layout, new Function(`${library};return dagre`)(), nodes, edges, WIDTH, HEIGHT));
  try {
    const text = `${library};const layout=${layout};const all=${layoutRegions};onmessage=(m)=>postMessage(all(layout,dagre,...m.data))`;
    const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    worker.onmessage = (message) => { worker.terminate(); done(message.data); };
    worker.onerror = (event) => { event.preventDefault(); worker.terminate(); here(); };
    worker.postMessage([nodes, edges, WIDTH, HEIGHT]);
  } catch (error) { here(); }
}

const lastTensor = (box) => (box.tensors && box.tensors.length ? box.tensors[box.tensors.length - 1] : null);

function measured(side, box) { /* the int8 box whose numbers are shown */
  return side === "int8" ? box : (box.partners || []).map((id) => BOXES.int8.get(id)).find(lastTensor) || null;
}

function colourOf(side, box) {
  if (colourBy === "error") { const from = measured(side, box), tensor = from && lastTensor(from); return errorColour(tensor ? tensor.sqnr : null); }
  if (side === "float") return css(box.kinds[0] === "input" || box.kinds[0] === "output" ? "io" : "float");
  return statusColour(box.status);
}

function segments(points, from, to) {
  const vx = to[0] - from[0], vy = to[1] - from[1], length = Math.hypot(vx, vy) || 1;
  return {
    weights: points.map(([x, y]) => ((x - from[0]) * vx + (y - from[1]) * vy) / length ** 2),
    distances: points.map(([x, y]) => ((x - from[0]) * -vy + (y - from[1]) * vx) / length),
  };
}

function look() {
  const text = css("text"), line = css("io");
  return [
    { selector: "node", style: { shape: "round-rectangle", width: WIDTH, height: HEIGHT, "background-color": css("card"), "border-width": 2, "border-color": "data(colour)",
      label: "data(label)", "text-valign": "center", "text-halign": "center", "text-wrap": "wrap", "font-size": 11.5, "line-height": 1.25, "font-family": css("sans"), color: text, "min-zoomed-font-size": 5 } },
    { selector: ":parent", style: { label: "data(label)", "text-valign": "top", "text-halign": "center", "font-size": 13, "font-weight": 600, color: css("soft"), shape: "round-rectangle",
      "background-color": css("bg"), "background-opacity": 0.7, "border-width": 1, "border-style": "dashed", "border-color": line, padding: 16, "text-margin-y": -5 } },
    { selector: "node[fill]", style: { "background-color": "data(colour)", "background-opacity": 0.16 } },
    { selector: "edge", style: { width: 1.6, "line-color": line, "target-arrow-color": line, "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "straight", opacity: 0.75 } },
    { selector: "edge[far]", style: { "curve-style": "unbundled-bezier", "control-point-distances": 140, "control-point-weights": 0.5, "line-style": "dotted", opacity: 0.45 } },
    { selector: "edge[weights]", style: { "curve-style": "round-segments", "segment-weights": "data(weights)", "segment-distances": "data(distances)", "segment-radii": 14, "edge-distances": "node-position" } },
    { selector: "edge[whole]", style: { "line-color": css("int8"), "target-arrow-color": css("int8"), width: 2 } },
    { selector: ".faded", style: { opacity: 0.18 } },
    { selector: ".hit", style: { "border-width": 4 } },
    { selector: ".partner", style: { "border-width": 4, "border-style": "double" } },
    { selector: ".chosen", style: { "border-width": 5, "border-color": css("dynamic"), "background-color": css("dynamic"), "background-opacity": 0.2 } },
  ];
}

function buildView(side, found) {
  const nodes = DATA.graphs[side].nodes.map((box) => {
    const place = found.positions[box.id] || [0, 0], name = box.path && box.path !== box.label ? `\n${show.tail(box.path, 25)}` : "";
    return { data: { id: box.id, label: show.tail(box.label, 26) + name, colour: colourOf(side, box), fill: 1, ...(REGIONS.length > 1 ? { parent: `region:${box.region}` } : {}) }, position: { x: place[0], y: place[1] } };
  });
  if (REGIONS.length > 1) for (const name of new Set(DATA.graphs[side].nodes.map((box) => box.region))) nodes.unshift({ data: { id: `region:${name}`, label: name || "the model" } });
  const edges = DATA.graphs[side].edges.map(([from, to, whole], i) => {
    const bend = found.bends[`${from}>${to}`], data = { id: `edge${i}`, source: from, target: to };
    if (whole) data.whole = 1;
    if (bend) Object.assign(data, segments(bend, found.positions[from], found.positions[to]));
    else if (found.positions[from] && found.positions[to] && found.positions[to][1] - found.positions[from][1] > 3 * HEIGHT + 40) data.far = 1;
    return { data };
  });
  const view = cytoscape({
    container: at(`graph-${side}`), elements: { nodes, edges }, style: look(), layout: { name: "preset", fit: false }, minZoom: 0.02, maxZoom: 3, boxSelectionEnabled: false,
    autoungrabify: true, hideEdgesOnViewport: nodes.length > 400, textureOnViewport: nodes.length > 400, pixelRatio: "auto",
  });
  view.on("tap", "node[fill]", (event) => select(event.target.id(), false, side));
  view.on("tap", (event) => { if (event.target === view || event.target.isParent?.()) select(null); });
  views[side] = view;
  at(`graph-${side}`).classList.remove("waiting");
  startAt(side);
  if (chosen) mark();
}

/* The top of the graph, as large as can be read; small graphs as a whole. The frame is that of the places: what Cytoscape
   would find asks for the sizes of all labels first. */
function startAt(side) {
  const view = views[side], places = view.nodes("[fill]").map((node) => node.position()), room = REGIONS.length > 1 ? 40 : 0;
  const [left, top] = [Math.min(...places.map((p) => p.x)) - WIDTH / 2, Math.min(...places.map((p) => p.y)) - HEIGHT / 2 - room];
  const width = Math.max(...places.map((p) => p.x)) + WIDTH / 2 - left, height = Math.max(...places.map((p) => p.y)) + HEIGHT / 2 - top;
  const whole = Math.min((view.width() - 48) / width, (view.height() - 48) / height);
  if (whole >= 0.62 || height <= width) {
    const zoom = Math.min(whole, 1.4);
    view.viewport({ zoom, pan: { x: view.width() / 2 - (left + width / 2) * zoom, y: view.height() / 2 - (top + height / 2) * zoom } });
    return;
  }
  const wide = Math.min(0.85, (view.width() - 32) / width), zoom = wide < 0.45 ? 0.6 : wide;
  view.viewport({ zoom, pan: { x: view.width() / 2 - places[0].x * zoom, y: 24 - top * zoom } });
}

function select(id, move, side) {
  chosen = id === null ? null : { id, side: side || "int8" };
  mark(move || Boolean(side));
  showDetail(chosen);
  if (move) at("graphs").scrollIntoView({ block: "start" });
}

function inSight(view, found) {
  const { x1, y1, x2, y2 } = view.extent();
  return view.zoom() >= 0.5 && found.every((node) => { const { x, y } = node.position(); return x > x1 && x < x2 && y > y1 && y < y2; });
}

function mark(move) {
  for (const [side, view] of Object.entries(views)) {
    view.batch(() => view.elements().removeClass("chosen partner"));
    if (!chosen) continue;
    const own = side === chosen.side, box = BOXES[chosen.side].get(chosen.id);
    const ids = own ? [chosen.id] : (box && box.partners) || [];
    const found = view.collection(ids.map((id) => view.getElementById(id)).filter((each) => each.length).map((each) => each[0]));
    found.addClass(own ? "chosen" : "partner");
    if (found.length && (!own || move === true) && !inSight(view, found)) view.animate({ center: { eles: found }, zoom: Math.max(view.zoom(), 0.7) }, { duration: 250 });
  }
}

let found = [], next = 0; /* what the last search found on the int8 side, and which of it Enter goes to */

function search(text) {
  const wanted = text.trim().toLowerCase();
  let count = 0;
  found = []; next = 0;
  for (const [side, view] of Object.entries(views)) view.batch(() => {
    view.elements().removeClass("faded hit");
    if (!wanted) return;
    const fits = (box) => [box.path, box.label, box.where, ...box.nodes].some((each) => (each || "").toLowerCase().includes(wanted));
    const hits = view.nodes("[fill]").filter((node) => fits(BOXES[side].get(node.id())));
    view.elements().difference(hits).not(":parent").addClass("faded");
    hits.addClass("hit");
    if (side === "int8" || !count) count = hits.length;
    if (side === "int8") found = hits.map((node) => node.id());
    if (hits.length) view.animate({ fit: { eles: hits.slice(0, 12), padding: 60 } }, { duration: 200, complete: () => { if (view.zoom() > 1.2) { view.zoom(1.2); view.center(hits[0]); } } });
  });
  at("hits").textContent = wanted ? `${count} found` : "";
}

function nextHit() {
  if (!found.length) return;
  select(found[next % found.length], false, "int8");
  at("hits").textContent = `${next % found.length + 1} of ${found.length}`;
  next++;
}

function recolour() {
  for (const [side, view] of Object.entries(views)) {
    view.batch(() => view.nodes("[fill]").forEach((node) => node.data("colour", colourOf(side, BOXES[side].get(node.id())))));
    view.style(look());
  }
  const legend = at("legend");
  legend.replaceChildren();
  const entry = (colour, text) => { const item = make("span"), dot = make("i"); dot.style.background = colour; item.append(dot, text); legend.append(item); };
  if (colourBy === "error") for (const value of [5, 13, 22, 31, 40]) entry(errorColour(value), value === 5 ? "≤ 5 dB" : value === 40 ? "≥ 40 dB" : `${value}`);
  else for (const status of Object.keys(STATUS)) if (DATA.graphs.int8.nodes.some((box) => box.status === status) || status === "float") entry(statusColour(status), STATUS[status]);
}

function zoom(by) {
  for (const view of Object.values(views)) view.zoom({ level: view.zoom() * by, renderedPosition: { x: view.width() / 2, y: view.height() / 2 } });
}
