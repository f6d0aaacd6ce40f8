"use strict";
// The formulas here are a second copy of curriculoss/losses; tests/test_explorer_browser.py holds them to the first.
// Everything that comes from runs is set as text (textContent), never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// --- Losses as functions of the margin Δ, by their names in the registry; p = σ(Δ) --------------------------------

const sigmoid = (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));
const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
// p (1 − p) e^exponent, formed as one power of e, so that nothing underflows on the way.
const bell = (margin, exponent) => Math.exp(exponent - softplus(-margin) - softplus(margin));

const FAMILIES = {
  ce: () => ({ loss: (m) => softplus(-m), weight: (m) => sigmoid(-m) }),
  fl: ({ q }) => ({
    loss: (m) => Math.exp(-q * softplus(m)) * softplus(-m),
    weight: (m) => Math.exp(-q * softplus(m)) * (sigmoid(-m) + q * sigmoid(m) * softplus(-m)),
  }),
  mae: () => ({ loss: (m) => sigmoid(-m), weight: (m) => sigmoid(m) * sigmoid(-m) }),
  aul: ({ a, q }) => ({
    loss: (m) => (a - 1) ** q * Math.expm1(q * Math.log1p(sigmoid(-m) / (a - 1))) / q,
    weight: (m) => bell(m, (q - 1) * Math.log(a - 1 + sigmoid(-m))),
  }),
  agce: ({ a, q }) => ({
    loss: (m) => -((a + 1) ** q) * Math.expm1(q * Math.log1p(-sigmoid(-m) / (a + 1))) / q,
    weight: (m) => bell(m, (q - 1) * Math.log(a + sigmoid(m))),
  }),
  ael: ({ q }) => ({
    loss: (m) => Math.exp(-sigmoid(m) / q),
    weight: (m) => bell(m, -sigmoid(m) / q - Math.log(q)),
  }),
  gce: ({ q }) => ({
    loss: (m) => -Math.expm1(-q * softplus(-m)) / q,
    weight: (m) => Math.exp(-q * softplus(-m)) * sigmoid(-m),
  }),
  sce: ({ q }) => ({
    loss: (m) => (1 - q) * softplus(-m) + q * sigmoid(-m),
    weight: (m) => (1 - q + q * sigmoid(m)) * sigmoid(-m),
  }),
  tce: ({ q }) => ({
    loss: (m) => { let sum = 0; for (let i = q; i > 0; i--) sum = (sum + 1 / i) * sigmoid(-m); return sum; },
    weight: (m) => -sigmoid(-m) * Math.expm1(-q * softplus(m)),
  }),
};

// Lines between points [margin, weight], constant outside; the loss is the area to the right, or counted from 0 if
// that is infinite: Designed.from_points.
function fromPoints(points) {
  const last = points.at(-1);
  const weight = (m) => {
    if (m <= points[0][0]) return points[0][1];
    if (m >= last[0]) return last[1];
    const k = points.findIndex((point) => point[0] > m), [x0, y0] = points[k - 1], [x1, y1] = points[k];
    return y0 + (y1 - y0) * (m - x0) / (x1 - x0);
  };
  const area = (m) => { // from the first point
    let sum = m < points[0][0] ? (m - points[0][0]) * points[0][1] : 0;
    for (let k = 1; k < points.length && points[k - 1][0] < m; k++) {
      const end = Math.min(m, points[k][0]);
      sum += (points[k - 1][1] + weight(end)) / 2 * (end - points[k - 1][0]);
    }
    return m > last[0] ? sum + (m - last[0]) * last[1] : sum;
  };
  const whole = area(last[1] ? 0 : last[0]);
  return { weight, area, loss: (m) => whole - area(m), peak: Math.max(...points.map((point) => point[1])) };
}

// The largest weight: the best of a grid, then golden sections around it. CE's is 1, at margin −∞.
function largest(weight) {
  let best = -60;
  for (let m = -60; m <= 60; m += 0.25) if (weight(m) > weight(best)) best = m;
  let low = best - 0.25, high = best + 0.25;
  for (let i = 0; i < 60; i++) {
    const a = high - 0.618034 * (high - low), b = low + 0.618034 * (high - low);
    if (weight(a) > weight(b)) high = b; else low = a;
  }
  return Math.max(weight(best), weight((low + high) / 2));
}

const scaled = (base, alpha) => ({
  weight: (m) => alpha * base.weight(alpha * m), loss: (m) => base.loss(alpha * m), peak: alpha * base.peak,
  unit: alpha * base.unit, area: base.area && ((m) => base.area(alpha * m)),
});
const shifted = (base, beta) => ({
  weight: (m) => base.weight(m + beta), loss: (m) => base.loss(m + beta), peak: base.peak, unit: base.unit,
  area: base.area && ((m) => base.area(m + beta)),
});

// --- Fix, verdict and robustness, as curriculoss.fixing and curriculoss.losses.asymmetry have them ------------------

// As Python's format(value, ".3g").
function general(value, digits) {
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  if (exponent >= -4 && exponent < digits) return String(Number(value.toPrecision(digits)));
  return `${Number(mantissa)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}
const percent = (share) => `${general(100 * share, 3)} %`;

// What the fix of an entry does: the amount, and why it is not applied if it is not.
function planFix({ fix, tau }, start) {
  const scale = fix === "scale", bias = fix === "logit-bias";
  const ten = data.classes.find((each) => each.number === 10).expected;
  const amount = bias ? ten - start : scale ? (start ? tau / Math.abs(start) : Infinity) : -start - tau;
  if (amount === 0 || (start < 0 && (scale ? amount <= 1 : amount >= 0))) return { amount, reason: "" };
  const given = bias ? "" : ` and tau=${general(tau, 6)}`;
  return {
    amount,
    reason: `fix '${fix}' would do harm with an expected initial margin of ${general(start, 4)}${given} ` +
      `(${scale ? "alpha" : "beta"}=${general(amount, 4)}): the curriculum is left as it is`,
  };
}

// An entry is {loss, params} or {points}, and {fix, tau}.
function curriculum(entry, classes) {
  let base = entry.loss === DRAWN ? fromPoints(entry.points) : FAMILIES[entry.loss](entry.params);
  base = { ...base, peak: base.peak ?? largest(base.weight), unit: 1 };
  if (entry.loss !== DRAWN) base.unit = base.peak; // a drawn curve passes through its points
  const plan = entry.fix ? planFix(entry, classes.expected) : { amount: 0, reason: "" };
  if (plan.reason || !plan.amount) return { ...base, reason: plan.reason };
  return { ...(entry.fix === "scale" ? scaled : shifted)(base, plan.amount), reason: "", amount: plan.amount };
}

const mean = (numbers, each = (x) => x) => numbers.reduce((sum, x) => sum + each(x), 0) / numbers.length;
const meanWeight = (made, margins) => mean(margins, made.weight) / made.peak;

function underfitting(made, classes) {
  const ofCe = meanWeight({ ...FAMILIES.ce(), peak: 1 }, classes.margins), begin = mean(classes.margins);
  const weight = meanWeight(made, classes.margins), share = weight / ofCe;
  const level = share < data.severe ? "severe" : share < data.mild ? "mild" : "none";
  const outlook = level === "none" ? "It should not underfit" : `It will underfit ${level}ly`;
  let sentence = `${outlook}: samples start with ${percent(share)} of the weight that CE gives them.`;
  if (level !== "none" && begin < -data.tau) {
    const better = meanWeight(scaled(made, data.tau / -begin), classes.margins) / ofCe;
    if (better > share) sentence += ` Scaling it with tau=${data.tau} would make that ${percent(better)}.`;
  }
  return { level, weight, ofCe, share, sentence };
}

// The largest r for which the loss is asymmetric: the least fall of l between p = x and x + h, as a share of that
// between 0 and h. It is 0 if l falls infinitely fast at p = 0, which shows in how w ends.
function noiseRatio({ weight, loss, area }) {
  if (Math.log(weight(-295) / weight(-300)) / 5 < 1 - 1e-7) return 0; // not so for 0/0, a drawn curve that ends at 0
  const rate = (m) => weight(m) / (sigmoid(m) * sigmoid(-m)), logit = (p) => Math.log(p) - Math.log1p(-p);
  // Differences of losses are rounding where p changes little; there the rate does not.
  const fallen = area ?? ((m) => {
    const p = sigmoid(m);
    return p < 1e-6 ? p * rate(logit(p / 2)) : loss(-800) - loss(m);
  });
  const ratio = (low, u) => { // h is a share σ(u) of 1 − x, so that any x and h are one of a grid
    const x = sigmoid(low), rest = sigmoid(-low), h = rest * sigmoid(u);
    const high = Math.log(x + h) - Math.log(rest * sigmoid(-u)), middle = Math.log(x + h / 2) - Math.log(rest - h / 2);
    const near = h < (area ? 1e-3 * Math.min(x, rest) : 1e-6), outside = fallen(logit(h));
    const inside = near ? h * rate(middle) : area ? area(high) - area(low) : loss(low) - loss(high);
    return outside > 0 ? inside / outside : Infinity;
  };
  let best = { value: 1, low: 0, u: 0 };
  const line = (from, to, count) => Array.from({ length: count }, (_, i) => from + (to - from) * i / (count - 1));
  const search = (lows, us) => {
    for (const low of lows) for (const u of us) {
      const value = ratio(low, u);
      if (value < best.value) best = { value, low, u };
    }
  };
  search(line(-22, 22, 89), line(-30, 22, 105));
  for (let width = 0.5; width > 1e-4 && best.value < 1; width /= 3) {
    search(line(best.low - width, best.low + width, 9), line(best.u - width, best.u + width, 9));
  }
  return best.value > 1 - 1e-8 ? 1 : Math.max(0, best.value);
}

function robustness(ratio) {
  if (ratio === 0) return "No guarantee of robustness: its noise ratio is 0.";
  if (ratio === 1) return "Robust while no wrong label is more frequent than the right one.";
  return `Robust while no wrong label is more than ${general(ratio, 2)} times as frequent as the right one.`;
}

// --- The lines that make a loss -------------------------------------------------------------------------------------

const DRAWN = "drawn";
const known = data.losses.filter((loss) => loss.name in FAMILIES);
const factsOf = (name) => known.find((loss) => loss.name === name);
const given = (entry, join) => factsOf(entry.loss).params.map((param) => join(param.name, entry.params[param.name]));
const applied = (entry) => entry.fix && !curriculum(entry, classes()).reason;
const withTau = (entry) => entry.fix === "scale" || entry.fix === "shift";

function python(entry) {
  const drawn = entry.loss === DRAWN, name = drawn ? "Designed" : factsOf(entry.loss).class;
  const column = (i) => `[${entry.points.map((point) => point[i]).join(", ")}]`;
  let made = drawn ? `Designed.from_points(${column(0)}, ${column(1)})`
    : `${name}(${given(entry, (key, value) => `${key}=${value}`).join(", ")})`;
  if (!applied(entry)) return `from curriculoss import ${name}\nloss = ${made}`;
  const tau = withTau(entry) ? `, tau=${entry.tau}` : "";
  made = `fix(${made}, "${entry.fix}"${tau}, num_classes=${classes().number})`;
  return `from curriculoss import ${name}, fix\nloss = ${made}`;
}

function command(entry) {
  if (entry.loss === DRAWN) return "";
  const options = given(entry, (key, value) => ` -p ${key}=${value}`).join("");
  const fix = applied(entry) ? ` --fix ${entry.fix}${withTau(entry) ? ` --tau ${entry.tau}` : ""}` : "";
  return `curriculoss train --data DATA --loss ${entry.loss}${options}${fix} --out RUN`;
}

function title(entry) {
  const refused = entry.fix && !applied(entry);
  const adjective = entry.fix && !refused ? data.fixes.find((each) => each.name === entry.fix).adjective : "";
  if (entry.loss === DRAWN) return adjective ? `drawn by hand, ${adjective}` : "drawn by hand";
  const params = given(entry, (key, value) => `${key}=${value}`).join(", ");
  return (adjective && `${adjective} `) + factsOf(entry.loss).class + (params && ` (${params})`);
}

// --- Elements and charts --------------------------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function draw(parent, tag, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

const drawLine = (svg, name, [x1, x2], [y1, y2]) => draw(svg, "line", { class: name, x1, x2, y1, y2 });
const write = (svg, name, x, y, anchor, text) => draw(svg, "text", { class: name, x, y, "text-anchor": anchor }, text);
const signed = (text) => text.replace("-", "−");
const round = (x) => Math.round(x * 100) / 100;
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${round(x)} ${round(y)}`).join("");
const COLOURS = [0, 1, 2, 3, 6, 4, 5].map((i) => `var(--c${i})`); // 5 is like 0, and there are at most six losses
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "4 2", "12 4"]; // lines differ without their colours, too
const lineStyle = (i) => `stroke: ${COLOURS[i % 7]}; stroke-dasharray: ${DASHES[i % 6] || "none"}`;

// Round numbers, about `count` of them, at least `least` apart.
function ticks(low, high, count, least = 0) {
  const rough = Math.max(least, (high - low) / count), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    found.push(Number((i * step).toPrecision(6)));
  }
  return found;
}

// Empty axes in an <svg> as wide as its place, so that text has the size of text: {svg, x, y, width, height}.
function axes(place, { height, xs, ys, label, xLabel, xLeast = 0, yTicks = 4, left = 38, bottom = 34 }) {
  const svg = byId(place), width = Math.max(240, svg.parentElement.clientWidth), right = 10, top = 10;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", label);
  const x = (value) => left + (width - left - right) * (value - xs[0]) / (xs[1] - xs[0]);
  const y = (value) => height - bottom - (height - bottom - top) * (value - ys[0]) / (ys[1] - ys[0]);
  for (const tick of yTicks ? ticks(...ys, yTicks) : []) {
    drawLine(svg, "grid", [left, width - right], [y(tick), y(tick)]);
    write(svg, "tick", left - 7, y(tick) + 4, "end", signed(String(tick)));
  }
  drawLine(svg, "axis", [left, width - right], [y(ys[0]), y(ys[0])]);
  for (const tick of ticks(...xs, Math.max(3, width / 75), xLeast)) {
    write(svg, "tick", x(tick), height - bottom + 15, "middle", signed(String(tick)));
  }
  write(svg, "tick", width - right, height - 3, "end", xLabel);
  return { svg, x, y, width, height };
}

const curve = (chart, f, [low, high], style, count = 321) => draw(chart.svg, "path", { class: "curve", style, d: path(
  Array.from({ length: count }, (_, i) => low + (high - low) * i / (count - 1)).map((m) => [chart.x(m), chart.y(f(m))]),
) });

// --- Losses: state, picture, cards ----------------------------------------------------------------------------------

const SPAN = [-14, 8];
const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
for (const each of data.classes) each.margins = [...new Float32Array(decode(each.margins).buffer)];
const paramsOf = (name) => (name === DRAWN ? [] : factsOf(name).params);
const defaults = (name) => Object.fromEntries(paramsOf(name).map((param) => [param.name, param.default]));
const newEntry = (loss, fix = "") => ({
  loss, fix, tau: data.tau, params: defaults(loss),
  points: [[-10, 0.1], [-7, 0.6], [-5, 1], [-2, 0.9], [0, 0.5], [3, 0.1], [6, 0]],
});
const start = () => ({
  classes: data.classes.findIndex((each) => each.number === 100),
  entries: [newEntry("ce"), newEntry("mae"), newEntry("mae", "scale")],
  epoch: Infinity, runs: data.runs.map((_, i) => i).slice(0, 2),
});
const state = start();
const classes = () => data.classes[state.classes];
const drawnEntry = () => state.entries.find((entry) => entry.loss === DRAWN);

function initialDensity(chart) {
  const counts = new Map();
  for (const m of classes().margins) counts.set(Math.floor(4 * m), (counts.get(Math.floor(4 * m)) || 0) + 1);
  const most = Math.max(...counts.values()), low = Math.min(...counts.keys()), high = Math.max(...counts.keys());
  const count = (bin) => counts.get(bin) || 0;
  const height = (bin) => (count(bin - 1) + 2 * count(bin) + count(bin + 1)) / (4 * most);
  const points = [];
  for (let bin = low - 2; bin <= high + 2; bin++) points.push([(bin + 0.5) / 4, 0.92 * height(bin)]);
  const outline = path(points.map(([m, share]) => [chart.x(clamp(m, ...SPAN)), chart.y(share)]));
  draw(chart.svg, "path", { class: "initial", d: outline + "Z" });
}

function paintWeights(made) {
  const { number, expected } = classes();
  const chart = axes("weights", {
    height: innerWidth < 600 ? 190 : 340, xs: SPAN, ys: [0, 1.05], xLabel: "margin Δ",
    label: `Weight over the margin, 1 is the largest, for ${state.entries.map(title).join(", ")}; ` +
      `with ${number} classes margins start around ${general(expected, 3)}`,
  });
  initialDensity(chart);
  made.forEach((each, i) => curve(chart, (m) => each.weight(m) / each.unit, SPAN, lineStyle(i)));
  const active = state.entries.findIndex((entry) => entry.loss === DRAWN);
  if (active >= 0) paintPoints(chart, active, made[active]);
}

function paintLosses(made) {
  const heights = made.map((each) => SPAN.map((m) => each.loss(m) / each.peak)).flat();
  const low = Math.min(0, ...heights), high = Math.max(1, ...heights);
  const chart = axes("losses", {
    height: innerWidth < 600 ? 180 : 340, xs: SPAN, ys: [low, high], xLabel: "margin Δ",
    label: `Loss over the margin, divided by the largest weight, for ${state.entries.map(title).join(", ")}`,
  });
  made.forEach((each, i) => curve(chart, (m) => each.loss(m) / each.peak, SPAN, lineStyle(i)));
}

function lineSample(i) {
  const size = { viewBox: "0 0 28 8", width: 28, height: 8 };
  const svg = draw(document.createElement("span"), "svg", { class: "sample", ...size, "aria-hidden": "true" });
  drawLine(svg, "curve", [0, 28], [4, 4]).setAttribute("style", lineStyle(i));
  return svg;
}

function paintCard(entry, i, made) {
  const card = byId("cards").children[i], verdict = underfitting(made, classes()), ratio = noiseRatio(made);
  const set = (name, text) => { card.querySelector(name).textContent = text; };
  card.dataset.level = verdict.level;
  set(".name", title(entry));
  set(".mean", `${general(verdict.weight, 2)}`);
  set(".ofce", `${general(verdict.ofCe, 2)}`);
  set(".ratio", general(ratio, 2));
  set(".sentence", verdict.sentence.replaceAll(" %", "\u00a0%"));
  set(".robust", robustness(ratio));
  set(".note", made.reason ? `Note: ${made.reason}.` : "");
  set(".python", python(entry));
  const [start, ...options] = command(entry).split(" --"); // lines break between options, not after their hyphens
  const spans = options.flatMap((option) => [" ", make("span", { class: "option" }, `--${option}`)]);
  card.querySelector(".command").replaceChildren(start, ...spans);
  card.querySelector(".by-command").hidden = !command(entry);
}

function paint() {
  const made = state.entries.map((entry) => curriculum(entry, classes()));
  const number = classes().number.toLocaleString("en");
  byId("classes").value = state.classes;
  byId("classes").setAttribute("aria-valuetext", `${number} classes`);
  byId("classes-now").textContent = number;
  byId("start").textContent = `Margins start around ${general(classes().expected, 3).replace("-", "−")}.`;
  byId("key").replaceChildren(...state.entries.map((entry, i) => make("li", {}, lineSample(i), title(entry))),
    make("li", {}, make("i", { class: "swatch" }), "initial margins"));
  paintWeights(made);
  paintLosses(made);
  state.entries.forEach((entry, i) => paintCard(entry, i, made[i]));
}

// Tell screen readers the verdicts, once a control has come to rest.
let resting;
function say() {
  clearTimeout(resting);
  resting = setTimeout(() => {
    const made = state.entries.map((entry) => underfitting(curriculum(entry, classes()), classes()));
    const verdicts = state.entries.map((entry, i) => `${title(entry)}: ${made[i].sentence}`);
    byId("said").textContent = [`${classes().number} classes.`, ...verdicts].join(" ");
  }, 500);
}

function slider(label, { low, high, log, whole }, value, change) {
  const position = (x) => (log ? Math.log10(x) : x), shown = make("output", {}, String(value));
  const input = make("input", {
    type: "range", min: position(low), max: position(high), step: whole ? 1 : "any", value: position(value),
    "aria-valuetext": value, oninput: () => {
      const raw = log ? 10 ** Number(input.value) : Number(input.value), now = Number(raw.toPrecision(3));
      shown.textContent = now;
      input.setAttribute("aria-valuetext", now);
      change(now);
      paint();
      say();
    },
  });
  return make("label", { class: "slider" }, make("span", {}, label), input, shown);
}

function select(label, options, value, change) {
  const input = make("select", { onchange: () => { change(input.value); rebuild(input); say(); } },
    ...options.map(([name, text]) => make("option", { value: name, selected: name === value }, text)));
  return make("label", { class: "choice" }, make("span", {}, label), input);
}

async function copy(button, code) {
  try { await navigator.clipboard.writeText(code.textContent); } catch { // no permission: select it, to copy by hand
    getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) return;
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
}

function codeBlock(what, name) {
  const code = make("pre", { class: name, tabindex: 0, role: "region", "aria-label": what });
  const button = make("button", { type: "button", class: "copy", "aria-label": `Copy the ${what}` }, "copy");
  button.addEventListener("click", () => copy(button, code));
  return make("div", { class: `code by-${name}` }, code, button);
}

function controls(entry) {
  const losses = known.map((loss) => [loss.name, loss.class]), fixes = [["", "none"]];
  for (const { name } of data.fixes) fixes.push([name, name]);
  if (entry.loss === DRAWN || !drawnEntry()) losses.push([DRAWN, "drawn by hand"]); // one is enough
  const made = make("div", { class: "controls" },
    select("loss", losses, entry.loss, (name) => { Object.assign(entry, { loss: name, params: defaults(name) }); }),
    select("fix", fixes, entry.fix, (name) => { entry.fix = name; }));
  for (const param of paramsOf(entry.loss)) {
    made.append(slider(param.name, param, entry.params[param.name], (value) => { entry.params[param.name] = value; }));
  }
  if (withTau(entry)) made.append(slider("τ", { low: 0.5, high: 8 }, entry.tau, (value) => { entry.tau = value; }));
  return made;
}

const HOW_TO_DRAW = "Drag the points in the picture, or focus one and use the arrow keys; " +
  "+ adds a point, Delete removes it.";

function card(entry, i) {
  const fact = (name, term) => make("div", {}, make("dt", {}, term), make("dd", { class: name }));
  const sentence = (name, text = "") => make("p", { class: name }, text);
  const head = make("header", {}, lineSample(i), make("h2", { class: "name" }));
  if (state.entries.length > 1) {
    const remove = make("button", { type: "button", class: "remove", "aria-label": `Remove loss ${i + 1}` }, "remove");
    remove.addEventListener("click", () => { state.entries.splice(i, 1); rebuild(byId("add")); });
    head.append(remove);
  }
  return make("section", { class: "card", "aria-label": `Loss ${i + 1}` },
    head,
    controls(entry),
    sentence("about", entry.loss === DRAWN ? HOW_TO_DRAW : factsOf(entry.loss).about),
    make("dl", {}, fact("mean", "mean initial weight"), fact("ofce", "CE’s"), fact("ratio", "noise ratio")),
    make("div", { class: "verdict" }, sentence("sentence"), sentence("robust"), sentence("note")),
    codeBlock("Python", "python"),
    codeBlock("command", "command"));
}

// Make the cards anew after a change of what there is to set, and give the focus back to where it was.
function rebuild(from) {
  const place = [...document.querySelectorAll("#cards select, #add")].indexOf(from);
  byId("cards").replaceChildren(...state.entries.map(card));
  byId("add").disabled = state.entries.length >= 6;
  byId("draw").disabled = state.entries.length >= 6 && !drawnEntry();
  byId("points").hidden = !drawnEntry();
  paint();
  const after = from && (from.isConnected ? from : document.querySelectorAll("#cards select, #add")[place]);
  if (after) after.focus();
}

// --- Drawing a weight function --------------------------------------------------------------------------------------

const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

// Move a point, not past its neighbours; margins by twentieths, weights by hundredths, as a person would write them.
function movePoint(points, k, margin, weight) {
  const low = k ? points[k - 1][0] + 0.05 : SPAN[0], high = k < points.length - 1 ? points[k + 1][0] - 0.05 : SPAN[1];
  const others = points.some((point, i) => i !== k && point[1] > 0);
  const moved = [clamp(Math.round(margin * 20) / 20, low, high), clamp(weight, others ? 0 : 0.01, 1)];
  points[k] = moved.map((x) => Number(x.toFixed(2)));
}

function addPoint(points, k) {
  const [a, b] = k < points.length - 1 ? [k, k + 1] : [k - 1, k];
  if (points[b][0] - points[a][0] < 0.2) return k;
  points.splice(b, 0, [0, 0]);
  movePoint(points, b, (points[a][0] + points[b + 1][0]) / 2, (points[a][1] + points[b + 1][1]) / 2);
  return b;
}

function removePoint(points, k) {
  if (points.length > 2 && points.some((point, i) => i !== k && point[1] > 0)) points.splice(k, 1);
  return Math.min(k, points.length - 1);
}

function pointKey(event, points, k) {
  const [margin, weight] = points[k], step = event.shiftKey ? 5 : 1;
  const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.02], ArrowDown: [0, -0.02] };
  const [right, up] = moves[event.key] ?? [0, 0];
  let focus = k;
  if (event.key in moves) movePoint(points, k, margin + step * right, weight + step * up);
  else if (event.key === "+" || event.key === "Insert") focus = addPoint(points, k);
  else if (event.key === "Delete" || event.key === "Backspace") focus = removePoint(points, k);
  else return;
  event.preventDefault();
  paint();
  document.querySelectorAll("#weights .point")[focus].focus();
}

function paintPoints(chart, active, made) {
  const points = state.entries[active].points, plain = fromPoints(points);
  // With a fix the points stay where they were drawn; the curve is the fixed one.
  if (made.amount) curve(chart, plain.weight, SPAN, `stroke: ${COLOURS[active]}; stroke-width: 1; opacity: .5`);
  points.forEach(([margin, weight], k) => {
    const point = draw(chart.svg, "circle", {
      class: "point", cx: chart.x(margin), cy: chart.y(weight), r: 7, tabindex: 0, role: "slider",
      style: `fill: ${COLOURS[active]}`, "aria-label": `Point ${k + 1} of ${points.length}`,
      "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": weight,
      "aria-valuetext": `margin ${margin}, weight ${weight}`,
    });
    point.addEventListener("keydown", (event) => pointKey(event, points, k));
    point.addEventListener("pointerdown", (event) => dragPoint(event, chart, points, k));
    point.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false }); // or a finger scrolls
  });
}

// The picture is painted anew at each move, so the moves are those of the window.
function dragPoint(start, chart, points, k) {
  start.preventDefault();
  const box = chart.svg.getBoundingClientRect(), scale = chart.width / box.width;
  const span = chart.x(SPAN[1]) - chart.x(SPAN[0]), top = chart.y(0) - chart.y(1);
  const move = (event) => {
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    movePoint(points, k, SPAN[0] + (SPAN[1] - SPAN[0]) * (x - chart.x(SPAN[0])) / span, (chart.y(0) - y) / top);
    paint();
  };
  const end = () => {
    removeEventListener("pointermove", move);
    removeEventListener("pointerup", end);
    removeEventListener("pointercancel", end);
    document.querySelectorAll("#weights .point")[k].focus();
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", end);
  addEventListener("pointercancel", end);
}

// --- Runs -----------------------------------------------------------------------------------------------------------

const RUN_CHARTS = [ // key of the series, place on the page, name
  ["test_accuracy", "accuracy", "test accuracy in percent"],
  ["mean_weight", "mean-weight", "mean weight"],
  ["snr", "snr", "snr"],
];
const shownRuns = () => state.runs.map((i) => data.runs[i]);
const epochsShown = () => [...new Set(shownRuns().flatMap((run) => run.epochs))].sort((a, b) => a - b);
// The last kept epoch of a run up to the one that is chosen.
const frameOf = (run) => Math.max(0, run.epochs.findLastIndex((epoch) => epoch <= state.epoch));

function ridge(chart, run, kind, frame, base, height, opacity) {
  const { low, step, bins } = run.margins, row = run.bytes[kind].subarray(frame * bins, (frame + 1) * bins);
  const first = row.findIndex((x) => x > 1), last = row.findLastIndex((x) => x > 1);
  if (first < 0) return;
  const points = [[chart.x(low + step * first), base]];
  for (let bin = first; bin <= last; bin++) points.push([chart.x(low + step * bin), base - height * row[bin] / 255]);
  points.push([chart.x(low + step * last), base]);
  draw(chart.svg, "path", { class: `ridge ${kind}`, opacity, d: path(points) + "Z" });
}

// The epochs of the small ridges: the first, the last, and ever fewer towards the end.
function chosenFrames(run, most = 7) {
  const count = run.epochs.length, found = new Set([0, count - 1]);
  for (let i = 0; i < most; i++) found.add(Math.round(count ** (i / (most - 1))) - 1);
  return [...found].sort((a, b) => a - b);
}

// Above, the margins of the chosen epoch under w(Δ); below, those of other epochs, to choose one by a click.
function paintMargins(place, run, i, xs) {
  const frame = frameOf(run), kinds = Object.keys(run.bytes), height = 400, split = 230, bottom = 34;
  const chart = axes(place, {
    height, xs, ys: [0, 1], xLabel: "margin Δ", yTicks: 0, left: 12, bottom,
    label: `Margins of ${kinds.join(" and ")} samples of ${run.name} in epoch ${run.epochs[frame]}, with the weight`,
  });
  const across = xs.map(chart.x), right = chart.width - 10;
  drawLine(chart.svg, "grid", across, [split, split]);
  for (const kind of kinds) ridge(chart, run, kind, frame, split, split - 30, 0.75);
  if (run.weight) {
    const points = run.weight.map((w, bin) => [run.margins.first + run.margins.step * bin, w]);
    const visible = points.filter(([m]) => m >= xs[0] && m <= xs[1]);
    const line = path(visible.map(([m, w]) => [chart.x(m), split - (split - 22) * w]));
    draw(chart.svg, "path", { class: "curve halo", d: line });
    draw(chart.svg, "path", { class: "curve", style: lineStyle(i), d: line });
  }
  write(chart.svg, "epoch", right, 22, "end", `epoch ${run.epochs[frame]}`);
  const frames = chosenFrames(run), step = (height - bottom - split - 8) / frames.length;
  const nearest = frames.findLast((each) => each <= frame);
  frames.forEach((each, row) => {
    const base = split + 8 + step * (row + 1), marked = each === nearest;
    drawLine(chart.svg, "grid", across, [base, base]);
    for (const kind of kinds) ridge(chart, run, kind, each, base, 1.2 * step, marked ? 0.85 : 0.35);
    write(chart.svg, marked ? "tick marked" : "tick", right, base - 4, "end", String(run.epochs[each]));
    const area = draw(chart.svg, "rect", { class: "choose", x: 0, y: base - step, width: chart.width, height: step });
    area.addEventListener("click", () => { state.epoch = run.epochs[each]; paintRuns(); });
  });
}

// A measure of the runs over the epochs; hidden if no run has it.
function paintSeries([key, place, name], runs) {
  const all = runs.flatMap((run) => run.series[key]).filter((x) => x !== null);
  byId(place).closest("figure").hidden = all.length === 0;
  if (!all.length) return;
  const xs = [1, Math.max(2, ...runs.map((run) => run.series[key].length))];
  const ys = [0, key === "test_accuracy" ? 100 : 1.1 * Math.max(...all, key === "snr" ? 1 : 0)];
  const epochs = runs.map((run) => run.epochs[frameOf(run)]);
  const now = runs.map((run, i) => run.series[key][epochs[i] - 1]);
  const words = now.map((value) => (value === null ? "–" : general(value, 3)));
  const label = `${name} by epoch; now ${runs.map((run, i) => `${run.name}: ${words[i]}`).join(", ")}`;
  const chart = axes(place, { height: 170, xs, ys, xLabel: "epoch", xLeast: 1, label, yTicks: 3 });
  if (key === "snr") drawLine(chart.svg, "reference", xs.map(chart.x), [chart.y(1), chart.y(1)]);
  drawLine(chart.svg, "mark", [chart.x(state.epoch), chart.x(state.epoch)], ys.map(chart.y));
  runs.forEach((run, i) => {
    const points = run.series[key].map((value, e) => [e + 1, value]).filter(([, value]) => value !== null);
    const line = path(points.map(([e, value]) => [chart.x(e), chart.y(value)]));
    draw(chart.svg, "path", { class: "curve", style: lineStyle(i), d: line });
    if (now[i] === null) return;
    const dot = { cx: chart.x(epochs[i]), cy: chart.y(now[i]), r: 4, style: `fill: ${COLOURS[i]}` };
    draw(chart.svg, "circle", { class: "now", ...dot });
  });
  byId(`${place}-now`).textContent = words.join(" · ");
}

function paintRuns() {
  const runs = shownRuns(), epochs = epochsShown(), slider = byId("epoch");
  state.epoch = epochs.findLast((epoch) => epoch <= state.epoch) ?? epochs[0];
  slider.max = epochs.length - 1;
  slider.value = epochs.indexOf(state.epoch);
  slider.setAttribute("aria-valuetext", `epoch ${state.epoch} of ${epochs.at(-1)}`);
  byId("epoch-now").textContent = `${state.epoch} of ${epochs.at(-1)}`;
  [...byId("runs").children].forEach((button, i) => button.setAttribute("aria-pressed", state.runs.includes(i)));
  const lows = runs.map(({ margins }) => margins.low);
  const highs = runs.map(({ margins }) => margins.low + margins.step * (margins.bins - 1));
  for (const i of [0, 1]) {
    const run = runs[i];
    byId(`run-${i}`).hidden = !run;
    if (!run) continue;
    const weightless = run.weight ? "" : " · its weight is no fixed function of the margin";
    byId(`run-${i}-name`).replaceChildren(lineSample(i), run.name);
    byId(`run-${i}-about`).textContent = `${run.loss} · ${run.about}${weightless}`;
    paintMargins(`run-${i}-margins`, run, i, [Math.min(...lows), Math.max(...highs)]);
  }
  for (const each of RUN_CHARTS) paintSeries(each, runs);
}

// Choose a run: beside the last one chosen, or alone if it was chosen already and another remains.
function chooseRun(i) {
  if (!state.runs.includes(i)) state.runs = [...state.runs.slice(-1), i];
  else if (state.runs.length > 1) state.runs = state.runs.filter((each) => each !== i);
  paintRuns();
}

function startRuns() {
  data.runs.forEach((run, i) => {
    run.bytes = {};
    for (const [kind, text] of Object.entries(run.densities)) run.bytes[kind] = decode(text);
    const button = make("button", { type: "button" }, make("b", {}, run.name), make("small", {}, run.loss));
    button.addEventListener("click", () => chooseRun(i));
    byId("runs").append(button);
  });
  byId("epoch").addEventListener("input", () => {
    state.epoch = epochsShown()[Number(byId("epoch").value)];
    paintRuns();
  });
  paintRuns();
}

// --- The controls that are always there -----------------------------------------------------------------------------

const clicked = (id, act) => byId(id).addEventListener("click", act);
byId("classes").max = data.classes.length - 1;
byId("classes").addEventListener("input", () => {
  state.classes = Number(byId("classes").value);
  paint();
  say();
});
clicked("add", () => { state.entries.push(newEntry("gce")); rebuild(byId("add")); });
clicked("draw", () => {
  if (!drawnEntry()) state.entries.push(newEntry(DRAWN));
  rebuild();
  document.querySelector("#weights .point").focus();
});
clicked("point-add", () => { addPoint(drawnEntry().points, drawnEntry().points.length - 1); paint(); });
clicked("point-remove", () => { removePoint(drawnEntry().points, drawnEntry().points.length - 2); paint(); });
clicked("reset", () => {
  Object.assign(state, start());
  rebuild(byId("reset"));
  if (data.runs.length) paintRuns();
});
rebuild();
if (data.runs.length) startRuns();
addEventListener("resize", () => { paint(); if (data.runs.length) paintRuns(); });

// For tests, and for the curious.
const withClasses = (number) => data.classes.find((each) => each.number === number);
window.explorer = {
  state, noiseRatio,
  show: (entries) => { state.entries = entries; rebuild(); },
  made: (entry, number) => curriculum(entry, withClasses(number)),
  verdict: (entry, number) => underfitting(curriculum(entry, withClasses(number)), withClasses(number)),
};
