"use strict";
/* How values are written, and the colours of the page. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const isPhone = () => window.innerWidth <= 760;

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

const show = {
  db: (x) => (x === null || x === undefined ? "–" : x >= 200 ? "equal" : `${x.toFixed(1)} dB`),
  share: (x) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(x < 0.001 && x > 0 ? 3 : x < 0.1 ? 1 : 0)}%`),
  number: (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(1) : String(+x.toPrecision(3))),
  mib: (x) => (x >= 100 ? x.toFixed(0) : x >= 1 ? x.toFixed(1) : x.toFixed(2)),
  ms: (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2)),
  range: (pair) => (pair ? `${show.number(pair[0])} … ${show.number(pair[1])}` : "–"),
  head: (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text),
  tail: (text, most) => (text.length > most ? `…${text.slice(text.length - most + 1)}` : text),
};

const STATUS = { int8: "int8", dynamic: "dynamic", weight_only: "weight only", float16: "float16", float: "float" };
const statusColour = (status) => css(status in STATUS ? status : "io");

/* From 5 dB, red, over 20 dB, yellow, to 40 dB, green. */
function errorColour(sqnr) {
  if (sqnr === null || sqnr === undefined) return css("io");
  const stops = [css("bad"), css("mid"), css("good")].map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  const place = Math.max(0, Math.min(2, (sqnr - 5) / 17.5));
  const [from, to] = place < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
  const part = place < 1 ? place : place - 1;
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * part)).join(",")})`;
}

function table(columns, rows) {
  const made = make("table"), head = make("tr");
  for (const column of columns) head.append(make("th", column.number ? "n" : "", column.name));
  const top = make("thead"), body = make("tbody");
  top.append(head);
  for (const row of rows) {
    const line = make("tr");
    row.forEach((value, i) => {
      const cell = make("td", columns[i].number ? "n" : columns[i].path ? "path" : "");
      cell.append(value instanceof Node ? value : document.createTextNode(value === null || value === undefined ? "" : String(value)));
      line.append(cell);
    });
    body.append(line);
  }
  made.append(top, body);
  return made;
}
