// What differs between this row or picture and another: the reference, or one that was kept.

import { scrolling } from "./cards.js";
import { h } from "./dom.js";
import { same } from "./form.js";
import { direction, number, signed, valueText } from "./format.js";

const SAME = 1e-9;
const ITSELF = "This is the reference row itself: every attribution is zero, and the prediction is the base value.";
const NOTHING = "Nothing differs yet: change a value and see what moves.";

/** The columns whose value is another one in the reference row; null where there is no single reference row. */
export function againstReference({ columns }, record, view) {
  if (columns.every((column) => (column.reference ?? null) === null)) return null;
  const size = ({ name }) => Math.abs(view.amounts.get(name) ?? 0);
  const differing = columns
    .filter(({ name, reference }) => !same(record[name], reference))
    .sort((a, b) => size(b) - size(a));
  if (!differing.length) return h("p", {}, ITSELF);
  const rows = differing.map(({ name, reference }) => {
    const amount = view.amounts.get(name);
    const text = amount === undefined ? "in its group" : signed(amount, view.decimals);
    return row(name, left(valueText(record[name])), left(valueText(reference), "quiet"), cell(text, direction(text)));
  });
  // Against a sample of rows a typical value may still move the output.
  const moves = (column) => (view.amounts.get(column.name) ?? 0) !== 0;
  const equal = columns.filter((column) => !differing.includes(column));
  const still = equal.some(moves) ? "" : " and move nothing";
  const rest = `${equal.length} of ${columns.length} columns are as in the reference${still}.`;
  return h(
    "div",
    {},
    table(["feature", "this row", "reference", "moves the output by"], rows, 3),
    equal.length ? h("p", { class: "quiet small" }, rest) : null,
  );
}

/** Values and attributions that are not those of the kept row. */
export function againstKept({ columns }, record, view, kept) {
  const { decimals } = view;
  const change = view.prediction - kept.view.prediction;
  const now = `${number(view.prediction, decimals)} (${signed(change, decimals)})`;
  const before = number(kept.view.prediction, decimals);
  const result = h("strong", {}, Math.abs(change) < SAME ? "the same" : now);
  const head = h("p", {}, `The kept row’s prediction is ${before}; this one is `, result, ".");
  const other = new Set(columns.map(({ name }) => name).filter((name) => !same(record[name], kept.record[name])));
  const rows = view.steps
    .map((step) => ({ ...step, moved: step.amount - step.kept }))
    .filter((step) => other.has(step.player) || Math.abs(step.moved) > SAME)
    .sort((a, b) => Math.abs(b.moved) - Math.abs(a.moved))
    .map((step) => {
      const { player } = step;
      const moved = signed(step.moved, decimals);
      const values = `${valueText(kept.record[player])} \u2192 ${valueText(record[player])}`;
      return row(
        player,
        other.has(player) ? left(values) : left(step.single ? "the same" : "", "quiet"),
        cell(signed(step.kept, decimals), "quiet"),
        cell(signed(step.amount, decimals)),
        cell(moved, direction(moved)),
      );
    });
  const body = rows.length
    ? table(["feature", "value", "kept", "now", "change"], rows, 2)
    : h("p", { class: "quiet" }, NOTHING);
  return h("div", {}, head, body);
}

/** The attributions of all parts of a picture beside those of the kept one, which differ most first. */
export function againstKeptParts(view, kept) {
  const { decimals } = view;
  const line = (name, was, is) => {
    const moved = signed(is - was, decimals);
    return row(name, cell(signed(was, decimals), "quiet"), cell(signed(is, decimals)), cell(moved, direction(moved)));
  };
  const change = (i) => Math.abs(view.steps[i].amount - kept.steps[i].amount);
  const order = [...view.steps.keys()].sort((a, b) => change(b) - change(a));
  const rows = order.map((i) => line(view.steps[i].player, kept.steps[i].amount, view.steps[i].amount));
  const of = ({ output }) => (output === "output" ? "" : ` for ${output}`);
  return table(["part", `kept${of(kept)}`, `now${of(view)}`, "change"], rows, 1);
}

const row = (name, ...cells) => h("tr", {}, h("th", { scope: "row" }, name), cells);
const cell = (text, kind = null) => h("td", { class: kind }, text);
const left = (text, kind = "") => h("td", { class: `left ${kind}` }, text);

function table(heads, rows, words) {
  const names = heads.map((name, i) => h("th", { scope: "col", class: i < words ? "left" : null }, name));
  return scrolling("What differs", h("table", {}, h("thead", {}, h("tr", {}, names)), h("tbody", {}, rows)));
}
