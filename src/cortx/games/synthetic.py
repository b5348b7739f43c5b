"""Games with known answers, for tests and documentation.

A set function over n players is a model on 0/1 rows: the row of ones is the full coalition, the row of zeros
the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.games.game import Game


def table_game(values: npt.NDArray[np.float64], **settings: Any) -> Game:
    """The game whose v(S) stands at position ``sum(2**i for i in S)`` of `values`, (2**n,) or (2**n, outputs)."""
    n_players = int(values.shape[0]).bit_length() - 1

    def model(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        position: npt.NDArray[np.int64] = (rows.astype(np.int64) << np.arange(n_players)).sum(axis=1)
        return values[position]

    return Game(model, reference=np.zeros(n_players), output="raw", **settings)


def interaction_game(n_players: int, terms: Mapping[tuple[int, ...], float], **settings: Any) -> Game:
    """v(S) = the sum of the weights of all terms inside S: a term's weight is shared evenly by its members."""

    def model(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        total = np.zeros(len(rows))
        for members, weight in terms.items():
            total += weight * rows[:, list(members)].prod(axis=1)
        return total

    return Game(model, reference=np.zeros(n_players), output="raw", **settings)


def interaction_shapley(n_players: int, terms: Mapping[tuple[int, ...], float]) -> npt.NDArray[np.float64]:
    """The Shapley values of `interaction_game`, (players,), from its Harsanyi dividends."""
    values = np.zeros(n_players)
    for members, weight in terms.items():
        values[list(members)] += weight / len(members)
    return values
