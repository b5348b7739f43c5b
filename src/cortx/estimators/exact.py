"""Exact enumeration of every coalition."""

from __future__ import annotations

from math import comb
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cortx.estimators.block import MOST_PLAYERS, Block, Estimate, Estimator, coalition_count
from cortx.estimators.coalitions import all_coalitions

Array = npt.NDArray[np.float64]


def enumerate_linear(block: Block, weights: Array) -> Array:
    """sum over S of v(S) * (weights[|S|-1] if i in S else -weights[|S|]), for each player i: (rows, n, outputs).

    `weights[s]` is the weight of a coalition of s others. Every semivalue has this form.
    """
    n = block.n_players
    assert n <= MOST_PLAYERS
    result = np.broadcast_to(weights[n - 1] * block.full[:, None, :], (len(block.rows), n, block.full.shape[1])).copy()
    result -= weights[0] * block.empty
    joins, leaves = np.append(0.0, weights), np.append(weights, 0.0)
    for coalitions in all_coalitions(n):
        size = coalitions.sum(axis=1)
        signed = np.where(coalitions, joins[size, None], -leaves[size, None])  # (k, n)
        values = block.values(coalitions, distinct=True)  # (rows, k, outputs)
        result += np.einsum("kn,rko->rno", signed, values, optimize=True)
    return result


class Exact(Estimator):
    """The Shapley value by its definition, with standard error zero."""

    name: ClassVar[str] = "exact"

    def least(self, n_players: int) -> int:
        return coalition_count(n_players)

    def spends(self, n_players: int, budget: int) -> int:
        return self.least(n_players)

    def estimate(self, block: Block, budget: int) -> Estimate:
        n = block.n_players
        weights = np.array([1 / (n * comb(n - 1, size)) for size in range(n)])
        values = enumerate_linear(block, weights)
        return Estimate(values, np.zeros_like(values))
