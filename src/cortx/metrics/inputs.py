"""What every metric accepts, checked once: `Explanation`s, or arrays of values."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explanation import Explanation

Array = npt.NDArray[np.float64]
Attributions = Explanation | npt.ArrayLike
"""An `Explanation`, or its values: (rows, players) or (rows, players, outputs)."""


def as_explanation(attributions: Attributions, what: str) -> Explanation:
    """Gives an array of values the names ``0, 1, ...``, so that orders and ties have one rule for both kinds."""
    if isinstance(attributions, Explanation):
        explanation = attributions
    else:
        try:
            values = np.asarray(attributions, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{what} must be an Explanation or an array of numbers, got {attributions!r:.80}"
            ) from error
        if values.ndim not in (2, 3):
            raise InputError(
                f"{what} must have shape (rows, players) or (rows, players, outputs), got {values.shape}; "
                "one row is values[None, :]"
            )
        base_values = np.zeros(values.shape[:1] + values.shape[2:])
        explanation = Explanation(values, base_values, tuple(str(j) for j in range(values.shape[1])))
    if explanation.values.shape[1] == 0:
        raise InputError(f"{what} has no players, shape {explanation.shape}; give at least one")
    return explanation


def as_pair(
    predicted: Attributions, truth: Attributions, called: tuple[str, str] = ("predicted", "truth")
) -> tuple[Explanation, Explanation]:
    """Two explanations of the same rows, players and outputs; `called` is what errors call them."""
    first, second = as_explanation(predicted, called[0]), as_explanation(truth, called[1])
    if first.shape != second.shape:
        raise InputError(
            f"{called[0]} has shape {first.shape} but {called[1]} has {second.shape}; "
            f"both must be about the same {_first_difference(first.shape, second.shape)}"
        )
    if isinstance(predicted, Explanation) and isinstance(truth, Explanation):
        _check_names("players", first.feature_names, second.feature_names, called)
        if first.output_names is not None and second.output_names is not None:
            _check_names("outputs", first.output_names, second.output_names, called)
    return first, second


def finite_values(explanation: Explanation, what: str) -> Array:
    """The values as float64, refused if any is NaN or infinite."""
    values = np.asarray(explanation.values, dtype=np.float64)
    bad = np.asarray(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if bad.any():
        raise InputError(
            f"{what} has values that are NaN or infinite in {int(bad.sum())} of {len(bad)} rows, "
            f"first in row {int(np.argmax(bad))}; leave these rows out of both"
        )
    return values


def ratio(numerator: Array, denominator: Array, undefined: float) -> Array:
    """The quotient of arrays that broadcast together, and `undefined` where the denominator is zero."""
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    result = np.full(shape, undefined, dtype=np.float64)
    np.divide(numerator, denominator, out=result, where=denominator != 0)
    return result


def _first_difference(first: tuple[int, ...], second: tuple[int, ...]) -> str:
    if first[0] != second[0]:
        return "rows"
    return "players" if first[1] != second[1] else "outputs"


def _check_names(kind: str, first: tuple[str, ...], second: tuple[str, ...], called: tuple[str, str]) -> None:
    if first == second:
        return
    position = next(j for j, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    how = "the same, in another order" if sorted(first) == sorted(second) else "not the same"
    raise InputError(
        f"the {kind} of {called[0]} and {called[1]} are {how}: number {position} is {first[position]!r} and "
        f"{second[position]!r}; bring them into one order, or give .values to compare by position"
    )
