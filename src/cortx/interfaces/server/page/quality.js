// How good the explanations are: measured by the fit, promised by the calibration, watched by the audit.

import { card } from "./cards.js";
import { h, s } from "./dom.js";
import { count, number, percent } from "./format.js";

const STATES = { waiting: "Waiting", good: "Good", reports: "Reports only", alarm: "Alarm" };
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** The whole tab, drawn anew with each report of the audit. */
export function qualityView(info, audit) {
  return [measured(info), audited(info, audit)];
}

function fact(name, value, words) {
  const said = h("dd", {}, h("span", { class: "fact" }, value), h("span", { class: "quiet small" }, words));
  return h("div", {}, h("dt", {}, name), said);
}

const facts = (...listed) => h("dl", { class: "facts" }, listed);

function measured(info) {
  const { quality = {}, failure } = info;
  const newer = h("strong", {}, "A newer version could not be loaded");
  const rank = "rank accuracy on the same rows: places that are right, the first weighing most";
  const price = "spent on the whole fit, once; an explanation costs none beyond the prediction";
  return card(
    "measured-title",
    "Measured when it was fitted",
    failure ? h("p", { class: "state state-alarm" }, newer, ` – ${failure}`) : null,
    facts(
      errorFact(quality),
      known(quality.rank_accuracy) ? fact("Order of features", percent(quality.rank_accuracy, 1), rank) : null,
      calibrationFact(info),
      known(quality.evaluations) ? fact("Model evaluations", count(quality.evaluations), price) : null,
    ),
  );
}

function errorFact({ l2, label_norm: norm, rows }) {
  if (!known(l2)) return null;
  const on = known(rows) ? ` on ${count(rows)} rows that trained nothing` : "";
  if (!(norm > 0)) return fact("Measured error", number(l2, 4), `mean l2 distance to labels${on}`);
  const sizes = `l2 distance ${number(l2, 4)} to labels of norm ${number(norm, 3)}`;
  const words = `of the attributions’ own size: ${sizes}${on}`;
  return fact("Measured error", percent(l2 / norm, 1), words);
}

function calibrationFact({ quality = {}, confidence }) {
  if (!quality.calibration_rows) {
    return fact("Calibration rows", "none", "so there are no bounds; fit with a budget, or call calibrate()");
  }
  const errors = [quality.mean_l2 ?? []].flat().filter(known);
  const mean = errors.reduce((total, one) => total + one, 0) / errors.length;
  const off = errors.length ? `, mean l2 distance ${number(mean, 4)}` : "";
  const most = confidence ? `; they support bounds of up to ${percent(confidence.highest, 1)}` : "";
  return fact("Calibration rows", count(quality.calibration_rows), `that trained and chose nothing${off}${most}`);
}

function audited(info, audit) {
  const place = (...children) => card("audit-title", "Audit of live requests", children);
  if (!audit) {
    const off = "The server does not audit this model; cortx serve --audit 0.01 would check one request in a hundred.";
    const bare = "No model is attached, so live explanations cannot be checked.";
    return place(h("p", { class: "quiet" }, info.has_model === false ? bare : off));
  }
  const { state, message } = audit;
  const said = h("strong", {}, STATES[state] ?? state);
  const dot = h("span", { class: `dot dot-${state}`, "aria-hidden": "true" });
  const digits = audit.share < 0.01 ? 1 : 0;
  const share = `${percent(audit.share, digits)} of the requests are explained again with the model`;
  const before = known(audit.expected_l2) ? `; ${number(audit.expected_l2, 4)} was measured before` : "";
  const within = `of audited rows lie within their bounds; at least ${percent(audit.confidence ?? 0.9)} is promised`;
  const order = "agreement with the order that the audit found";
  return place(
    h("p", { class: `state state-${state}` }, dot, said, message ? ` – ${message}` : ""),
    facts(
      fact("Audited", count(audit.audited), known(audit.share) ? share : "requests so far"),
      known(audit.mean_l2) ? fact("Error now", number(audit.mean_l2, 4), `mean l2 distance${before}`) : null,
      known(audit.coverage) ? fact("Coverage", percent(audit.coverage, 1), within) : null,
      known(audit.rank_agreement) ? fact("Order of features", percent(audit.rank_agreement, 1), order) : null,
    ),
    history(audit),
  );
}

/** The audited error over time, with what was measured before as a dashed line. */
function history({ history: points = [], expected_l2: expected }) {
  const shown = points.filter((point) => known(point.mean_l2));
  if (shown.length < 2) return null;
  const [width, height, left, right, bottom] = [640, 150, 58, 630, 24];
  const [first, last] = [shown[0], shown.at(-1)];
  const top = 1.15 * Math.max(expected ?? 0, ...shown.map((point) => point.mean_l2)) || 1;
  const x = (audited) => left + ((audited - first.audited) / (last.audited - first.audited || 1)) * (right - left);
  const y = (error) => height - bottom - (error / top) * (height - bottom - 8);
  const points2d = shown.map((point) => `${x(point.audited).toFixed(1)},${y(point.mean_l2).toFixed(1)}`);
  const text = (words, place) => s("text", { class: "tick", ...place }, words);
  const level = (name, error) => s("line", { class: name, x1: left, x2: right, y1: y(error), y2: y(error) });
  const beside = (error) => ({ x: left - 6, y: y(error) + 4, "text-anchor": "end" });
  const label = `Audited error: first ${number(first.mean_l2, 4)}, last ${number(last.mean_l2, 4)}`;
  return h(
    "figure",
    { class: "history" },
    s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      level("grid-line", 0),
      known(expected) && y(0) - y(expected) < 14 ? [] : text("0", beside(0)), // one would cover the other
      known(expected) ? [level("base-line", expected), text(number(expected, 4), beside(expected))] : [],
      text(`request ${count(first.audited)}`, { x: left, y: height - 6 }),
      text(count(last.audited), { x: right, y: height - 6, "text-anchor": "end" }),
      s("polyline", { class: "history-line", points: points2d.join(" ") }),
      s("circle", { class: "history-end", cx: x(last.audited), cy: y(last.mean_l2), r: 3.5 }),
    ),
    h("figcaption", { class: "quiet small" }, "Error of audited requests; dashed: what was measured before."),
  );
}
