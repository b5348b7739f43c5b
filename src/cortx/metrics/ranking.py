"""Agreement of orders."""

from __future__ import annotations

from typing import Literal

import numpy as np

from cortx.errors import InputError
from cortx.explanation import Explanation, IntArray, Order
from cortx.metrics.inputs import Array, Attributions, as_pair, finite_values, ratio


def rank_accuracy(
    predicted: Attributions, truth: Attributions, first: Literal["highest", "lowest"] = "highest"
) -> Array:
    """Rank ACC of each row (paper Sec. 4.2), (sum_j 1[r_hat_j = r_j] / j) / (sum_j 1 / j): (rows,), or (rows, outputs).

    r_1, which weighs most, is the player with the highest value, as in the paper's published code; ``first="lowest"``
    counts from the other end. Both read the stable ascending order of the values (exactly tied players stand in the
    order of their columns), from its end or from its start. An `Explanation` is compared by its ``ranking``, so what
    a ranking head said counts.
    """
    if first not in ("highest", "lowest"):
        raise InputError(f"first must be 'highest' or 'lowest', got {first!r}")
    one, other = as_pair(predicted, truth)
    same = _ascending(one, "predicted") == _ascending(other, "truth")  # (rows, players[, outputs])
    weights = 1 / np.arange(1, same.shape[1] + 1)
    if first == "highest":
        weights = weights[::-1]
    return np.tensordot(same, weights / weights.sum(), axes=(1, 0))


def kendall_tau(predicted: Attributions, truth: Attributions) -> Array:
    """Kendall's tau-b of each row, (concordant - discordant pairs) / sqrt(pairs untied in one * in the other).

    Shapes (rows,), or (rows, outputs). NaN where all players of a row are tied on either side, or there is only
    one. What a ranking head said counts instead of its values.
    """
    first, second = as_pair(predicted, truth)
    a, b = _order_scores(first, "predicted"), _order_scores(second, "truth")
    shape = a.shape[:1] + a.shape[2:]
    balance, untied_a, untied_b = (np.zeros(shape) for _ in range(3))
    # Pairs by the distance of their columns: as many array operations as players, and never (players, players) memory.
    for lag in range(1, a.shape[1]):
        sign_a, sign_b = _signs(a, lag), _signs(b, lag)
        balance += (sign_a * sign_b).sum(axis=1)
        untied_a += np.abs(sign_a).sum(axis=1)
        untied_b += np.abs(sign_b).sum(axis=1)
    scale = np.sqrt(untied_a) * np.sqrt(untied_b)
    return np.asarray(np.clip(ratio(balance, scale, undefined=np.nan), -1, 1))


def top_k_agreement(predicted: Attributions, truth: Attributions, k: int, by: Order = "magnitude") -> Array:
    """The share of the truth's k strongest players that are among the predicted k, their order ignored.

    Shapes (rows,), or (rows, outputs). `by` is ``"magnitude"`` or signed ``"value"``, with the ties of
    `Explanation.top`: by magnitude the first column wins, by value the last.
    """
    first, second = as_pair(predicted, truth)
    n_players = first.shape[1]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= n_players:
        raise InputError(f"k must be a whole number from 1 to {n_players} (the players), got {k!r}")
    found = _members(first, "predicted", int(k), by) & _members(second, "truth", int(k), by)
    return np.asarray(found.sum(axis=1) / k)


def _ascending(explanation: Explanation, what: str) -> IntArray:
    if explanation.predicted_ranking is None:
        finite_values(explanation, what)
    return np.flip(explanation.ranking, axis=1)


def _order_scores(explanation: Explanation, what: str) -> Array:
    """The values, or each player's position from the lowest where a ranking head gave the order."""
    if explanation.predicted_ranking is None:
        return finite_values(explanation, what)
    return np.argsort(_ascending(explanation, what), axis=1).astype(np.float64)


def _signs(scores: Array, lag: int) -> Array:
    """-1, 0 or 1 for every pair of players `lag` columns apart, (rows, players - lag[, outputs])."""
    later, earlier = scores[:, lag:], scores[:, :-lag]
    return (later > earlier).astype(np.float64) - (later < earlier)


def _members(explanation: Explanation, what: str, k: int, by: Order) -> IntArray:
    """1 where a player is among the k strongest, 0 elsewhere, (rows, players[, outputs])."""
    if by == "magnitude" or explanation.predicted_ranking is None:
        finite_values(explanation, what)
    members = np.zeros(explanation.shape, dtype=np.int64)
    np.put_along_axis(members, explanation.top(k, by), 1, axis=1)
    return members
