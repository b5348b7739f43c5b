"""KernelSHAP without the noise of interactions: `cortx.estimators.interactions` as its control variate."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.estimators.block import Block, Estimate, enumerable
from cortx.estimators.exact import Exact
from cortx.estimators.interactions import Pairs, Screen, beyond_players, screen
from cortx.estimators.kernel_shap import (
    KernelShap,
    draw_pairs,
    expected_pairs,
    pair_weights,
    paired,
    population,
    regress,
    regression_factor,
)

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


POOL = 16
"""Rows of a call, at most, whose pairs say which interactions matter."""

PAIRS_PER_PLAYER = 16
"""Below, standard errors miss what few pairs see: in games that are one AND of six of 16 players, with six pairs for
each player, one row in six was farther off than they say; with 16 one in a hundred, with more none."""

ASSUMED = 2
"""Pairs assumed beside those drawn of which the interactions know nothing: what is rare may have been missed by all."""


class Sample(NamedTuple):
    """Evaluated pairs of some rows, and what the regression on them needs."""

    pairs: Pairs
    total: Array
    """(rows, outputs)."""
    sampled: int
    """Pairs of each row that were not drawn for certain."""


class OddShap(KernelShap):
    """The paired regression of `KernelShap`, without what interactions of three players say of each pair.

    Which interactions matter is learned from the pairs of at most `POOL` rows of a call, those with the smallest hash
    of their content, and how much each of them matters to a row from that row's own pairs, for each pair from all
    others. So a row's values depend on its own content, the seed and which rows are asked for together: not on their
    order or on chunks. Rows that share no call share nothing, and a row asked for alone screens for itself.

    Interactions, right or wrong, have no Shapley values: they only change the noise, and standard errors are those of
    the regression on what they leave. Like any regression on a sample it is consistent and not quite unbiased; the bias
    is smaller than the error. With few pairs, or less than three players, it is `KernelShap`.
    """

    name: ClassVar[str] = "odd"

    def __init__(self) -> None:
        super().__init__("leverage")

    @staticmethod
    def screens(n_players: int, budget: int) -> bool:
        """Whether a row has pairs enough to learn interactions from, and to know how far off they may be."""
        return not enumerable(n_players, budget) and n_players >= 3 and budget // 2 >= PAIRS_PER_PLAYER * n_players

    def estimate(self, block: Block, budget: int) -> Estimate:
        if enumerable(block.n_players, budget):
            return Exact().estimate(block, budget)
        sample = self.sample(block, budget)
        if not self.screens(block.n_players, budget):
            return self.solve(sample, None, np.zeros(len(block.rows), dtype=bool))
        return self.solve(sample, screen(sample.pairs), np.ones(len(block.rows), dtype=bool))

    def sample(self, block: Block, budget: int) -> Sample:
        """Draws and evaluates the pairs of a block."""
        n, n_pairs = block.n_players, budget // 2
        expected = expected_pairs(n, n_pairs, "leverage")
        coalitions = draw_pairs(block, expected, n_pairs)
        _, target = paired(block, coalitions, distinct=True)
        size, inclusion = coalitions.sum(axis=2), expected / population(n)
        pairs = Pairs(
            coalitions, block.active, target, pair_weights(n, expected)[size - 1], inclusion[size - 1],
            block.game.n_players,
        )  # fmt: skip
        return Sample(pairs, block.total, int(expected[inclusion < 1].sum()))

    def solve(self, sample: Sample, found: Screen | None, taught: BoolArray) -> Estimate:
        """The estimate of sampled rows; `taught` (rows,) says which of them `found` was learned from."""
        pairs, target, largest = sample.pairs, sample.pairs.target, None
        n_pairs, n = pairs.coalitions.shape[1:]
        if found is not None:
            taken, before = beyond_players(pairs, found, taught)
            target = target - taken
            largest = np.sqrt(ASSUMED) * np.abs(before * (pairs.inclusion < 1)[..., None]).max(axis=1)
        psi, errors = regress(pairs.design, target, pairs.weight, pairs.inclusion, largest)
        return Estimate(psi + sample.total[:, None, :] / n, regression_factor(n_pairs, n, sample.sampled) * errors)
