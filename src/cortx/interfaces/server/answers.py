"""Attributions as JSON: what ``/explain`` and ``:explain`` answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.explanation import Explanation
from cortx.reasons import ROUNDING, Reason, ReasonCodes, find_reasons

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Names:
    """What the numbers of an artifact's answers are called."""

    players: tuple[str, ...]
    outputs: tuple[str, ...]
    columns: tuple[int | None, ...]
    """For each player the column that it is, or None for a group of columns."""
    image: bool


@dataclass(frozen=True, slots=True)
class Arrays:
    """The explanation of some rows, always with an axis of outputs."""

    values: Array  # (rows, players, outputs)
    base_values: Array  # (rows, outputs)
    prediction: Array  # (rows, outputs); without the model's outputs, what the attributions add up to
    known: bool
    lower: Array | None = None
    upper: Array | None = None
    error: Array | None = None
    confidence: float | None = None

    @staticmethod
    def of(explanation: Explanation) -> Arrays:
        single = explanation.values.ndim == 2

        def full(array: Any) -> Any:
            return None if array is None else array[..., None] if single else array

        values, base = full(explanation.values), full(explanation.base_values)
        known = explanation.outputs is not None
        return Arrays(
            values=values,
            base_values=base,
            prediction=full(explanation.outputs) if known else base + values.sum(axis=1),
            known=known,
            lower=full(explanation.lower_bounds),
            upper=full(explanation.upper_bounds),
            error=full(explanation.error_bound),
            confidence=explanation.confidence,
        )

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: slice | npt.NDArray[np.int64]) -> Arrays:
        lower, upper, error = (None if a is None else a[rows] for a in (self.lower, self.upper, self.error))
        return Arrays(
            self.values[rows], self.base_values[rows], self.prediction[rows], self.known, lower, upper, error,
            self.confidence,
        )  # fmt: skip

    def order(self) -> npt.NDArray[np.int64]:
        """Players from the strongest to the weakest, (rows, players, outputs)."""
        return np.argsort(-np.abs(self.values), axis=1, kind="stable")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request wants to know of its rows."""

    top: int = 3
    output: int | None = None
    """Whose reasons are given; by default the highest output's."""


def explanations(
    names: Names, arrays: Arrays, cells: Sequence[Sequence[Any] | None], wishes: Sequence[Wish]
) -> list[dict[str, Any]]:
    """One JSON object a row; `cells` are the values of its columns, `wishes` what its request asked for."""
    values = arrays.values.transpose(0, 2, 1).tolist()
    order = arrays.order().transpose(0, 2, 1).tolist()
    prediction, base = arrays.prediction.tolist(), arrays.base_values.tolist()
    bounds = errors = None
    if arrays.lower is not None and arrays.upper is not None:
        bounds = np.stack([arrays.lower, arrays.upper], axis=-1).transpose(0, 2, 1, 3).tolist()
        errors = None if arrays.error is None else arrays.error.tolist()
    players, outputs = names.players, names.outputs
    called = players.__getitem__
    found = []
    for i, wish in enumerate(wishes):
        reasons: list[dict[str, Any]] = []
        if wish.top:
            k = _about(prediction[i], wish)
            speaker = _speaker(None if len(outputs) == 1 else outputs[k], arrays.confidence)
            bands = None if bounds is None else bounds[i][k]
            reasons = [
                {
                    "feature": reason.feature,
                    "value": reason.value,  # NaN becomes null
                    "contribution": reason.attribution,
                    "certain": reason.certain,
                    "text": speaker._sentence(reason),
                }
                for reason in strongest(names, values[i][k], order[i][k], bands, cells[i], wish.top)
            ]
        attributions = values[i] if names.image else [dict(zip(players, row, strict=True)) for row in values[i]]
        found.append(
            {
                "prediction": dict(zip(outputs, prediction[i], strict=True)),
                "base_values": dict(zip(outputs, base[i], strict=True)),
                "attributions": dict(zip(outputs, attributions, strict=True)),
                "ranking": dict(zip(outputs, [list(map(called, row)) for row in order[i]], strict=True)),
                "bounds": None
                if bounds is None
                else dict(zip(outputs, [dict(zip(players, row, strict=True)) for row in bounds[i]], strict=True)),
                "error_bound": None if errors is None else dict(zip(outputs, errors[i], strict=True)),
                "confidence": arrays.confidence,
                "outputs_known": arrays.known,
                "reasons": reasons,
            }
        )
    return found


def _about(prediction: Sequence[float], wish: Wish) -> int:
    """The output whose reasons are given."""
    if wish.output is not None:
        return wish.output
    return 0 if len(prediction) == 1 else max(range(len(prediction)), key=prediction.__getitem__)


@lru_cache(maxsize=1_024)
def _speaker(output: str | None, confidence: float | None) -> ReasonCodes:
    """Reason codes of no rows: they know how reasons are said."""
    return find_reasons(np.zeros((0, 0)), (), output=output, confidence=confidence)


def strongest(
    names: Names,
    values: Sequence[float],
    order: Sequence[int],
    bands: Sequence[tuple[float, float]] | None,
    cells: Sequence[Any] | None,
    k: int,
) -> list[Reason]:
    """The k strongest reasons of one row: what `Explanation.reason_codes` gives.

    That one works on arrays of many rows, which for the few rows of a request takes several times as long as the
    explanation itself; these are the same rules in plain numbers, and a test holds the two together.
    """
    least_present = ROUNDING * abs(values[order[0]]) if order else 0.0
    if bands is None:
        low = high = [abs(value) for value in values]
    else:
        low = [lower if lower > 0 else -upper if upper < 0 else 0.0 for lower, upper in bands]
        high = [upper if upper > -lower else -lower for lower, upper in bands]
    reasons, called = [], names.players.__getitem__
    for place, j in enumerate(order[:k]):
        value = values[j]
        if not abs(value) > least_present:
            break
        # Others are tied unless the bands keep them on their side; what is known to be zero is never a reason.
        own_low, own_high = low[j], high[j]
        tied = [other for other in order[:place] if not low[other] > own_high]
        tied += [other for other in order[place + 1 :] if not high[other] < own_low and high[other] != 0]
        tied.sort()
        lower, upper = (None, None) if bands is None else bands[j]
        certain = None
        if lower is not None and upper is not None:
            certain = not tied and (lower > 0 if value > 0 else upper < 0)
        column = names.columns[j]
        cell = None if column is None or cells is None else cells[column]
        if cell is None and column is not None and cells is not None:
            cell = math.nan  # missing, which is not the same as having no single value
        reasons.append(
            Reason(
                place + 1, names.players[j], cell, value, "up" if value > 0 else "down", lower, upper, certain,
                tuple(map(called, tied)),
            )
        )  # fmt: skip
    return reasons
