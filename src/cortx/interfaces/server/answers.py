"""Attributions as JSON: what ``/explain`` and ``:explain`` answer.

Answers are written as text, not as objects: everything but the numbers is the same in each, so it is written once,
and all numbers of a batch become text in one call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from cortx.explanation import Explanation, strongest_first
from cortx.reasons import ROUNDING, Reason, ReasonCodes, find_reasons, magnitude_band

Array = npt.NDArray[np.float64]
HOLE = "\0"
"""Where something belongs in a form; no JSON has this character in it."""
LITERALS = {None: "null", False: "false", True: "true"}


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
    ranking: npt.NDArray[np.integer[Any]]  # (rows, players, outputs), from the highest value to the lowest
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
            ranking=full(explanation.ranking),
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
            self.values[rows], self.base_values[rows], self.prediction[rows], self.ranking[rows], self.known, lower,
            upper, error, self.confidence,
        )  # fmt: skip

    def order_by_magnitude(self) -> npt.NDArray[np.integer[Any]]:
        """Players from the strongest to the weakest, (rows, players, outputs)."""
        return strongest_first(self.values)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request wants to know of its rows."""

    top: int = 3
    output: int | None = None
    """Whose reasons are given; by default the highest output's."""


def explanations(
    names: Names, arrays: Arrays, cells: Sequence[Sequence[Any] | None], wishes: Sequence[Wish]
) -> list[orjson.Fragment]:
    """One JSON object a row; `cells` are the values of its columns, `wishes` what its request asked for."""
    values = arrays.values.transpose(0, 2, 1)  # (rows, outputs, players)
    order = arrays.order_by_magnitude().transpose(0, 2, 1)
    ranking = arrays.ranking.transpose(0, 2, 1).tolist()
    n_rows, n_outputs, n_players = values.shape
    bounds = None
    parts = [arrays.prediction, arrays.base_values, values.reshape(n_rows, -1)]
    if arrays.lower is not None and arrays.upper is not None:
        bounds = np.empty((*values.shape, 2))
        bounds[..., 0], bounds[..., 1] = arrays.lower.transpose(0, 2, 1), arrays.upper.transpose(0, 2, 1)
        parts.append(bounds.reshape(n_rows, -1))
        if arrays.error is not None:
            parts.append(arrays.error)
    numbers = np.ascontiguousarray(np.concatenate(parts, axis=1, dtype=np.float64))  # orjson takes no other order
    lines = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)[2:-2].decode("ascii").split("],[")
    form = _form(names, bounds is not None, arrays.error is not None, arrays.confidence, arrays.known)
    written = _written(names.players)
    reasons = _Reasons(names, arrays.prediction, values, order, bounds, arrays.confidence, wishes)
    first, after = 2 * n_outputs, (2 + n_players) * n_outputs  # of the attributions, and after them
    found = []
    for i, line in enumerate(lines):
        texts = line.split(",")
        orders = [",".join([written[j] for j in ranked]) for ranked in (*ranking[i], *reasons.order[i])]
        whole = form.copy()
        told = reasons.write(i, texts[first:after], cells[i])
        whole[1::2] = [*texts[:after], *orders, *texts[after:], told]
        found.append(orjson.Fragment("".join(whole)))
    return found


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


@lru_cache(maxsize=64)
def _written(players: tuple[str, ...]) -> list[str]:
    return [_text(name) for name in players]


@lru_cache(maxsize=64)
def _form(names: Names, bounds: bool, errors: bool, confidence: float | None, known: bool) -> list[str]:
    """An answer cut at its holes: numbers in the order of `explanations`, both orders after attributions, reasons."""

    def each(keys: Sequence[str], content: str) -> str:
        return "{" + ",".join(f"{_text(key)}:{content}" for key in keys) + "}"

    listed = "[" + ",".join([HOLE] * len(names.players)) + "]"
    fields = {
        "prediction": each(names.outputs, HOLE),
        "base_values": each(names.outputs, HOLE),
        "attributions": each(names.outputs, listed if names.image else each(names.players, HOLE)),
        "ranking": each(names.outputs, f"[{HOLE}]"),
        "order_by_magnitude": each(names.outputs, f"[{HOLE}]"),
        "bounds": each(names.outputs, each(names.players, f"[{HOLE},{HOLE}]")) if bounds else "null",
        "error_bound": each(names.outputs, HOLE) if bounds and errors else "null",
        "confidence": _text(confidence),
        "outputs_known": _text(known),
        "reasons": f"[{HOLE}]",
    }
    cut = ("{" + ",".join(f'"{key}":{content}' for key, content in fields.items()) + "}").split(HOLE)
    return [part for text in cut for part in (text, "")][:-1]


class _Reasons:
    """The strongest reasons of rows: what `Explanation.reason_codes` gives, for the few that a request asks for.

    That one makes objects of arrays of many rows; here the arrays are those of a batch, and a test holds the two
    together.
    """

    def __init__(
        self,
        names: Names,
        prediction: Array,
        values: Array,
        order: npt.NDArray[np.integer[Any]],
        bounds: Array | None,
        confidence: float | None,
        wishes: Sequence[Wish],
    ) -> None:
        self._names, self._wishes, self._confidence = names, wishes, confidence
        self._written = _written(names.players)
        self.order = order.tolist()  # (rows, outputs, players)
        if not any(wish.top for wish in wishes):
            return
        rows = np.arange(len(values))
        self._about = [0] * len(values)
        if len(names.outputs) > 1:
            highest = prediction.argmax(axis=1).tolist()
            self._about = [
                top if wish.output is None else wish.output for wish, top in zip(wishes, highest, strict=True)
            ]
        own, ranked = values[rows, self._about], order[rows, self._about]  # (rows, players)
        low = high = np.abs(own)
        self._bands = None
        if bounds is not None:
            bands = bounds[rows, self._about]
            low, high = magnitude_band(bands[..., 0], bands[..., 1])
            self._bands = bands.tolist()
        # By strength from here on. Nobody is tied with a player whose band is above those that follow, and below those
        # before it; otherwise somebody may be, and the row is looked through. What is known to be zero never counts.
        places = rows[:, None], ranked
        low, high = low[places], high[places]
        above, below = np.empty_like(low), np.empty_like(high)
        above[:, 0], below[:, -1] = np.inf, 0
        np.minimum.accumulate(low[:, :-1], axis=1, out=above[:, 1:])
        np.maximum.accumulate(high[:, :0:-1], axis=1, out=below[:, -2::-1])
        self._apart = ((above > high) & ((below < low) | (below == 0))).tolist()
        self._low, self._high, self._values = low.tolist(), high.tolist(), own.tolist()

    def write(self, i: int, texts: Sequence[str], cells: Sequence[Any] | None) -> str:
        """Row i's reasons as JSON, without the brackets; `texts` are its attributions, by output and player."""
        top = self._wishes[i].top
        if not top:
            return ""
        names, about, values = self._names, self._about[i], self._values[i]
        order, apart = self.order[i][about], self._apart[i]
        bands = None if self._bands is None else self._bands[i]
        speaker = _speaker(None if len(names.outputs) == 1 else names.outputs[about], self._confidence)
        least_present = ROUNDING * abs(values[order[0]])
        first = about * len(values)
        found = []
        for place, j in enumerate(order[:top]):
            value = values[j]
            if not abs(value) > least_present:
                break
            tied = () if apart[place] else self._tied(i, place, order)
            lower, upper = (None, None) if bands is None else bands[j]
            certain = None
            if lower is not None and upper is not None:
                certain = not tied and (lower > 0 if value > 0 else upper < 0)
            column = names.columns[j]
            cell = None if column is None or cells is None else cells[column]
            if cell is None and column is not None and cells is not None:
                cell = math.nan  # missing, which is not the same as having no single value; null in JSON
            reason = Reason(
                place + 1, names.players[j], cell, value, "up" if value > 0 else "down", lower, upper, certain, tied
            )
            found.append(
                f'{{"feature":{self._written[j]},"value":{_text(cell)},"contribution":{texts[first + j]},'
                f'"certain":{LITERALS[certain]},"text":{_text(speaker._sentence(reason))}}}'
            )
        return ",".join(found)

    def _tied(self, i: int, place: int, order: Sequence[int]) -> tuple[str, ...]:
        """Those whom the bands do not keep on their side of a player, in the order of players."""
        low, high = self._low[i], self._high[i]
        tied = [order[other] for other in range(place) if not low[other] > high[place]]
        tied += [
            order[other] for other in range(place + 1, len(order)) if not high[other] < low[place] and high[other] != 0
        ]
        return tuple(self._names.players[j] for j in sorted(tied))


@lru_cache(maxsize=1_024)
def _speaker(output: str | None, confidence: float | None) -> ReasonCodes:
    """Reason codes of no rows: they know how reasons are said."""
    return find_reasons(np.zeros((0, 0)), (), output=output, confidence=confidence)
