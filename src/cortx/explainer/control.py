"""Labels that judge an explainer, from few evaluations: a student's values, and an estimate of what it misses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.estimators.block import Control, Student
from cortx.estimators.shapley import shapley
from cortx.estimators.unbiased import LEAST_PAIRS
from cortx.explainer.labels import Labels
from cortx.games import Game

Array = npt.NDArray[np.float64]

METHOD = "unbiased"
"""The estimator of control labels: unbiased from two values on, and of known variance."""
LEAST_VALUES = 2 * LEAST_PAIRS
"""Values v(S) of a row, v(all) and v(none) aside, below which such labels have no standard errors."""
MOST_NOISE = 1.0
"""Noise of calibration labels, as a multiple of the errors that they judge, up to which it is taken out well.

Simulated with 100 calibration rows of 8 to 94 players (docs/decisions/0013-control-variate.md): coverage of 90% bounds
was 0.88 to 0.93 with up to this, and 0.88 to 0.94 with up to three times as much.
"""


def control_labels(
    game: Game, data: Any, student: Student, values_per_row: int, seed: int, progress: bool | None = False
) -> Labels:
    """Labels of a table's rows from `values_per_row` values v(S) of each at most, v(all) and v(none) aside.

    Rows with few active players are enumerated where that costs no more. `Labels.variance` says how noisy the others
    are, without bias; their errors are standard errors from which bounds may be read. The student must not have learned
    from values v(S) that `seed` draws for these rows, nor from what they judge.
    """
    if values_per_row < LEAST_VALUES:
        raise InputError(
            f"values_per_row={values_per_row} is too few: labels have standard errors from {LEAST_VALUES} values on"
        )
    ends = 1 if game.own_reference is None else 2
    budget = game.evaluations_per_value * (values_per_row + ends)
    found = shapley(
        game, data, METHOD, row_budget=budget, views=0, seed=seed, student=student, progress=progress
    )  # fmt: skip
    return Labels.of(found, game)


def missed_l2(labels: Labels, game: Game, student: Student) -> float:
    """How far off a student's own values are: the root mean square l2 distance to the truth, outputs together.

    The labels' noise is taken out of it, so it may be zero by chance where labels are few and the student is good.
    """
    assert labels.variance is not None
    learned = Control.of(student, game, game.rows(labels.data)).shapley
    squares = (np.square(labels.values - learned) - labels.variance).sum(axis=(1, 2))
    return math.sqrt(max(0.0, float(squares.mean())))


def values_needed(pilot: Labels, values_per_row: int, error: float, most: int, noise: float = MOST_NOISE) -> int:
    """Values v(S) of each calibration row for labels that are at most `noise` times as far off as the explainer.

    `pilot` are labels of a few rows like these (`control_labels`, `values_per_row` each); `error` is the root mean
    square l2 distance of the explainer to the truth, measured or expected, all outputs together. At least what gives
    standard errors, at most `most`.
    """
    assert pilot.variance is not None
    of_one = float(pilot.variance.sum(axis=(1, 2)).mean()) * values_per_row
    most = max(LEAST_VALUES, most)
    if of_one >= most * (noise * error) ** 2:
        return most
    return max(LEAST_VALUES, 2 * math.ceil(of_one / (noise * error) ** 2 / 2 - 1e-9))
