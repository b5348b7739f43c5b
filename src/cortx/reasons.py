"""Reason codes: the strongest reasons of each row, in words, frames or JSON, and which order bands make certain."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]
Direction = Literal["both", "up", "down"]

CELLS_AT_A_TIME = 2**22
ROWS_IN_STR = 5
NAMES_IN_TEXT = 3
LONGEST_VALUE = 60
ROUNDING = 1e-12
"""The share of a row's strongest attribution below which there is nothing but float rounding."""


# What bands say about an order ------------------------------------------------------------------------------


def magnitude_band(lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The band of |x| where x lies between `lower` and `upper`, of their shape."""
    return np.maximum(np.maximum(lower, -upper), 0), np.maximum(-lower, upper)


def certain_places(order: IntArray, lower: FloatArray, upper: FloatArray) -> BoolArray:
    """Where a descending order must hold: all before lie above, all after lie below; shapes (rows, players, ...).

    Bands that are one and the same point are an exact tie, which has no other order to be in.
    """
    lower, upper = np.take_along_axis(lower, order, 1), np.take_along_axis(upper, order, 1)
    point = lower == upper
    # Points and wider bands keep running ends of their own, because only two points may touch.
    lowest_point = np.minimum.accumulate(np.where(point, lower, np.inf), axis=1)[:, :-1]
    lowest_wide = np.minimum.accumulate(np.where(point, np.inf, lower), axis=1)[:, :-1]
    highest_point = np.maximum.accumulate(np.where(point, upper, -np.inf)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    highest_wide = np.maximum.accumulate(np.where(point, -np.inf, upper)[:, ::-1], axis=1)[:, ::-1][:, 1:]
    certain = np.ones(lower.shape, dtype=bool)
    later, sooner = np.s_[:, 1:], np.s_[:, :-1]
    touching = point[later] & (lowest_point == upper[later])
    certain[later] &= (lowest_wide > upper[later]) & ((lowest_point > upper[later]) | touching)
    touching = point[sooner] & (highest_point == lower[sooner])
    certain[sooner] &= (highest_wide < lower[sooner]) & ((highest_point < lower[sooner]) | touching)
    return certain


# Reasons ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reason:
    """One feature that moves one row's output, and how sure that is."""

    rank: int
    feature: str
    value: Any
    """What the row holds: NaN where that is missing, None where there is no single value (a group of columns)."""
    attribution: float
    direction: Literal["up", "down"]
    lower: float | None
    upper: float | None
    certain: bool | None
    """True when the bands settle its sign and its place among the features that may be named; None without bands."""
    tied_with: tuple[str, ...]
    """Features that may stand on its other side; without bands, those of exactly equal strength."""


@dataclass(frozen=True, eq=False, repr=False)
class ReasonCodes:
    """The k strongest reasons of each row; index by row for its list of `Reason`s.

    It holds nothing of the excluded features. Shapes: ``values``, ``lower`` and ``upper`` (rows, named features).
    """

    feature_names: tuple[str, ...]
    positions: IntArray
    """Where ``feature_names`` stand among the explanation's players."""
    values: FloatArray
    lower: FloatArray | None
    upper: FloatArray | None
    cells: tuple[Any, ...]
    """For each name the rows' column, an array or a narwhals Series; None where there is no single one."""
    k: int
    direction: Direction
    confidence: float | None
    output: str | int | None
    """The name of one of several outputs, or its position where they have no names."""
    backend: Any
    index: Any
    """The labels of pandas rows."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> list[Reason]:
        position = operator.index(row)
        if not -len(self) <= position < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._reasons(np.array([position % len(self)]))[0]

    def __iter__(self) -> Iterator[list[Reason]]:
        for rows in self._blocks():
            yield from self._reasons(rows)

    def __repr__(self) -> str:
        return f"ReasonCodes({len(self)} rows, k={self.k}, direction={self.direction!r})"

    def __str__(self) -> str:
        parts = [f"row {row}\n{self.text(row)}" for row in range(min(len(self), ROWS_IN_STR))]
        if len(self) > ROWS_IN_STR:
            parts.append(f"... and {len(self) - ROWS_IN_STR:,} more rows")
        return "\n".join(parts) if parts else "no rows"

    @cached_property
    def players(self) -> IntArray:
        """Positions among the explanation's players, strongest first, (rows, at most k); -1 where there are fewer."""
        return np.where(self._present, np.append(self.positions, -1)[self._order], -1)

    @cached_property
    def certain(self) -> BoolArray | None:
        """`Reason.certain` of all, shaped like `players` (False where that is -1); None without bands."""
        if self.lower is None:
            return None
        return np.concatenate([self._certain(rows, self._tied(rows)) for rows in self._blocks()])

    def text(self, row: int) -> str:
        """One row's reasons as numbered lines."""
        reasons = self[row]
        if not reasons:
            verb = {"both": "moves", "up": "raises", "down": "lowers"}[self.direction]
            return f"none of the {len(self.feature_names)} features considered {verb} {self._what()}"
        return "\n".join(f"{reason.rank}. {self._sentence(reason)}" for reason in reasons)

    def to_frame(self) -> Any:
        """A long frame of the kind the rows came in (pandas otherwise), one line a reason.

        `value` is text as `text` prints it, because one column holds the values of all features.
        """
        names = np.array(self.feature_names, dtype=object)
        rows, places = np.nonzero(self._present)
        features = self._order[rows, places]
        attributions = self.values[rows, features]
        tied = [one for block in self._blocks() for one in self._tied_names(self._tied(block)[self._present[block]])]
        certain = None if self.certain is None else self.certain[rows, places]
        columns: dict[str, Any] = {
            "row": rows,
            "rank": places + 1,
            "feature": names[features],
            "value": _objects(map(value_text, self._values_at(rows, features))),
            "attribution": attributions.astype(np.float64),
            "direction": np.where(attributions > 0, "up", "down").astype(object),
        }
        if self.lower is not None and self.upper is not None:
            columns["lower"] = self.lower[rows, features].astype(np.float64)
            columns["upper"] = self.upper[rows, features].astype(np.float64)
        columns["certain"] = _objects([None] * len(rows)) if certain is None else certain
        columns["tied_with"] = _objects(", ".join(one) for one in tied)
        return self._build(columns)

    def to_json(self) -> str:
        """A list with one object a row, in strict JSON: what is missing or not finite is null."""
        whole = []
        for row, reasons in enumerate(self):
            listed = [{key: _json_value(value) for key, value in vars(reason).items()} for reason in reasons]
            whole.append({"row": row, "output": self.output, "confidence": self.confidence, "reasons": listed})
        return json.dumps(whole, allow_nan=False)

    # Arrays ---------------------------------------------------------------------------------------------------

    def _strength(self, values: FloatArray) -> FloatArray:
        if self.direction == "both":
            return np.abs(values)
        return np.maximum(values if self.direction == "up" else -values, 0)

    def _strength_band(self, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bands of the strengths of some rows, (rows, features); without bands the strengths themselves."""
        if self.lower is None or self.upper is None:
            strength = self._strength(self.values[rows])
            return strength, strength
        lower, upper = self.lower[rows], self.upper[rows]
        if self.direction == "both":
            return magnitude_band(lower, upper)
        if self.direction == "down":
            lower, upper = -upper, -lower
        return np.maximum(lower, 0), np.maximum(upper, 0)

    @cached_property
    def _order(self) -> IntArray:
        """The strongest features, (rows, at most k); exact ties by column."""
        return np.argsort(-self._strength(self.values), axis=1, kind="stable")[:, : self.k]

    @cached_property
    def _present(self) -> BoolArray:
        """Which of `_order` are reasons, (rows, at most k): zero moves nothing, nor does what rounding leaves of it."""
        rounding = ROUNDING * np.abs(self.values).max(axis=1, keepdims=True, initial=0.0)
        strongest: BoolArray = np.take_along_axis(self._strength(self.values), self._order, 1) > rounding
        return strongest

    def _blocks(self) -> Iterator[IntArray]:
        size = max(1, CELLS_AT_A_TIME // max(1, self._order.shape[1] * len(self.feature_names)))
        for start in range(0, max(1, len(self)), size):
            yield np.arange(start, min(start + size, len(self)))

    def _tied(self, rows: IntArray) -> BoolArray:
        """Which features (last axis) the bands do not keep on their side of a reason, (rows, k, features)."""
        order = self._order[rows]
        column = np.arange(len(self.feature_names))
        lower, upper = self._strength_band(rows)
        strength = self._strength(self.values[rows])
        own = np.take_along_axis(strength, order, 1)[:, :, None]
        strength = strength[:, None]
        before = (strength > own) | ((strength == own) & (column < order[:, :, None]))
        own_lower, own_upper = (np.take_along_axis(end, order, 1)[:, :, None] for end in (lower, upper))
        apart = np.where(before, lower[:, None] > own_upper, upper[:, None] < own_lower)
        # What is known to be zero is never a reason, so nothing can change places with it.
        apart |= (column == order[:, :, None]) | (upper[:, None] == 0)
        return ~apart & self._present[rows][:, :, None]

    def _certain(self, rows: IntArray, tied: BoolArray) -> BoolArray:
        assert self.lower is not None
        assert self.upper is not None
        order = self._order[rows]
        value, lower, upper = (np.take_along_axis(a[rows], order, 1) for a in (self.values, self.lower, self.upper))
        one_sign = np.where(value > 0, lower > 0, upper < 0)
        return self._present[rows] & one_sign & ~tied.any(axis=2)

    # Objects and words ----------------------------------------------------------------------------------------

    def _values_at(self, rows: IntArray, features: IntArray) -> list[Any]:
        """The data at pairs of row and feature, in plain Python types."""
        found: list[Any] = [None] * len(rows)
        for j in np.unique(features):
            column, pairs = self.cells[j], np.flatnonzero(features == j)
            if column is not None:
                some = column[rows[pairs]]
                listed = some.tolist() if isinstance(some, np.ndarray) else some.to_list()
                for pair, value in zip(pairs, listed, strict=True):
                    found[pair] = math.nan if _is_missing(value) else value
        return found

    def _reasons(self, rows: IntArray) -> list[list[Reason]]:
        present, tied = self._present[rows], self._tied(rows)
        some, places = np.nonzero(present)
        features = self._order[rows[some], places]
        nothing = [None] * len(some)

        def listed(array: FloatArray | None) -> list[Any]:
            return nothing if array is None else array[rows[some], features].tolist()

        columns = zip(
            (places + 1).tolist(),
            (self.feature_names[j] for j in features),
            self._values_at(rows[some], features),
            listed(self.values),
            ("up" if up else "down" for up in self.values[rows[some], features] > 0),
            listed(self.lower),
            listed(self.upper),
            nothing if self.lower is None else self._certain(rows, tied)[present].tolist(),
            self._tied_names(tied[present]),
            strict=True,
        )
        reasons: list[list[Reason]] = [[] for _ in rows]
        for i, fields in zip(some.tolist(), columns, strict=True):
            reasons[i].append(Reason(*fields))
        return reasons

    def _tied_names(self, tied: BoolArray) -> list[tuple[str, ...]]:
        """The names behind flags, (reasons, features)."""
        names: list[tuple[str, ...]] = [()] * len(tied)
        for i in np.flatnonzero(tied.any(axis=1)):
            names[i] = tuple(self.feature_names[other] for other in np.flatnonzero(tied[i]))
        return names

    def _what(self) -> str:
        if isinstance(self.output, int):
            return f"output {self.output}"
        return "the output" if self.output is None else f"the output for {_one_line(self.output)}"

    def _sentence(self, reason: Reason) -> str:
        value = value_text(reason.value)
        subject = _one_line(reason.feature) + ("" if value is None else f" = {value}")
        verb = "raises" if reason.direction == "up" else "lowers"
        line = f"{subject} {verb} {self._what()} by {number_text(abs(reason.attribution), 3)}"
        if reason.lower is not None and reason.upper is not None:
            line += f" ({self._certainty(reason.lower, reason.upper, reason)})"
        if reason.tied_with:
            shown = [_one_line(name) for name in reason.tied_with[:NAMES_IN_TEXT]]
            if len(reason.tied_with) > NAMES_IN_TEXT:
                shown.append(f"{len(reason.tied_with) - NAMES_IN_TEXT} more")
            names = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
            line += f"; as strong as {names}" if reason.certain is None else f"; could change places with {names}"
        return line

    def _certainty(self, lower: float, upper: float, reason: Reason) -> str:
        level = "" if self.confidence is None else f" at {100 * self.confidence:.4g}%"
        if math.isnan(lower) or math.isnan(upper):
            return "how far is not known"
        least, most = (lower, upper) if reason.direction == "up" else (-upper, -lower)
        if least > 0 and lower == upper:
            return "exact"
        if least > 0:
            ends = f"between {number_text(least, 3)} and {number_text(most, 3)}"
            return f"{ends}, certain{level}" if reason.certain else f"{ends}{level}"
        opposite = "lower" if reason.direction == "up" else "raise"
        doubt = f"could also {opposite} it" if least < 0 else "could also do nothing"
        return f"from {number_text(lower, 3)} to {number_text(upper, 3)}{level}, so it {doubt}"

    def _build(self, columns: dict[str, Any]) -> Any:
        import narwhals as nw

        backend = usable_backend("to_frame()") if self.backend is None else self.backend
        if backend.is_pandas():
            frame = nw.from_dict(columns, backend=backend).to_native()
            if self.index is not None:
                frame.index = self.index[columns["row"]]
            return frame
        # Without it a column of which all is missing, or an empty one, has no type.
        numbers = dict.fromkeys(("attribution", "lower", "upper"), nw.Float64)
        types: dict[str, Any] = {"row": nw.Int64, "rank": nw.Int64, **numbers, "certain": nw.Boolean}
        schema = {name: types.get(name, nw.String) for name in columns}
        return nw.from_dict({name: c.tolist() for name, c in columns.items()}, schema, backend=backend).to_native()


def find_reasons(
    values: FloatArray,
    feature_names: Sequence[str],
    *,
    data: Any = None,
    bands: tuple[FloatArray, FloatArray] | None = None,
    confidence: float | None = None,
    output: str | int | None = None,
    k: int = 4,
    exclude: Iterable[str] = (),
    direction: Direction = "both",
) -> ReasonCodes:
    """The reason codes of one output's attributions, (rows, players); see `Explanation.reason_codes`."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    if direction not in ("both", "up", "down"):
        raise InputError(f"direction must be 'both', 'up' or 'down', got {direction!r}")
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values).all(axis=1)))
        raise InputError(f"row {row} has values that are NaN or infinite; leave such rows out")
    hidden = {exclude} if isinstance(exclude, str) else set(exclude)
    unknown = sorted(map(repr, hidden - set(feature_names)))
    if unknown:
        raise InputError(f"exclude names unknown features: {', '.join(unknown)}; they are {', '.join(feature_names)}")
    allowed = np.array([j for j, name in enumerate(feature_names) if name not in hidden], dtype=np.int64)
    cells = player_columns(data, feature_names)
    index = getattr(data, "index", None) if hasattr(data, "iloc") else None
    if index is not None and hidden & set(map(str, index.names)):
        index = None  # labels may bear an excluded name, and then they are its values
    return ReasonCodes(
        feature_names=tuple(feature_names[j] for j in allowed),
        positions=allowed,
        values=values[:, allowed],
        lower=None if bands is None else bands[0][:, allowed],
        upper=None if bands is None else bands[1][:, allowed],
        cells=tuple(cells[j] for j in allowed),
        k=int(k),
        direction=direction,
        confidence=confidence,
        output=output,
        backend=backend_of(data),
        index=index,
    )


# Tables -----------------------------------------------------------------------------------------------------


def backend_of(data: Any) -> Any:
    """The narwhals implementation of a frame; None of an array or of nothing."""
    if data is None or isinstance(data, np.ndarray):
        return None
    import narwhals as nw

    return nw.from_native(data, eager_only=True).implementation


def usable_backend(why: str) -> Any:
    """The first frame library that is installed, as a narwhals implementation."""
    import narwhals as nw

    for name in ("pandas", "polars", "pyarrow"):
        try:
            __import__(name)
        except ImportError:
            continue
        return nw.Implementation.from_backend(name)
    raise need("pandas (or polars, or pyarrow)", why, "tables")


def player_columns(data: Any, names: Sequence[str]) -> list[Any]:
    """For each player its column, an array or a narwhals Series; None where it is not one column."""
    nothing: list[Any] = [None] * len(names)
    if data is None:
        return nothing
    if isinstance(data, np.ndarray):
        return list(data.T) if data.ndim == 2 and data.shape[1] == len(names) else nothing
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    labels = {str(column): column for column in frame.columns}
    if len(labels) == len(names) and not any(name in labels for name in names):
        return [frame.get_column(label) for label in labels.values()]  # unnamed players go by position
    return [frame.get_column(labels[name]) if name in labels else None for name in names]


# Words ------------------------------------------------------------------------------------------------------


def value_text(value: Any) -> str | None:
    """A row's value in words, "missing" for NaN; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return "missing" if math.isnan(value) else number_text(value, 4)
    line = _one_line(value)
    return line if len(line) <= LONGEST_VALUE else line[: LONGEST_VALUE - 1] + "…"


def number_text(value: float, digits: int) -> str:
    """At most so many significant digits, but the whole part in full: 48,213 rounded would be another number."""
    if 10 ** (digits - 1) <= abs(value) < 10**15 or value == 0:
        return f"{value + 0.0:.0f}"
    return f"{value:.{digits}g}"


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas.NA is neither true nor false
        return True


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str, tuple)) else str(value)


def _objects(items: Iterable[Any]) -> npt.NDArray[np.object_]:
    listed = list(items)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array
