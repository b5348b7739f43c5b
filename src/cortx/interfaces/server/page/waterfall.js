// The way from the base value to the prediction, as a drawing and as a table.

import { h, s } from "./dom.js";
import { direction, number, signed, ticks, valueText } from "./format.js";

const WIDE = 540; // pixels from which on labels stand beside the bars
const LETTER = 6.9; // pixels that a letter takes, about
const TALL = 16; // pixels of a bar
const SHOWN = 12; // players, before the rest become one bar

/**
 * What is drawn: `base`, `prediction`, and `steps` of {player, value, single, amount, band, kept}; `band` is
 * [low, high] or null, `kept` the same player's attribution in the kept row or null, `value` its cell where `single`.
 */
export class Waterfall {
  #groups = new Map();
  #last = null;
  #width = 0;
  all = false;
  order = "strength";

  constructor() {
    this.layers = { grid: s("g", { class: "grid" }), steps: s("g"), ends: s("g") };
    this.svg = s("svg", { class: "waterfall", role: "img" }, this.layers.grid, this.layers.steps, this.layers.ends);
    this.element = h("div", { class: "waterfall-frame" }, this.svg);
    new ResizeObserver(([entry]) => {
      const width = Math.floor(entry.contentRect.width);
      if (width !== this.#width) {
        this.#width = width;
        if (this.#last) this.draw(this.#last);
      }
    }).observe(this.element);
  }

  /** The steps in the order of the drawing; the weakest of many are one. */
  arranged({ steps }) {
    const strongest = [...steps].sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount));
    const some = this.all || steps.length <= SHOWN ? strongest : strongest.slice(0, SHOWN - 1);
    const rest = strongest.slice(some.length);
    const ordered = this.order === "strength" ? some : steps.filter((step) => some.includes(step));
    if (!rest.length) return ordered;
    const kept = rest.every((step) => step.kept !== null) ? sum(rest.map((step) => step.kept)) : null;
    const amount = sum(rest.map((step) => step.amount));
    return [...ordered, { player: `${rest.length} others`, others: true, amount, band: null, kept }];
  }

  draw(data) {
    this.#last = data;
    if (!this.#width) return;
    const { base, prediction, keptPrediction, decimals } = data;
    const steps = this.arranged(data);
    const wide = this.#width >= WIDE;
    const row = wide ? 34 : 50;
    const [left, right] = wide ? [Math.min(230, this.#width * 0.36), 78] : [2, 2];
    const top = wide ? 30 : 34;
    const height = top + row * (steps.length + 1) + 30;

    let at = base;
    for (const step of steps) {
      step.start = at;
      at += step.amount;
    }
    const reached = [base, prediction, keptPrediction ?? base, at, ...steps.flatMap((step) => ends(step))];
    const [low, high] = [Math.min(...reached), Math.max(...reached)];
    const room = (high - low || 1) * 0.04;
    const scale = (value) => left + ((value - low + room) / (high - low + 2 * room)) * (this.#width - left - right);

    this.svg.setAttribute("viewBox", `0 0 ${this.#width} ${height}`);
    this.svg.setAttribute("width", this.#width);
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("aria-label", this.#summary(data, steps));
    const bottom = height - 26;
    const axis = ticks(low, high, wide ? 5 : 3);
    const places = axis.places.filter((place) => scale(place) > left + 8 && scale(place) < this.#width - right - 8);
    const axisDecimals = Math.max(0, Math.min(8, -Math.floor(Math.log10(axis.step) + 1e-9)));
    this.layers.grid.replaceChildren(
      ...places.flatMap((place) => [
        upright("grid-line", scale(place), top - 6, bottom),
        words("tick", scale(place), height - 8, number(place, axisDecimals), "middle"),
      ]),
      upright("base-line", scale(base), 20, bottom),
    );

    const before = this.#groups;
    this.#groups = new Map();
    steps.forEach((step, i) => {
      const group = before.get(step.player) ?? s("g", { class: "step" });
      group.replaceChildren(...this.#step(step, { wide, row, left, scale, decimals, last: i === steps.length - 1 }));
      group.style.transform = `translate(0px, ${top + i * row}px)`;
      this.#groups.set(step.player, group);
    });
    for (const [player, group] of before) if (!this.#groups.has(player)) group.remove();
    for (const group of this.#groups.values()) if (!group.parentNode) this.layers.steps.append(group);
    this.layers.ends.replaceChildren(...this.#ends(data, { wide, row, left, scale, top, n: steps.length }));
  }

  #step(step, { wide, row, left, scale, decimals, last }) {
    const { start, amount, band, kept } = step;
    const middle = wide ? row / 2 : row - 15;
    const end = scale(start + amount);
    const text = signed(amount, decimals);
    const side = amount > 0 ? "up" : "down";
    const parts = [s("title", {}, this.#words(step, decimals))];
    if (!last) parts.push(upright("link", end, middle, row + middle));
    parts.push(s("rect", { class: `bar ${side}`, ...box(scale(start), end, middle, TALL), rx: 2 }));
    if (kept !== null) {
      parts.push(s("rect", { class: "ghost", ...box(scale(start), scale(start + kept), middle, TALL + 7), rx: 3 }));
    }
    if (band) {
      const [from, to] = band.map((limit) => scale(start + limit));
      const path = `M${from} ${middle - 4}V${middle + 4}M${from} ${middle}H${to}M${to} ${middle - 4}V${middle + 4}`;
      parts.push(s("path", { class: "whisker-halo", d: path }), s("path", { class: "whisker", d: path }));
    }
    const space = (wide ? left - 14 : this.#width - (kept === null ? 66 : 148)) / LETTER;
    const [name, cell] = shortened(step.player, step.single ? ` ${valueText(step.value)}` : "", space);
    const label = [s("tspan", { class: "name" }, name), s("tspan", { class: "cell" }, cell)];
    const was = kept === null ? null : signed(kept, decimals);
    const ink = `amount ${direction(text)}`;
    return [...parts, ...this.#line({ wide, left, y: wide ? middle : 11.5, label, text, ink, was })];
  }

  #ends({ base, prediction, decimals, keptPrediction }, { wide, row, left, scale, top, n }) {
    const y = top + n * row + (wide ? row / 2 : row - 18);
    const [start, text] = [scale(base), number(prediction, decimals)];
    const was = keptPrediction === null ? null : number(keptPrediction, decimals);
    const label = s("tspan", { class: "name" }, "prediction");
    return [
      words("end", start, 13, `base value ${number(base, decimals)}`, anchor(start, this.#width)),
      upright("total", scale(prediction), y - 12, y + 10),
      ...(was === null ? [] : [upright("total-ghost", scale(keptPrediction), y - 12, y + 10)]),
      ...this.#line({ wide, left, y: wide ? y : y - 20.5, label, text, ink: "amount strong", was }),
    ];
  }

  /** A row's words around `y`: its label, its number, and below or before that the kept row's. */
  #line({ wide, left, y, label, text, ink, was }) {
    const right = this.#width - 2;
    const parts = [
      words("label", wide ? left - 12 : 0, y + 4.5, label, wide ? "end" : "start"),
      words(ink, right, y + (wide && was !== null ? -1 : 4.5), text, "end"),
    ];
    if (was === null) return parts;
    const [x, below] = wide ? [right, y + 12] : [right - 14 - LETTER * Math.max(6, text.length), y + 4.5];
    return [...parts, words("was", x, below, `kept ${was}`, "end")];
  }

  #words({ player, single, value, amount, band, others }, decimals) {
    const name = single ? `${player} = ${valueText(value)}` : player;
    const sure = band ? `, between ${signed(band[0], decimals)} and ${signed(band[1], decimals)}` : "";
    return `${name}: ${signed(amount, decimals)}${others ? " together" : sure}`;
  }

  #summary({ base, prediction, decimals }, steps) {
    const strongest = steps.slice(0, 4).map((step) => `${step.player} ${signed(step.amount, decimals)}`).join(", ");
    const way = `From the base value ${number(base, decimals)} to the prediction ${number(prediction, decimals)}`;
    return `${way}: ${strongest}${steps.length > 4 ? ", and more in the table below" : ""}.`;
  }
}

/** All numbers of an explanation; exact ones in the `value` of each cell. */
export function numbersTable({ base, prediction, steps, decimals, bounded }) {
  const named = steps.some((step) => step.single); // parts of a picture have no value to show
  const cell = (value, text) => h("td", {}, h("data", { value }, text));
  const rows = steps.map(({ player, single, value, amount, band }) =>
    h(
      "tr",
      { "data-player": player },
      h("th", { scope: "row" }, player),
      named ? h("td", { class: "left" }, single ? valueText(value) : "") : null,
      cell(amount, signed(amount, decimals)),
      bounded ? [cell(band[0], signed(band[0], decimals)), cell(band[1], signed(band[1], decimals))] : null,
    ),
  );
  const end = (name, value, kind) =>
    h(
      "tr",
      { class: "end", "data-end": kind },
      h("th", { scope: "row" }, name),
      named ? h("td") : null,
      cell(value, number(value, decimals)),
      bounded ? [h("td"), h("td")] : null,
    );
  const heads = ["feature", ...(named ? ["value"] : []), "attribution", ...(bounded ? ["at least", "at most"] : [])];
  const side = (i) => (i < (named ? 2 : 1) ? "left" : null);
  return h(
    "table",
    { class: "numbers" },
    h("thead", {}, h("tr", {}, heads.map((name, i) => h("th", { scope: "col", class: side(i) }, name)))),
    h("tbody", {}, end("base value", base, "base"), rows, end("prediction", prediction, "prediction")),
  );
}

/** The same in one line: what raises towards the right, what lowers back to the left. */
export function drawStrip(svg, { base, prediction, steps }) {
  const width = svg.clientWidth;
  if (!width) return;
  const up = sum(steps.map((step) => Math.max(0, step.amount)));
  const [low, high] = [Math.min(base, prediction), Math.max(base + up, prediction)];
  const scale = (value) => 3 + ((value - low) / (high - low || 1)) * (width - 6);
  const parts = [];
  let at = base;
  const ordered = (sign) => steps.filter((step) => sign * step.amount > 0).sort((a, b) => sign * (b.amount - a.amount));
  for (const [sign, y] of [[1, 2], [-1, 12]]) {
    for (const { amount } of ordered(sign)) {
      const shape = box(scale(at), scale(at + amount), y + 4, 8);
      if (shape.width > 1.5) shape.width -= 1;
      parts.push(s("rect", { class: `bar ${sign > 0 ? "up" : "down"}`, ...shape, rx: 1 }));
      at += amount;
    }
  }
  svg.replaceChildren(...parts, upright("base-line", scale(base), 0, 22), upright("total", scale(prediction), 0, 22));
}

const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);

const ends = ({ start, amount, band, kept }) =>
  [amount, ...(band ?? []), ...(kept === null ? [] : [kept])].map((end) => start + end);

function box(a, b, middle, tall) {
  return { x: Math.min(a, b), y: middle - tall / 2, width: Math.max(1, Math.abs(b - a)), height: tall };
}

const upright = (kind, x, from, to) => s("line", { class: kind, x1: x, x2: x, y1: from, y2: to });

const words = (kind, x, y, text, side) => s("text", { class: kind, x, y, "text-anchor": side }, text);

const anchor = (x, width) => (x < 70 ? "start" : x > width - 70 ? "end" : "middle");

function shortened(name, value, space) {
  const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}\u2026` : text);
  const cell = cut(value, Math.max(8, Math.floor(space - Math.min(name.length, space * 0.7))));
  return [cut(name, Math.max(6, Math.floor(space - cell.length))), cell];
}
