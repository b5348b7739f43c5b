"""From the network's answer to bounds, and to a better answer where they are too wide."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.estimators.amortized import Refinement, pair_population
from cortx.estimators.block import Block, Control, Estimate, Prior, Student, adding_up, coalition_count, enumerable
from cortx.estimators.shapley import LONGEST_BUDGET
from cortx.estimators.tree import prepare_trees, tree_labels
from cortx.explainer.calibration import scores, seen_scores
from cortx.explainer.noise import Seen
from cortx.explanation import highest_first
from cortx.games import Game, Rows
from cortx.games.tree_readers import NotTrees
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator, stream_seed
from cortx.training.tree_teacher import teachable

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
logger = logging.getLogger("cortx")

FIRST_ROUND, LONGEST_ROUND = 32, 2_048
"""Values v(S) of each row after the first round, and after the last; every round doubles them."""
TRUSTED = 4
"""A sampled label judges rounds of up to this part of its own values: past that, errors would be mostly its noise."""
TRUSTED_SEEN = 0.8
"""The same where the labels' noise is taken out of the errors; of independent draws some repeat and are paid once."""
ROUNDING, ROUNDING_64 = 2.0**-20, 2.0**-49
"""Of the outputs of a row, of all players and of none: no bound of a refined row is narrower (float32, float64)."""
NESTED_PAIRS = 2**13
"""Up to so many pairs a row is enumerated by going on; above, by asking for all coalitions in chunks."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the network says of rows, and how far off it usually is.

    values, typical: (rows, players, outputs); typical_row: (rows, outputs); active: (rows, players), who can have a
    value other than zero.
    """

    values: Array
    ranking: npt.NDArray[np.integer[Any]] | None
    typical: Array | None
    typical_row: Array | None
    active: BoolArray

    @property
    def decided(self) -> BoolArray:
        """(rows,): one player alone takes the whole total, and nobody takes nothing, so nothing can be wrong."""
        return np.asarray(self.active.sum(axis=1) <= 1)

    def bounds(self, row_factor: Array, band_factor: Array) -> Bounds:
        """Typical errors times what calibration found, (outputs,) each."""
        assert self.typical is not None
        assert self.typical_row is not None
        reach = np.where(self.active[..., None], self.typical * band_factor, 0.0)
        error = np.where(self.decided[:, None], 0.0, self.typical_row * row_factor)
        reach[self.decided] = 0.0
        return Bounds(self.values - reach, self.values + reach, error, np.zeros(len(self.values), dtype=bool))


@dataclass(frozen=True, eq=False)
class Bounds:
    """lower, upper: (rows, players, outputs); error, a bound on a row's l2 error: (rows, outputs); refined: (rows,)."""

    lower: Array
    upper: Array
    error: Array
    refined: BoolArray


def round_sizes(n_players: int, most: int) -> list[int]:
    """Values v(S) of a row with so many active players after each round, up to `most`.

    Where half of all coalitions would be asked for, all of them end the matter: that is no round, but exact.
    """
    sizes, size = [], FIRST_ROUND
    while size <= most and 2 * size < coalition_count(n_players):
        sizes.append(size)
        size *= 2
    return sizes


def longest_round(label_values: float, *, exact: bool, noise_known: bool = False) -> int:
    """Values v(S) of the longest round that labels can judge, which have so many values themselves.

    Labels of known variance (`Explanation.variance`), whose noise is taken out, judge longer ones.
    """
    trusted = TRUSTED_SEEN if noise_known else TRUSTED
    return LONGEST_ROUND if exact else min(LONGEST_ROUND, int(label_values / trusted))


@dataclass(frozen=True, eq=False)
class Refinable:
    """Rows with the network's answer and what the model gave for them: full, empty are (rows, outputs)."""

    game: Game
    rows: Rows
    full: Array
    empty: Array
    answer: Predicted
    seed: int
    student: Student | None = None
    """Rounds start from what it says, where there is one, instead of from the network's answer."""

    def rounding(self, index: IntArray) -> Array:
        """How far off exact values of some rows may be, (index, outputs): outputs change with their batch."""
        return np.asarray(self._rounding * (np.abs(self.full[index]) + np.abs(self.empty[index])))

    @cached_property
    def _rounding(self) -> float:
        """float64's where the model's own outputs show more digits than float32 has, else that of float32."""
        own = self.game.evaluations_per_value == 1 and self.game.model.output != "log-odds"
        return ROUNDING_64 if own and not np.array_equal(self.full, self.full.astype(np.float32)) else ROUNDING

    def blocks(self, index: IntArray, most: int) -> Iterator[tuple[IntArray, Refinement]]:
        """Those of rows `index` that have two active players or more, in blocks with equally many of them."""
        counts = self.rows.active[index].sum(axis=1)
        for n in np.unique(counts[counts > 1]):
            group = index[counts == n]
            longest = _nested_pairs(int(n), most)
            row_bytes = max(1, longest) * (4 * self.game.n_players + 64 * int(n) + 24 * self.full.shape[1])
            size = max(1, self.game.memory_budget // row_bytes)
            for start in range(0, len(group), size):
                some = group[start : start + size]
                yield some, Refinement(self._block(some, most), longest)

    def _block(self, index: IntArray, most: int) -> Block:
        assert self.answer.typical is not None
        active = np.nonzero(self.rows.active[index])[1].reshape(len(index), -1)
        place = index[:, None], active
        rows, seed = self.rows.take(index), stream_seed(self.seed, "refine")
        return Block(
            self.game, rows, active, self.full[index], seed,
            prior=Prior(self.answer.values[place], self.answer.typical[place]),
            own_empty=None if self.game.own_reference is None else self.empty[index],
            control=None if self.student is None else Control.of(self.student, self.game, rows, seed, most),
        )  # fmt: skip


def _nested_pairs(n_players: int, most: int) -> int:
    """Pairs that the nested draws of a row hold: all of them, or those of its longest round."""
    pairs = pair_population(n_players)
    return pairs if pairs <= NESTED_PAIRS else max(round_sizes(n_players, most), default=0) // 2


def rounds_cost(n_players: IntArray, most: int) -> IntArray:
    """Values v(S) that all rounds together ask for, of rows with so many active players, (rows,)."""
    return np.array([max(round_sizes(int(n), most), default=0) for n in n_players], dtype=np.int64)


def refine(
    some: Refinable,
    bounds: Bounds,
    factors: tuple[Array, Array],
    most: int,
    *,
    tolerance: float,
    row_budget: int | None,
    show: bool | None,
) -> tuple[Predicted, Bounds]:
    """Asks the model about the rows whose error bound exceeds the tolerance, until none does or `row_budget` is spent.

    `factors`, of a row's l2 error and of its bands, (outputs,) each, were calibrated for all rounds of up to `most`
    values v(S) at once, so they hold whenever a row stops. Past the rounds a row is enumerated if its budget pays.
    """
    copies = some.game.evaluations_per_value
    affordable = (copies * LONGEST_BUDGET if row_budget is None else row_budget) // copies
    known = _Known.start(some.answer, bounds)
    waiting = np.flatnonzero((bounds.error > tolerance).any(axis=1))
    if len(waiting) and has_trees(some):
        known.put_exact(waiting, _tree_values(some, waiting), some.rounding(waiting))
        waiting = waiting[:0]
    with progress_bar("refining", len(waiting), show=show) as advance:
        for index, refinement in some.blocks(waiting, most):
            n = refinement.block.n_players
            sizes = [size for size in round_sizes(n, most) if size <= affordable]
            again = 0 if refinement.nested else max(sizes, default=0)  # what enumerating would pay for twice
            if enumerable(n, affordable - again):
                sizes.append(coalition_count(n))
            left = np.arange(len(index))
            for size in sizes:
                estimate = refinement.estimate(left, size)
                known.put(index[left], refinement.block.active[left], estimate, factors, some.rounding(index[left]))
                left = left[(known.bounds.error[index[left]] > tolerance).any(axis=1)]
                if len(left) == 0:
                    break
            advance(len(index), f"{some.game.evaluations:,} evaluations")
    _tell_what_is_missed(some, waiting, known.bounds.error[waiting], tolerance, affordable, most)
    ranking, refined = some.answer.ranking, known.bounds.refined
    if ranking is not None:  # what the ranking head said of rows that are better known now no longer counts
        ranking = ranking.copy()
        ranking[refined] = highest_first(known.values[refined])
    return replace(some.answer, values=known.values, ranking=ranking), known.bounds


def _tell_what_is_missed(
    some: Refinable, index: IntArray, bounds: Array, tolerance: float, affordable: int, most: int
) -> None:
    """Warns of rows `index` whose `bounds`, (index, outputs), are above the tolerance, and says why.

    `affordable` values v(S) of each could be paid for, and calibration tried rounds of up to `most`.
    """
    rounding, copies = some.rounding(index), some.game.evaluations_per_value
    above = (bounds > np.maximum(tolerance, rounding)).any(axis=1)
    left_over = int(above.sum())
    if rounding.size and rounding.max() > tolerance:
        logger.warning(
            "bounds of refined rows are up to %.3g, above the tolerance of %.3g: outputs as large as these are no more "
            "precise in float32", float(rounding.max()), tolerance,
        )  # fmt: skip
    if most < FIRST_ROUND and left_over:
        logger.warning(
            "%s rows were not refined: calibration tried no refinement (its labels came from the model's trees, or "
            "from too few evaluations), so that refined rows would have no valid bounds; call calibrate(rows) first, "
            "with the model attached",
            f"{left_over:,}",
        )
    elif left_over:
        ended = f"row_budget allows {copies * affordable:,} evaluations of a row; give more"
        if affordable > most:
            n = int(some.rows.active[index[above]].sum(axis=1).max())
            ended = (
                f"calibration tried refinement with up to {most:,} values v(S) of a row, and past that a row must be "
                f"enumerated, which row_budget= must pay for (up to 2**{n} values)"
            )
            if most < LONGEST_ROUND:
                ended += "; after explainer.calibrate(rows, row_budget=...) with more evaluations it goes on for longer"
        logger.warning(
            "%s of %s rows are still above the tolerance of %.3g: %s",
            f"{left_over:,}", f"{len(index):,}", tolerance, ended,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Known:
    """Values, (rows, players, outputs), and bounds as they get better, in place."""

    values: Array
    bounds: Bounds

    @staticmethod
    def start(answer: Predicted, bounds: Bounds) -> _Known:
        copies = Bounds(bounds.lower.copy(), bounds.upper.copy(), bounds.error.copy(), bounds.refined.copy())
        return _Known(answer.values.copy(), copies)

    def put(
        self, index: IntArray, active: IntArray, estimate: Estimate, factors: tuple[Array, Array], rounding: Array
    ) -> None:
        """An estimate of the `active` players of rows `index`, (rows, n); the others of these rows have nothing.

        Nothing is known better than `rounding`, (rows, outputs).
        """
        row_factor, band_factor = factors
        place = index[:, None], active
        for array in (self.values, self.bounds.lower, self.bounds.upper):
            array[index] = 0.0
        reach = np.maximum(band_factor * estimate.errors, rounding[:, None])
        self.values[place] = estimate.values
        self.bounds.lower[place], self.bounds.upper[place] = estimate.values - reach, estimate.values + reach
        self.bounds.error[index] = np.maximum(row_factor * row_deviation(estimate.errors), rounding)
        self.bounds.refined[index] = True

    def put_exact(self, index: IntArray, values: Array, rounding: Array) -> None:
        """Exact values of rows, (index, players, outputs), but for `rounding`, (index, outputs)."""
        self.values[index] = values
        self.bounds.lower[index] = values - rounding[:, None]
        self.bounds.upper[index] = values + rounding[:, None]
        self.bounds.error[index], self.bounds.refined[index] = rounding, True


def has_trees(some: Refinable) -> bool:
    """Whether trees tell the values of rows; the first time, a few evaluations compare them with the model."""
    if teachable(some.game, some.rows) is None:
        return False
    try:
        prepare_trees(some.game, some.rows)
    except NotTrees:
        return False
    return True


def _tree_values(some: Refinable, index: IntArray) -> Array:
    """Exact values of rows, (index, players, outputs); they add up to what the model gave for these rows."""
    rows = some.rows.take(index)
    found = tree_labels(some.game, rows, progress=False).values
    values = np.asarray(found, dtype=np.float64).reshape(len(index), rows.active.shape[1], -1)
    return adding_up(values, some.full[index] - some.empty[index], rows.active)


def row_deviation(errors: Array) -> Array:
    """How far off a row typically is in l2, (rows, outputs), from the deviations of its values."""
    return np.asarray(np.sqrt(np.square(errors).sum(axis=1)))


def round_scores(
    some: Refinable, labels: Array, errors: Array, most: int, variance: Array | None = None
) -> tuple[Array, Array]:
    """The largest error over typical error of all rounds, (rows, outputs): of a row's l2 error, and of its worst value.

    labels, errors: (rows, players, outputs), the true values with their standard errors. Rows without a round have 0.
    With the `variance` of the labels, shaped like them, their noise is taken out instead of being allowed for.
    """
    rows, bands = (np.zeros((len(labels), labels.shape[2])) for _ in range(2))
    if most < FIRST_ROUND:
        return rows, bands
    if variance is not None:
        return _seen_round_scores(some, labels, variance, most)
    _, first, same = np.unique(some.rows.words, return_index=True, return_inverse=True)  # equal rows are paid for once
    for index, refinement in some.blocks(np.sort(first), most):
        active = refinement.block.active
        place = index[:, None], active
        every = np.ones(active.shape, dtype=bool)
        for size in round_sizes(refinement.block.n_players, most):
            estimate = refinement.estimate(np.arange(len(index)), size)
            typical_row = row_deviation(estimate.errors)
            found = scores(labels[place] - estimate.values, errors[place], estimate.errors, typical_row, every)
            rows[index], bands[index] = np.maximum(rows[index], found[0]), np.maximum(bands[index], found[1])
    return rows[first[same]], bands[first[same]]


def _seen_round_scores(some: Refinable, labels: Array, variance: Array, most: int) -> tuple[Array, Array]:
    """`round_scores` without the labels' noise: all rows of a round tell together how large its errors are."""
    rows, bands = (np.zeros((len(labels), labels.shape[2])) for _ in range(2))
    _, first, same = np.unique(some.rows.words, return_index=True, return_inverse=True)
    rounds: dict[int, tuple[Array, Array, BoolArray]] = {}
    for index, refinement in some.blocks(np.sort(first), most):
        place = index[:, None], refinement.block.active
        for size in round_sizes(refinement.block.n_players, most):
            if size not in rounds:
                rounds[size] = np.zeros_like(labels), np.ones_like(labels), np.zeros(labels.shape[:2], dtype=bool)
            away, sizes, open_ = rounds[size]
            estimate = refinement.estimate(np.arange(len(index)), size)
            away[place], open_[place] = labels[place] - estimate.values, True
            sizes[place] = np.maximum(estimate.errors, np.finfo(np.float64).tiny)
    for size, (away, sizes, open_) in rounds.items():
        index = np.flatnonzero(open_.any(axis=1))
        away, sizes, open_ = away[index], sizes[index], open_[index]
        seen = Seen(away, variance[index], sizes, open_)
        typical_row = row_deviation(np.where(open_[..., None], sizes, 0.0))
        generator = numpy_generator(some.seed, "seen errors of a round", size)
        found = seen_scores(np.zeros_like(away), seen, sizes, typical_row, generator)
        rows[index], bands[index] = np.maximum(rows[index], found[0]), np.maximum(bands[index], found[1])
    return rows[first[same]], bands[first[same]]
