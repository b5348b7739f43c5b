"""Antithetic permutation sampling."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.exact import Exact
from cortx.estimators.tails import LEAST_DRAWS, mean_error


class Permutation(Estimator):
    """Mean marginal contribution over random orders, each followed by its reverse (Mitchell et al. 2022).

    Unbiased. A pair of orders asks for 2(n-1) values. The standard error comes from the spread between pairs;
    below eight of them it is not known.
    """

    name: ClassVar[str] = "permutation"

    def least(self, n_players: int) -> int:
        return min(2 * (n_players - 1), coalition_count(n_players))

    def least_known(self, n_players: int) -> int:
        return min(LEAST_DRAWS * 2 * (n_players - 1), coalition_count(n_players))

    def spends(self, n_players: int, budget: int) -> int:
        if enumerable(n_players, budget):
            return coalition_count(n_players)
        return budget // (2 * (n_players - 1)) * 2 * (n_players - 1)

    def estimate(self, block: Block, budget: int) -> Estimate:
        n, n_rows, n_outputs = block.n_players, len(block.rows), block.full.shape[1]
        if enumerable(n, budget):
            return Exact().estimate(block, budget)
        n_pairs = budget // (2 * (n - 1))
        keys = block.uniforms(n_pairs * n, stream=0).reshape(n_rows, n_pairs, n)
        order = np.argsort(keys, axis=2)  # order[..., j]: who comes j-th
        position = np.argsort(order, axis=2)  # position[..., i]: when player i comes
        steps = np.arange(1, n)
        forward = position[:, :, None, :] < steps[:, None]  # (rows, pairs, n-1, n) the first j players
        coalitions = np.stack([forward, ~forward], axis=2)  # the reverse order visits the complements
        values = block.values(coalitions.reshape(n_rows, -1, n), distinct=False)
        values = values.reshape(n_rows, n_pairs, 2, n - 1, n_outputs)
        empty = np.broadcast_to(block.empty[:, None, None, :], (n_rows, n_pairs, 1, n_outputs))
        full = np.broadcast_to(block.full[:, None, None, :], (n_rows, n_pairs, 1, n_outputs))
        ahead = np.diff(np.concatenate([empty, values[:, :, 0], full], axis=2), axis=2)
        # Complements of growing prefixes: v(all) down to v(none), so the marginals come with the other sign.
        back = -np.diff(np.concatenate([full, values[:, :, 1], empty], axis=2), axis=2)
        by_position = (ahead + back) / 2  # (rows, pairs, n, outputs)
        marginals = np.take_along_axis(by_position, position[..., None], axis=2)
        mean = marginals.mean(axis=1)
        return Estimate(mean, mean_error(marginals))
