"""Faithfulness to the model itself, without labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cortx.metrics.inputs import Array, Attributions, as_pair, finite_values, ratio

if TYPE_CHECKING:
    from cortx.games.game import Game


def faithfulness(explanation: Attributions, drops: Attributions) -> Array:
    """XAI-Bench's faithfulness of each row: Pearson's correlation of |phi_j| and |f(x) - f(x without j)|.

    `drops`, (rows, players) or (rows, players, outputs), come from `single_drops`. Gives (rows,), or
    (rows, outputs); 0 where the correlation is undefined because one side is the same for all players.
    """
    first, second = as_pair(explanation, drops, ("explanation", "drops"))
    a = _standardized(np.abs(finite_values(first, "explanation")))
    b = _standardized(np.abs(finite_values(second, "drops")))
    return np.asarray(np.clip((a * b).sum(axis=1), -1, 1))


def single_drops(game: Game, X: Any) -> Array:
    """|f(x) - f(x without j)| for every row and player, (rows, players), or (rows, players, outputs) for several.

    Costs at most players + 1 evaluations of v(S) a row; players that equal their reference are free.
    """
    rows = game.rows(X)
    # f(x) is asked for with the rest, so that a player that changes nothing drops by exactly zero.
    everyone = np.ones((1, game.n_players), dtype=bool)
    values = game.values(rows, np.concatenate([everyone, ~np.eye(game.n_players, dtype=bool)]))
    drops = np.abs(values[:, :1] - values[:, 1:])
    return drops[:, :, 0] if game.n_outputs == 1 else drops


def _standardized(values: Array) -> Array:
    """Each row centred and of norm 1 over the players; all zero where the players are the same."""
    # Scaling first keeps the squares of tiny attributions from vanishing.
    largest = values.max(axis=1, keepdims=True)
    scaled = ratio(values, largest, undefined=0)
    constant = scaled.max(axis=1, keepdims=True) == scaled.min(axis=1, keepdims=True)
    centred = np.where(constant, 0, scaled - scaled.mean(axis=1, keepdims=True))
    norm = np.sqrt(np.square(centred).sum(axis=1, keepdims=True))
    return ratio(centred, norm, undefined=0)
