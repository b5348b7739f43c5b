"""Antithetic permutation sampling."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from cortx.errors import InputError
from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.exact import Exact
from cortx.tails import LEAST_DRAWS, mean_error

MANY = 10**15
"""Coalitions of one size: among so many hardly any is met twice."""


def walk_values(n_players: int, pairs: int) -> int:
    """Values v(S) that so many antithetic pairs of permutations ask for at most, v(all) and v(none) aside."""
    return min(2 * pairs * max(0, n_players - 1), coalition_count(n_players))


def expected_walk_values(n_players: int, pairs: int) -> float:
    """The same on average: a coalition that several pairs visit is asked for once.

    A pair visits two different coalitions of each size, so it meets a given one of size s with chance 2 / C(n, s).
    """
    if pairs == 1 or walk_values(n_players, pairs) == coalition_count(n_players):
        return walk_values(n_players, pairs)
    counts = (min(math.comb(n_players, size), MANY) for size in range(1, n_players))
    return sum(-count * math.expm1(pairs * math.log1p(-2 / count)) for count in counts)


class Permutation(Estimator):
    """Mean marginal contribution over random orders, each followed by its reverse (Mitchell et al. 2022).

    Unbiased. A pair of orders asks for 2(n-1) values. The standard error comes from the spread between pairs;
    below eight of them it is not known. `pairs` is the most pairs of a row, whatever the budget; None spends the
    budget, so that rows with few active players get many.
    """

    name: ClassVar[str] = "permutation"

    def __init__(self, pairs: int | None = None) -> None:
        if pairs is not None and (isinstance(pairs, bool) or not isinstance(pairs, int) or pairs < 1):
            raise InputError(f"pairs must be a positive whole number or None, got {pairs!r}")
        self.pairs = pairs

    def least(self, n_players: int) -> int:
        return min(2 * (n_players - 1), coalition_count(n_players))

    def least_known(self, n_players: int) -> int:
        return min(LEAST_DRAWS * 2 * (n_players - 1), coalition_count(n_players))

    def most(self, n_players: int) -> float:
        return math.inf if self.pairs is None else walk_values(n_players, self.pairs)

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
