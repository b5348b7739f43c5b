"""Exact enumeration of every coalition."""

from __future__ import annotations

from math import comb
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from cortx.estimators.block import MOST_PLAYERS, Block, BlockViews, Estimate, Estimator, coalition_count
from cortx.estimators.coalitions import CHUNK, all_coalitions
from cortx.estimators.potential import potential, subgame_shapley

Array = npt.NDArray[np.float64]

VIEW_KEEP = 0.8
"""The chance of a player to stay in a masked copy: most copies stay close to their row."""


def enumerate_linear(block: Block, weights: Array) -> Array:
    """sum over S of v(S) * (weights[|S|-1] if i in S else -weights[|S|]), for each player i: (rows, n, outputs).

    `weights[s]` is the weight of a coalition of s others. Every semivalue has this form.
    """
    n = block.n_players
    assert n <= MOST_PLAYERS
    result = np.broadcast_to(weights[n - 1] * block.full[:, None, :], (len(block.rows), n, block.full.shape[1])).copy()
    result -= weights[0] * block.empty[:, None, :]
    joins, leaves = np.append(0.0, weights), np.append(weights, 0.0)
    for coalitions in all_coalitions(n):
        size = coalitions.sum(axis=1)
        signed = np.where(coalitions, joins[size, None], -leaves[size, None])  # (k, n)
        values = block.values(coalitions, distinct=True)  # (rows, k, outputs)
        result += signed.T @ values
    return result


class Exact(Estimator):
    """The Shapley value by its definition, with standard error zero."""

    name: ClassVar[str] = "exact"

    def least(self, n_players: int) -> int:
        return coalition_count(n_players)

    def spends(self, n_players: int, budget: int) -> int:
        return self.least(n_players)

    def estimate(self, block: Block, budget: int) -> Estimate:
        block, n = block.plain, block.n_players  # there is nothing left for a student to say
        if 2**n <= CHUNK:
            return _by_potential(block)
        weights = np.array([1 / (n * comb(n - 1, size)) for size in range(n)])
        values = enumerate_linear(block, weights)
        return Estimate.enumerated(values)


def _by_potential(block: Block) -> Estimate:
    """The exact values, and those of random masked copies if they are wanted, from one enumeration."""
    n, n_rows, n_outputs = block.n_players, len(block.rows), block.full.shape[1]
    values = np.zeros((n_rows, 2**n, n_outputs))  # v(S) - v(none) in binary order
    (coalitions,) = all_coalitions(n)
    values[:, 1:-1] = block.values(coalitions, distinct=True) - block.empty[:, None, :]
    values[:, -1] = block.total
    summed = potential(values)
    exact = subgame_shapley(summed, np.ones((n_rows, 1, n), dtype=bool))[:, 0]
    if not block.n_views:
        return Estimate.enumerated(exact)
    kept = block.uniforms(block.n_views * n, stream=0).reshape(n_rows, block.n_views, n) < VIEW_KEEP
    codes = (kept * (np.int64(1) << np.arange(n))).sum(axis=2)
    views = BlockViews(
        kept, subgame_shapley(summed, kept), values[np.arange(n_rows)[:, None], codes] + block.empty[:, None, :]
    )
    return Estimate.enumerated(exact, views)
