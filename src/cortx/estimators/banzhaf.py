"""The Banzhaf value: paper Eq. 1 taken literally, a uniform expectation over subsets."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.exact import enumerate_linear
from cortx.tails import LEAST_DRAWS, mean_error


class Banzhaf(Estimator):
    """E over uniform S without i of v(S + i) - v(S) (paper Eq. 1). Does not add up to v(all) - v(none).

    Exact when the budget allows all coalitions; otherwise from random pairs of a coalition and its complement.
    """

    name: ClassVar[str] = "banzhaf"
    efficient: ClassVar[bool] = False

    def least(self, n_players: int) -> int:
        return min(2 * LEAST_DRAWS, coalition_count(n_players))

    def spends(self, n_players: int, budget: int) -> int:
        return coalition_count(n_players) if enumerable(n_players, budget) else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        n, n_rows = block.n_players, len(block.rows)
        if enumerable(n, budget):
            values = enumerate_linear(block, np.full(n, 0.5 ** (n - 1)))
            return Estimate.enumerated(values)
        n_pairs = budget // 2
        present = block.uniforms(n_pairs * n, stream=0).reshape(n_rows, n_pairs, n) < 0.5
        both = np.concatenate([present, ~present], axis=1)
        values = block.values(both, distinct=False)
        contrast = values[:, :n_pairs] - values[:, n_pairs:]  # (rows, pairs, outputs)
        signed = np.where(present, 1.0, -1.0)[..., None] * contrast[:, :, None, :]
        return Estimate(signed.mean(axis=1), mean_error(signed))
