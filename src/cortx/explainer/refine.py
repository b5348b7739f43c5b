"""From the network's answer to bounds, and to a better answer where they are too wide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.estimators.amortized import Amortized
from cortx.estimators.block import coalition_count
from cortx.estimators.shapley import LONGEST_BUDGET, shapley
from cortx.explainer.calibration import noise_radius, noise_reach
from cortx.explanation import IntArray, highest_first, take_rows
from cortx.games import Game
from cortx.progress import progress_bar
from cortx.seeding import stream_seed

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

FIRST_ROUND = 32
"""Values v(S) of each row in the first round; every further round asks for twice as many."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the network says of rows, and how far off it usually is.

    values, typical: (rows, players, outputs); typical_row: (rows, outputs); active: (rows, players), who can have a
    value other than zero.
    """

    values: Array
    ranking: IntArray | None
    typical: Array | None
    typical_row: Array | None
    active: BoolArray

    def bounds(self, row_factor: Array, band_factor: Array) -> Bounds:
        """Typical errors times what calibration found, (outputs,) each."""
        assert self.typical is not None
        assert self.typical_row is not None
        reach = np.where(self.active[..., None], self.typical * band_factor, 0.0)
        # One player alone takes the whole total, and nobody takes nothing: there is nothing to be wrong about.
        decided = self.active.sum(axis=1) <= 1
        error = np.where(decided[:, None], 0.0, self.typical_row * row_factor)
        reach[decided] = 0.0
        return Bounds(self.values - reach, self.values + reach, error, np.zeros(len(self.values), dtype=bool))


@dataclass(frozen=True, eq=False)
class Bounds:
    """lower, upper: (rows, players, outputs); error, a bound on a row's l2 error: (rows, outputs); refined: (rows,)."""

    lower: Array
    upper: Array
    error: Array
    refined: BoolArray


@dataclass(frozen=True, eq=False)
class _SoFar:
    """What is known of rows before a round, as the prior of the next."""

    values: Array
    scales: Array

    def prior(self, rows: Any, outputs: Array) -> tuple[Array, Array]:
        del rows, outputs
        return self.values, self.scales


def refine(
    game: Game,
    X: Any,
    answer: Predicted,
    bounds: Bounds,
    *,
    tolerance: float,
    confidence: float,
    row_budget: int | None,
    seed: int,
    show: bool | None,
) -> tuple[Predicted, Bounds]:
    """Asks the model about the rows whose error bound exceeds the tolerance, until none does or `row_budget` is spent.

    Each round is a paired regression whose prior is what was known before. The bounds of refined rows come from its
    posterior, at half the risk that `confidence` leaves; `bounds` must have been made at the other half.
    """
    assert answer.typical is not None
    copies = game.evaluations_per_value
    most = copies * LONGEST_BUDGET if row_budget is None else row_budget
    risk = (1 - confidence) / 2
    values, scales = answer.values.copy(), answer.typical.copy()
    lower, upper, error, refined = bounds.lower.copy(), bounds.upper.copy(), bounds.error.copy(), bounds.refined.copy()
    n_active = answer.active.sum(axis=1)
    waiting = np.flatnonzero((error > tolerance).any(axis=1))
    spent, ask, round_ = 0, FIRST_ROUND, 0
    with progress_bar("refining", len(waiting), show=show) as advance:
        while len(waiting) and spent + 1 + 2 * copies <= most:
            # Where half of all coalitions would be asked for, all of them end the matter.
            enough = max(2, coalition_count(int(n_active[waiting].max())))
            ask = min(enough if 2 * ask >= enough else ask, (most - spent - 1) // copies)
            known = _SoFar(values[waiting], scales[waiting])
            labels = shapley(
                game, take_rows(X, waiting), Amortized(), row_budget=copies * ask + copies, explainer=known, views=0,
                seed=stream_seed(seed, "refine", round_), progress=False,
            )  # fmt: skip
            shape = known.values.shape
            assert labels.error_std is not None
            values[waiting] = labels.values.reshape(shape)
            scales[waiting] = labels.error_std.reshape(shape)
            error[waiting] = noise_radius(scales[waiting], risk)
            reach = noise_reach(scales[waiting], risk)
            lower[waiting], upper[waiting] = values[waiting] - reach, values[waiting] + reach
            refined[waiting] = True
            done = (error[waiting] <= tolerance).all(axis=1)
            advance(int(done.sum()), f"{game.evaluations:,} evaluations")
            waiting = waiting[~done]
            spent, ask, round_ = spent + 1 + copies * ask, 2 * ask, round_ + 1
    ranking = answer.ranking
    if ranking is not None:  # what the ranking head said of rows that are better known now no longer counts
        ranking = ranking.copy()
        ranking[refined] = highest_first(values[refined])
    return replace(answer, values=values, ranking=ranking), Bounds(lower, upper, error, refined)
