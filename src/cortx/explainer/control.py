"""What labels that judge an explainer with a student cost: its values, and an estimate of what it misses."""

from __future__ import annotations

from typing import Any

import numpy as np

from cortx.errors import InputError
from cortx.estimators.unbiased import LEAST_PAIRS
from cortx.explainer.budget import WELL_JUDGED
from cortx.games import Game

METHOD = "unbiased"
"""The estimator of control labels: unbiased from two values on, and of known variance."""
LEAST_VALUES = 2 * LEAST_PAIRS
"""Values v(S) of a row, v(all) and v(none) aside, below which such labels have no standard errors."""


def control_budget(game: Game, data: Any, row_budget: int | None) -> int:
    """Model evaluations for each row's control label: what was asked for, or the usual; too few are refused."""
    least, usual = (game.evaluations_per_value * (values + 1) for values in (LEAST_VALUES, WELL_JUDGED))
    if row_budget is None:
        return usual
    if isinstance(row_budget, bool) or not isinstance(row_budget, (int, np.integer)):
        raise InputError(f"row_budget must be a whole number of model evaluations, got {row_budget!r}")
    players = int(game.rows(data).active.sum(axis=1).max())
    if row_budget < min(least, game.evaluations_per_value * 2**players):
        raise InputError(
            f"row_budget={row_budget} is too small: labels that a student corrects have standard errors from {least:,} "
            "evaluations a row on"
        )
    return row_budget
