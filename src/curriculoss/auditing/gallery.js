"use strict";
// Everything that comes from the data is set as text (textContent, value), never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const key = "curriculoss-audit-" + data.key;
let decisions = new Map(); // index -> {decision, label}
let shown = []; // items after filtering and sorting
let current = 0; // position in shown
const recent = []; // indices of decisions in order, for undo
const cards = new Map(); // index -> element

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function remember() {
  try { localStorage.setItem(key, JSON.stringify([...decisions])); } catch { /* pages from disk may have no storage */ }
}

function recall() {
  try { decisions = new Map(JSON.parse(localStorage.getItem(key) || "[]")); } catch { decisions = new Map(); }
}

function sparkline(margins) {
  const width = 132, height = 34, pad = 3, names = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(names, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `margins over the epochs, from ${margins[0]} to ${margins[margins.length - 1]}`);
  const low = Math.min(0, ...margins), high = Math.max(0, ...margins), span = high - low || 1;
  const x = (i) => pad + (width - 2 * pad) * (margins.length > 1 ? i / (margins.length - 1) : 0.5);
  const y = (m) => height - pad - (height - 2 * pad) * (m - low) / span;
  const draw = (className, points) => {
    const line = document.createElementNS(names, "polyline");
    line.setAttribute("class", className);
    line.setAttribute("points", points.map((point) => point.map((n) => n.toFixed(1)).join(",")).join(" "));
    svg.append(line);
  };
  draw("zero", [[pad, y(0)], [width - pad, y(0)]]);
  draw("margin", margins.map((m, i) => [x(i), y(m)]));
  return svg;
}

function card(item) {
  const element = make("article", "card");
  element.tabIndex = -1;
  element.dataset.index = item.index;
  if (item.image) {
    const image = make("img");
    image.src = item.image;
    image.alt = "";
    element.append(image);
  }
  if (item.row.length) {
    const list = make("dl");
    item.row.forEach((value, i) => list.append(make("dt", "", data.features[i]), make("dd", "", String(value))));
    element.append(list);
  }
  const labels = make("p", "labels");
  labels.append(make("span", "given", item.given), make("span", "arrow", " → "), make("span", "suggested", item.suggested));
  element.append(labels, sparkline(item.margins));
  element.append(make("p", "facts", `wrong: ${Number((100 * item.p_wrong).toPrecision(2))} % · sample ${item.index}`));
  if (item.path) {
    const path = make("p", "path", item.path.split("/").pop());
    path.title = item.path;
    element.append(path);
  }
  const buttons = make("div", "buttons");
  for (const choice of ["keep", "fix", "drop"]) {
    const button = make("button", choice, choice);
    button.type = "button";
    button.addEventListener("click", () => { select(shown.indexOf(item)); decide(choice); });
    buttons.append(button);
  }
  element.append(buttons);
  element.addEventListener("click", (event) => { if (event.target.tagName !== "BUTTON") select(shown.indexOf(item)); });
  return element;
}

function paint(item) {
  const element = cards.get(item.index), made = decisions.get(item.index);
  if (!element) return;
  element.dataset.decision = made ? made.decision : "";
  for (const button of element.querySelectorAll("button")) {
    const pressed = Boolean(made) && button.className === made.decision;
    button.setAttribute("aria-pressed", String(pressed));
    if (button.className === "fix") button.textContent = pressed ? "fix: " + made.label : "fix";
  }
}

function count() {
  const made = { keep: 0, fix: 0, drop: 0 };
  for (const { decision } of decisions.values()) made[decision] += 1;
  byId("count").textContent = `${shown.length} shown · ${made.keep} kept, ${made.fix} fixed, ${made.drop} dropped`;
  byId("export").disabled = decisions.size === 0;
}

const orders = {
  suspicious: (a, b) => b.score - a.score,
  unsuspicious: (a, b) => a.score - b.score,
  index: (a, b) => a.index - b.index,
  given: (a, b) => a.given.localeCompare(b.given) || b.score - a.score,
  suggested: (a, b) => a.suggested.localeCompare(b.suggested) || b.score - a.score,
};

// The value of a class filter is a position in data.classes; an empty value means all.
const chosen = (id) => (byId(id).value === "" ? null : data.classes[Number(byId(id).value)]);

function refresh() {
  const given = chosen("given"), suggested = chosen("suggested"), state = byId("state").value;
  const before = shown[current];
  shown = data.items.filter((item) => {
    const made = decisions.get(item.index);
    return (given === null || item.given === given) && (suggested === null || item.suggested === suggested)
      && (state === "all" || state === (made ? made.decision : "open"));
  }).sort(orders[byId("order").value]);
  byId("gallery").replaceChildren(...shown.map((item) => cards.get(item.index)));
  byId("none").hidden = shown.length > 0;
  select(Math.max(0, shown.indexOf(before)), false);
  count();
}

function select(position, scroll = true) {
  for (const element of document.querySelectorAll(".card.current")) element.classList.remove("current");
  if (!shown.length) { byId("label").value = ""; return; }
  current = Math.min(Math.max(0, position), shown.length - 1);
  const item = shown[current], element = cards.get(item.index), made = decisions.get(item.index);
  element.classList.add("current");
  byId("label").value = made && made.decision === "fix" ? made.label : item.suggested;
  if (scroll) { element.focus({ preventScroll: true }); element.scrollIntoView({ block: "nearest" }); }
}

function decide(choice) {
  const item = shown[current];
  if (!item) return false;
  if (choice === null) {
    decisions.delete(item.index);
  } else {
    const typed = byId("label").value;  // class names may have line breaks, an input has none
    const named = data.classes.find((name) => name === typed) ??
      data.classes.find((name) => name.replace(/[\r\n]/g, "") === typed);
    const label = choice === "keep" ? item.given : choice === "fix" ? named : "";
    if (choice === "fix" && (label === undefined || label === item.given)) {
      byId("said").textContent = label === item.given ? "this is the given label: keep it" : "there is no such class";
      return false;
    }
    decisions.set(item.index, { decision: choice, label });
    recent.push(item.index);
  }
  byId("said").textContent = "";
  remember();
  paint(item);
  count();
  return true;
}

// Undo the decision on this card, or else the last decision; scroll to its card.
function undo() {
  const here = shown[current];
  while (recent.length && !decisions.has(recent.at(-1))) recent.pop();
  const index = here && decisions.has(here.index) ? here.index : recent.pop();
  const position = shown.findIndex((item) => item.index === index);
  if (position < 0) return;
  select(position);
  decide(null);
  select(position);
}

function perRow() {
  const top = (item) => cards.get(item.index).offsetTop;
  const next = shown.findIndex((item) => top(item) > top(shown[0]));
  return next > 0 ? next : shown.length;
}

const moves = { ArrowRight: () => 1, ArrowLeft: () => -1, ArrowDown: perRow, ArrowUp: () => -perRow(), j: () => 1, h: () => -1 };
const choices = { k: "keep", f: "fix", d: "drop" };

document.addEventListener("keydown", (event) => {
  const field = event.target.matches("input, select");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "label" && event.key === "Enter") {
    if (decide("fix")) select(current + 1);
    event.preventDefault();
  } else if (field && event.key === "Escape") {
    event.target.blur();
  } else if (field) {
    return;
  } else if (event.key in moves && shown.length) {
    select(current + moves[event.key]());
    event.preventDefault();
  } else if (event.key in choices) {
    if (decide(choices[event.key])) select(current + 1);
    event.preventDefault();
  } else if (event.key === "u") {
    undo();
    event.preventDefault();
  } else if (event.key === "l") {
    byId("label").focus();
    byId("label").select();
    event.preventDefault();
  }
});

// The same rule as to_cell() in spreadsheets.py: an apostrophe precedes what a spreadsheet would take for a formula.
function cell(text) {
  const safe = /^[=+\-@\t\r']/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

function exported() {
  const rows = data.items.filter((item) => decisions.has(item.index)).map((item) => {
    const { decision, label } = decisions.get(item.index);
    return [String(item.index), cell(item.path), decision, cell(label)].join(",");
  });
  return ["index,path,decision,label", ...rows, ""].join("\n");
}

byId("export").addEventListener("click", () => {
  const address = URL.createObjectURL(new Blob([exported()], { type: "text/csv" }));
  const link = make("a");
  link.href = address;
  link.download = "decisions.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
});

byId("forget").addEventListener("click", () => {
  if (!confirm("Forget all decisions?")) return;
  decisions.clear();
  remember();
  data.items.forEach(paint);
  refresh();
});

recall();
for (const id of ["given", "suggested"]) {
  const used = new Set(data.items.map((item) => item[id]));
  data.classes.forEach((name, i) => {
    if (!used.has(name)) return;
    const option = make("option", "", name);
    option.value = String(i);
    byId(id).append(option);
  });
}
data.classes.forEach((name) => { const option = make("option"); option.value = name; byId("classes").append(option); });
for (const item of data.items) { cards.set(item.index, card(item)); paint(item); }
for (const id of ["given", "suggested", "state", "order"]) byId(id).addEventListener("change", refresh);
refresh();
