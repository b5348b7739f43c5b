"""What values are possible at all: a coalition's probability lies between 0 and 1, so no player adds more than one.

Without torch, and for NumPy arrays and torch tensors alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
HALVINGS = 64
"""Steps of the search for the shift: more than a float64 has digits."""


def largest_value(output: str) -> float | None:
    """The largest magnitude that a Shapley value of this kind of output can have; None where there is no limit."""
    return 1.0 if output == "probability" else None


def possible_outputs(outputs: Any, output: str) -> Any:
    """Guessed outputs, cut to what this kind of output can be."""
    return outputs.clip(0.0, 1.0) if output == "probability" else outputs


def possible_values(values: Any, total: Any, most: float | None) -> Any:
    """The nearest values (least squares) within -most..most that have the same total and the same zeros.

    values (rows, players, outputs), which add up to total (rows, outputs). Where all are possible they stay as they are
    to the last bit. A total beyond `most`, which no model of this kind gives, widens the range to itself.
    """
    if most is None:
        return values
    limit = _limit(total, most)
    wrong = (abs(values) > limit[:, None, :]).any(1)  # (rows, outputs)
    if not bool(wrong.any()):
        return values
    values = values * 1
    by_output = values.swapaxes(1, 2)  # a view, (rows, outputs, players)
    free = ((values != 0).any(2)[:, None, :] & wrong[:, :, None])[wrong]  # who may have a value, (wrong ones, players)
    by_output[wrong] = _projected(by_output[wrong], total[wrong][:, None], limit[wrong][:, None], free)
    return values


def _limit(total: Any, most: float) -> Any:
    return abs(total).clip(most)


def _projected(values: Any, total: Any, limit: Any, free: Any) -> Any:
    """clip(values - shift) with the shift that keeps the total, (n, players); the sum falls with the shift."""
    step = float(abs(values).max()) + float(limit.max())
    shift = total * 0.0
    for _ in range(HALVINGS):
        above = ((values - shift).clip(-limit, limit) * free).sum(1, keepdims=True) > total
        shift = shift + step * (above * 2.0 - 1.0)
        step /= 2
    return (values - shift).clip(-limit, limit) * free


def possible_bounds(
    lower: Array, upper: Array, error: Array, values: Array, total: Array, most: float | None
) -> tuple[Array, Array, Array]:
    """Bounds cut to what is possible: bands (rows, players, outputs) around `values`, and a row's l2 error.

    No possible values are farther away than those at the far ends of the range.
    """
    if most is None:
        return lower, upper, error
    limit = _limit(total, most)
    wide = limit[:, None, :]
    lower, upper = np.minimum(lower.clip(-wide, wide), values), np.maximum(upper.clip(-wide, wide), values)
    free = (values != 0).any(axis=2, keepdims=True)
    farthest = np.sqrt((np.square(wide + np.abs(values)) * free).sum(axis=1))
    return lower, upper, np.minimum(error, farthest)
