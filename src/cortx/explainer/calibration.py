"""Split conformal calibration: bounds that hold for fresh rows with a chosen confidence.

For rows that are exchangeable with the calibration rows, and for whatever explainer, the score of a fresh row lies
below the ceil((n + 1) * confidence)-th smallest of n calibration scores with at least that confidence (Vovk et al.
2005; weighted by a difficulty: Lei et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from cortx.errors import BudgetError, InputError

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NOISE_RISK = 0.002
"""The chance, for each calibration row, that its label is farther off than its standard errors account for."""

MOST_UNKNOWN = 0.05
"""The share of calibration labels that may lack standard errors."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scores of calibration rows, sorted, (rows, outputs): true error over typical error.

    `rows` are those of a row's l2 distance, `bands` those of its worst value. Labels with standard errors count as
    if they were wrong by as much as these allow, and `noise_risk` is taken from the confidence.
    """

    rows: Array
    bands: Array
    noise_risk: float
    mean_l2: Array
    """The mean l2 distance to the calibration labels, (outputs,)."""
    evaluations: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def most_confident(self) -> float:
        """The highest confidence that so many rows can support."""
        return self._n_finite / (len(self) + 1) - self.noise_risk

    @property
    def _n_finite(self) -> int:
        return int(np.isfinite(self.bands).all(axis=1).sum())

    def factors(self, confidence: float) -> tuple[Array, Array]:
        """What typical errors are multiplied with, (outputs,) each: for a row's distance, and for its bands."""
        position = self.position(confidence)
        return self.rows[position], self.bands[position]

    def position(self, confidence: float) -> int:
        """Which of the sorted scores bounds a fresh row's."""
        if isinstance(confidence, bool) or not 0 < confidence < 1:
            raise InputError(f"confidence must lie between 0 and 1, got {confidence!r}")
        n = len(self)
        # The small number keeps 0.9 * 10 from becoming 9.000000000000002.
        rank = math.ceil((n + 1) * (confidence + self.noise_risk) - 1e-9)
        if rank > self._n_finite:
            raise InputError(
                f"confidence={confidence} needs more calibration rows: {n} support at most "
                f"{math.floor(1000 * self.most_confident) / 1000:.3f}; lower it, or call calibrate() with more rows"
            )
        return rank - 1


def calibrate(
    residual: Array,
    errors: Array,
    typical: Array,
    typical_row: Array,
    active: BoolArray,
    evaluations: int,
) -> Calibration:
    """Scores from labels that trained nothing.

    residual, errors (standard errors of the labels), typical: (rows, players, outputs); typical_row: (rows, outputs);
    active: (rows, players).
    """
    if len(residual) < 2:
        raise BudgetError(f"calibration needs at least 2 labelled rows, got {len(residual)}")
    unknown: BoolArray = np.asarray(~np.isfinite(errors).all(axis=(1, 2)))
    if unknown.mean() > MOST_UNKNOWN:
        raise InputError(
            f"{unknown.sum()} of {len(unknown)} calibration labels have no standard errors, so their noise cannot be "
            "accounted for; make them with cortx.shapley, exactly or with a larger budget"
        )
    errors = np.where(unknown[:, None, None], 0.0, errors)
    noisy = bool((errors > 0).any())
    away = np.sqrt(np.square(residual).sum(axis=1))
    mean_l2 = away.mean(axis=0)
    if noisy:
        # With chance 1 - NOISE_RISK the true values lie this near to the label, all at once.
        away = _farthest(away, errors, NOISE_RISK)
        residual = np.abs(residual) + noise_reach(errors)
    bands = np.where(active[..., None], np.abs(residual) / typical, 0.0).max(axis=1)
    # A label that may be wrong by any amount stands above all others.
    away[unknown], bands[unknown] = np.inf, np.inf
    return Calibration(
        rows=np.sort(away / typical_row, axis=0),
        bands=np.sort(bands, axis=0),
        noise_risk=NOISE_RISK if noisy else 0.0,
        mean_l2=mean_l2,
        evaluations=evaluations,
    )


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
