"""Split conformal calibration: bounds that hold for fresh rows with a chosen confidence.

For rows that are exchangeable with the calibration rows, and for whatever explainer, the score of a fresh row lies
below the ceil((n + 1) * confidence)-th smallest of n calibration scores with at least that confidence (Vovk et al.
2005; weighted by a difficulty: Lei et al. 2018). Where calibration rows stand for different numbers of rows, their
scores count by weight (Tibshirani et al. 2019; docs/decisions/0006-bounds.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError
from cortx.explainer.noise import Seen, drawn
from cortx.seeding import numpy_generator
from cortx.tails import NOISE_RISK

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

MOST_UNKNOWN = 0.05
"""The share of calibration labels that may lack standard errors."""


@dataclass(frozen=True, eq=False)
class RoundScores:
    """The largest scores of the calibration rows over all rounds of refinement, (rows, outputs)."""

    rows: Array
    bands: Array
    longest: int
    """Values v(S) of each row after the last of these rounds, at most."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of calibration rows, (rows, outputs): true error over typical error. Their order means nothing.

    `rows` are those of a row's l2 distance, `bands` those of its worst value; the i-th of both, and of `weights`,
    belong to the same row. Labels with standard errors count as if they were wrong by as much as these allow, and
    `noise_risk` is taken from the confidence.
    """

    rows: Array
    bands: Array
    noise_risk: float
    mean_l2: Array
    """The mean l2 distance to the calibration labels, (outputs,)."""
    evaluations: int
    weights: Array | None = None
    """How many rows of the data each stands for, (rows,), in any unit; None: all for equally many."""
    fresh: float = 1.0
    """What a fresh row weighs, in the same unit: 1 where all weigh the same."""
    rounds: RoundScores | None = None
    """What refinement made of the same rows; None in explainers of older versions."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def mass(self) -> Array:
        """The weights, one for each row, (rows,)."""
        return np.ones(len(self)) if self.weights is None else self.weights

    @property
    def effective_rows(self) -> int:
        """As many equally weighted rows would pin the bounds down as well."""
        return len(self) if self.weights is None else max(1, math.floor(self.mass.sum() / self.fresh + 1e-9))

    @property
    def most_confident(self) -> float:
        """The highest confidence that so many rows can support."""
        finite = np.isfinite(self.rows).all(axis=1) & np.isfinite(self.bands).all(axis=1)
        return float(self.mass[finite].sum() / (self.mass.sum() + self.fresh)) - self.noise_risk

    def factors(self, confidence: float, *, refined: bool = False) -> tuple[Array, Array]:
        """What typical errors are multiplied with, (outputs,) each: for a row's distance, and for its bands.

        With `refined` they hold for the answer and for all its refinements at once.
        """
        if not refined:
            return self.quantile(self.rows, confidence), self.quantile(self.bands, confidence)
        if self.rounds is None:
            raise InputError(
                "this explainer was calibrated by an older version, which did not try refinement on the calibration "
                "rows; call calibrate(rows) with fresh rows, or explain without a tolerance"
            )
        rows = self._jointly(self.rows, self.rounds.rows, confidence)
        return rows[0], self._jointly(self.bands, self.rounds.bands, confidence)[0]

    def round_factors(self, confidence: float) -> tuple[Array, Array]:
        """What deviations of refined rows are multiplied with, (outputs,) each, beside ``factors(refined=True)``."""
        assert self.rounds is not None
        rows = self._jointly(self.rows, self.rounds.rows, confidence)
        return rows[1], self._jointly(self.bands, self.rounds.bands, confidence)[1]

    def _jointly(self, answer: Array, rounds: Array, confidence: float) -> tuple[Array, Array]:
        """Factors of answers and of rounds, (outputs,) each, that hold together with this confidence.

        Each is a multiple of its own quantile, so that neither pays for the other's unit: a network may take its errors
        for ten times smaller than they are, and refinement may not.
        """
        alone = [self.quantile(part, confidence) for part in (answer, rounds)]
        units = [np.where((part > 0) & np.isfinite(part), part, 1.0) for part in alone]
        more = self.quantile(np.maximum(answer / units[0], rounds / units[1]), confidence)
        return more * units[0], more * units[1]

    def quantile(self, scores: Array, confidence: float) -> Array:
        """What a fresh row's score stays below with this confidence, (outputs,).

        `scores` (rows, outputs) are one of the calibration rows each: the smallest such that those up to it have the
        share `confidence` + `noise_risk` of all weight, that of the fresh row included.
        """
        needed = self._level(confidence) * (self.mass.sum() + self.fresh)
        order = np.argsort(scores, axis=0, kind="stable")
        below = np.cumsum(self.mass[order], axis=0)  # (rows, outputs)
        # The small number keeps 0.9 * 10 from becoming 9.000000000000002.
        enough = below >= needed - 1e-9 * self.fresh
        place = np.where(enough.any(axis=0), enough.argmax(axis=0), len(self) - 1)
        return np.asarray(np.take_along_axis(scores, order, axis=0)[place, np.arange(scores.shape[1])])

    def rank(self, confidence: float) -> int:
        """Which of `effective_rows` sorted scores bounds a fresh row's, counted from 1."""
        return min(self.effective_rows, math.ceil((self.effective_rows + 1) * self._level(confidence) - 1e-9))

    def _level(self, confidence: float) -> float:
        """The share of all weight that must lie below a bound; `InputError` if so many rows do not support it."""
        if isinstance(confidence, (bool, str)) or not 0 < confidence < 1:
            raise InputError(f"confidence must be a number between 0 and 1, got {confidence!r}")
        if confidence > self.most_confident + 1e-9 / (len(self) + 1):
            counted = "" if self.weights is None else f" (by their weights like {self.effective_rows} equal ones)"
            raise InputError(
                f"confidence={confidence} needs more calibration rows: {len(self)}{counted} support at most "
                f"{math.floor(1000 * self.most_confident) / 1000:.3f}; lower it, or call calibrate() with more rows"
            )
        return confidence + self.noise_risk


def calibrate(
    residual: Array,
    errors: Array,
    typical: Array,
    typical_row: Array,
    active: BoolArray,
    evaluations: int,
    weights: Array | None = None,
    frequent: BoolArray | None = None,
) -> Calibration:
    """Scores from labels that trained nothing.

    residual, errors (standard errors of the labels), typical: (rows, players, outputs); typical_row: (rows, outputs);
    active: (rows, players); weights, frequent: as in `Explanation`, (rows,).
    """
    if len(residual) < 2:
        raise BudgetError(f"calibration needs at least 2 labelled rows, got {len(residual)}")
    unknown: BoolArray = np.asarray(~np.isfinite(errors).all(axis=(1, 2)))
    if np.average(unknown, weights=weights) > MOST_UNKNOWN:
        raise InputError(
            f"{unknown.sum()} of {len(unknown)} calibration labels have no standard errors, so their noise cannot be "
            "accounted for; make them with cortx.shapley, exactly or with a larger budget"
        )
    away = np.sqrt(np.square(residual).sum(axis=1))
    rows, bands = scores(residual, errors, typical, typical_row, active)
    return Calibration(
        rows=rows,
        bands=bands,
        noise_risk=NOISE_RISK if (errors > 0).any() else 0.0,
        mean_l2=np.average(away, axis=0, weights=weights),
        evaluations=evaluations,
        weights=weights,
        fresh=1.0 if weights is None else _fresh_weight(weights, frequent),
    )


def calibrate_seen(
    known: Array, seen: Seen, typical: Array, typical_row: Array, evaluations: int, seed: int
) -> Calibration:
    """Scores from labels of few evaluations, whose noise is taken out instead of being allowed for.

    `known` is the part of each residual that has no noise, `seen` the rest; the shapes are those of `calibrate`.
    """
    if len(known) < 2:
        raise BudgetError(f"calibration needs at least 2 labelled rows, got {len(known)}")
    rows, bands, mean_l2 = seen_scores(known, seen, typical, typical_row, numpy_generator(seed, "seen errors"))
    return Calibration(rows, bands, noise_risk=0.0, mean_l2=mean_l2, evaluations=evaluations)


def seen_scores(
    known: Array, seen: Seen, typical: Array, typical_row: Array, generator: np.random.Generator
) -> tuple[Array, Array, Array]:
    """The scores of `scores` as they are without the labels' noise, and the mean l2 distance, (outputs,).

    Errors are drawn from what is known of them (`noise.drawn`). The k-th smallest score is the mean of the k-th
    smallest of all draws; rows have their places by their own mean.
    """
    none, found, distances = np.zeros_like(known), [], []
    for error in drawn(seen, generator):
        residual = known + error
        found.append(scores(residual, none, typical, typical_row, seen.open))
        distances.append(np.sqrt(np.square(residual).sum(axis=1)).mean(axis=0))
    rows, bands = (_in_their_places(np.stack(parts)) for parts in zip(*found, strict=True))
    return rows, bands, np.mean(distances, axis=0)


def _in_their_places(drawn_scores: Array) -> Array:
    """(rows, outputs) from (draws, rows, outputs): mean order statistics, given out by the rows' means."""
    ordered: Array = np.sort(drawn_scores, axis=1).mean(axis=0)
    result = np.empty_like(ordered)
    np.put_along_axis(result, np.argsort(drawn_scores.mean(axis=0), axis=0, kind="stable"), ordered, axis=0)
    return result


def scores(
    residual: Array, errors: Array, typical: Array, typical_row: Array, active: BoolArray
) -> tuple[Array, Array]:
    """How large an error may be over its typical size, (rows, outputs): of a row's l2 distance, and of its worst value.

    Shapes as in `calibrate`. With chance 1 - NOISE_RISK the true values lie this near, all at once. A label without
    standard errors may be wrong by any amount, and stands above all others.
    """
    unknown: BoolArray = np.asarray(~np.isfinite(errors).all(axis=(1, 2)))
    errors = np.where(unknown[:, None, None], 0.0, errors)
    rows = _multiple(_farthest(np.sqrt(np.square(residual).sum(axis=1)), errors, NOISE_RISK), typical_row)
    reach = _multiple(np.abs(residual) + noise_reach(errors), typical)
    bands = np.where(active[..., None], reach, 0.0).max(axis=1)
    rows[unknown], bands[unknown] = np.inf, np.inf
    return rows, bands


def _multiple(error: Array, typical: Array) -> Array:
    """Errors divided by typical errors; no error gives 0, also where none is typical (games of one player)."""
    return np.divide(error, typical, out=np.zeros_like(error), where=error > 0)


def _fresh_weight(weights: Array, frequent: BoolArray | None) -> float:
    """What a row of the data that is not among the calibration rows weighs: sum w^2 / sum w, the mean over rows.

    Kish's effective sample is sum w over it. Frequent rows are all here, and no other one weighs as much as they do.
    """
    others = weights if frequent is None or frequent.all() else weights[~frequent]
    return float(np.square(others).sum() / others.sum())


def _farthest(distance: Array, errors: Array, risk: float) -> Array:
    """How far off the prediction can be, given its distance to a noisy label, (rows, outputs), at this risk.

    The squared distance to the label is d^2 + 2 d.e + |e|^2 with normal e: the middle is above -2 z d max s, and the
    last above sum s_j^2 - 2 sqrt(t sum s_j^4) (Laurent and Massart 2000), each with half the risk; solved for d.
    """
    squares = np.square(errors)
    reach = NormalDist().inv_cdf(1 - risk / 2) * np.sqrt(squares.max(axis=1))
    lowest = squares.sum(axis=1) - 2 * np.sqrt(-math.log(risk / 2) * np.square(squares).sum(axis=1))
    return np.asarray(reach + np.sqrt(np.square(reach) + np.maximum(np.square(distance) - lowest, 0.0)))


def noise_reach(errors: Array, risk: float = NOISE_RISK) -> Array:
    """What normal errors of a row all stay within, but for this chance, (rows, players, outputs)."""
    return NormalDist().inv_cdf(1 - risk / (2 * errors.shape[1])) * errors


def noise_radius(errors: Array, risk: float = NOISE_RISK) -> Array:
    """The l2 norm that independent normal errors exceed with at most this chance, (rows, outputs).

    Laurent and Massart (2000): sum of e_j^2 <= sum s_j^2 + 2 sqrt(t sum s_j^4) + 2 t max s_j^2, t = -log(risk).
    """
    squares = np.square(errors)
    t = -math.log(risk)
    squared = squares.sum(axis=1) + 2 * np.sqrt(t * np.square(squares).sum(axis=1)) + 2 * t * squares.max(axis=1)
    return np.asarray(np.sqrt(squared))
