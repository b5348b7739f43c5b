// One output of an answer, as the drawings want it.

import { decimalsFor } from "./format.js";

/**
 * `answer` holds the server's `explanation` and, for a table, the `record` that it is of. The result has `base`,
 * `prediction`, `amounts` by player, and `steps` of {player, single, value, amount, band, kept}: `single` where the
 * player is one column, whose `value` is known; `band` [low, high] or null; `kept` the kept row's amount or null.
 */
export function viewOf(info, { explanation, record }, output) {
  const amounts = byPlayer(info, explanation.attributions[output]);
  const bands = explanation.bounds ? byPlayer(info, explanation.bounds[output]) : null;
  const columns = new Set(record ? Object.keys(record) : []);
  const steps = info.players.map((player) => ({
    player,
    single: columns.has(player),
    value: columns.has(player) ? record[player] : null,
    amount: amounts.get(player),
    band: bands?.get(player) ?? null,
    kept: null,
  }));
  const base = explanation.base_values[output];
  const own = explanation.prediction?.[output] ?? null;
  const prediction = own ?? steps.reduce((sum, step) => sum + step.amount, base);
  const span = Math.max(...steps.map((step) => Math.abs(step.amount)), Math.abs(prediction - base));
  return {
    output,
    base,
    prediction,
    guessed: own === null || explanation.outputs_known === false,
    amounts,
    steps,
    bounded: bands !== null,
    confidence: explanation.confidence ?? null,
    errorBound: explanation.error_bound?.[output] ?? null,
    reasons: explanation.reasons ?? [],
    decimals: Math.min(5, decimalsFor(span)),
    keptPrediction: null,
  };
}

/** Values by player; those of pictures come as a list in the players' order. */
function byPlayer(info, values) {
  if (!Array.isArray(values)) return new Map(Object.entries(values));
  return new Map(values.map((value, i) => [info.players[i], value]));
}

/** The output with the highest prediction. */
export function highestOutput(info, { explanation }) {
  const said = (name) => explanation.prediction?.[name] ?? -Infinity;
  return info.output_names.reduce((best, name) => (said(name) > said(best) ? name : best));
}
