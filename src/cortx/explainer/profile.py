"""What the training table looked like, column by column, and where another table differs from it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.tables import Column, Matrix, Schema, Table

Array = npt.NDArray[np.float64]

N_QUANTILES = 21
LARGE = 0.1
"""A column that differs by less is never called drifted, however sure the difference is."""
ALARM_RISK = 0.01
"""The chance that tables of one and the same distribution are told apart in any of their columns."""
TESTS = 3
"""Ways in which a column may differ: its values as a whole, one of its categories, its missing share."""
NAMES_IN_TEXT = 3


@dataclass(frozen=True)
class Numbers:
    """A numeric column: at each quantile of the grid, the share of known values below it, and up to it."""

    name: str
    missing: float
    grid: tuple[float, ...]
    below: tuple[float, ...]
    up_to: tuple[float, ...]

    @property
    def median(self) -> float:
        return self.grid[int(np.searchsorted(self.up_to, 0.5))]


@dataclass(frozen=True)
class Categories:
    """A categorical column: the shares of all its known values, the most frequent first.

    None are joined to a rest: which ones are rare is itself chance, and would look like drift in the next table.
    """

    name: str
    missing: float
    values: tuple[Any, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Profile:
    """The columns of a table of so many rows."""

    rows: int
    columns: tuple[Numbers | Categories, ...]

    @property
    def ranges(self) -> Array:
        """(2, columns): the least and the most known value of each column, NaN for categories and empty columns."""
        ends = [
            (c.grid[0], c.grid[-1]) if isinstance(c, Numbers) and c.grid else (np.nan, np.nan) for c in self.columns
        ]
        return np.array(ends, dtype=np.float64).T

    def to_json(self) -> dict[str, Any]:
        kinds = {Numbers: "number", Categories: "category"}
        return {"rows": self.rows, "columns": [{"kind": kinds[type(c)], **asdict(c)} for c in self.columns]}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Profile:
        kinds: dict[str, Any] = {"number": Numbers, "category": Categories}
        columns = []
        for item in data["columns"]:
            settings = {key: tuple(value) if isinstance(value, list) else value for key, value in item.items()}
            columns.append(kinds[str(settings.pop("kind"))](**settings))
        return Profile(int(data["rows"]), tuple(columns))


@dataclass(frozen=True)
class ColumnDrift:
    """How far one column is from what it was, and what chance allows; all are shares."""

    column: str
    distance: float
    """Of the distribution functions (Kolmogorov), or of the shares of categories (total variation)."""
    allowed: float
    largest: float
    """The largest change of one category's share; zero for numbers."""
    largest_allowed: float
    missing_before: float
    missing: float
    missing_allowed: float
    words: str
    """What changed: medians, shares, values that training never saw."""

    @property
    def drifted(self) -> bool:
        """Clear, and large enough to matter."""
        pairs = (
            (self.distance, self.allowed),
            (self.largest, self.largest_allowed),
            (abs(self.missing - self.missing_before), self.missing_allowed),
        )
        return any(found > max(allowed, LARGE) for found, allowed in pairs)

    def __str__(self) -> str:
        by = "" if math.isinf(self.allowed) else f" (distance {self.distance:.2f}, chance allows {self.allowed:.2f})"
        return f"column {self.column!r}: {self.words or 'as in training'}{by}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: what chance allows without limit is null."""
        facts = asdict(self) | {"drifted": self.drifted}
        return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in facts.items()}


def profile_of(matrix: Matrix, schema: Schema) -> Profile:
    """The profile of encoded rows, (rows, columns)."""
    columns: list[Numbers | Categories] = []
    for j, column in enumerate(schema.columns):
        if column.categorical:
            counts = _count(matrix[:, j], column)
            ordered = sorted(counts, key=lambda value: (-counts[value], str(value)))
            present = max(1, counts.total())
            columns.append(
                Categories(
                    column.name,
                    1 - counts.total() / len(matrix),
                    tuple(value for _, value in ordered),
                    tuple(counts[value] / present for value in ordered),
                )
            )
        else:
            known = np.sort(matrix[~np.isnan(matrix[:, j]), j])
            # Quantiles that are values of the column, so that its ties and its ends are where they were.
            places = np.ceil(np.linspace(0, 1, N_QUANTILES) * len(known)).astype(np.int64) - 1
            grid = np.unique(known[np.maximum(places, 0)]) if len(known) else known
            below, up_to = _shares(known, grid)
            missing = 1 - len(known) / len(matrix)
            columns.append(
                Numbers(column.name, missing, *(tuple(part.tolist()) for part in (grid, below, up_to)))
            )  # fmt: skip
    return Profile(len(matrix), tuple(columns))


def drift(profile: Profile, table: Table) -> list[ColumnDrift]:
    """Compares a table, column by column, with the one that the profile is of."""
    risk = ALARM_RISK / (TESTS * len(profile.columns))
    found = []
    for j, known in enumerate(profile.columns):
        numbers, column = table.matrix[:, j], table.schema.columns[j]
        compare = _numbers_drift if isinstance(known, Numbers) else _categories_drift
        found.append(compare(known, numbers, column, profile.rows, risk))  # type: ignore[arg-type]
    return found


def _numbers_drift(known: Numbers, numbers: Array, column: Column, n_before: int, risk: float) -> ColumnDrift:
    del column
    present = np.sort(numbers[~np.isnan(numbers)])
    missing = 1 - len(present) / len(numbers)
    distance, allowed, words = 0.0, math.inf, []
    if len(present) and known.grid:
        grid = np.array(known.grid)
        below, up_to = _shares(present, grid)
        distance = float(max(np.abs(below - known.below).max(), np.abs(up_to - known.up_to).max()))
        # Dvoretzky-Kiefer-Wolfowitz for two samples; on a grid the distance is only smaller.
        allowed = _allowed(n_before * (1 - known.missing), len(present), 2 / risk)
        words.append(f"median {known.median:.4g} in training, {np.median(present):.4g} now")
        for share, side, end in ((below[0], "below", grid[0]), (1 - up_to[-1], "above", grid[-1])):
            if share > 0:
                words.append(f"{share:.1%} {side} {end:.4g}, the {'least' if side == 'below' else 'most'} in training")
    missing_words = _missing_words(known.missing, missing)
    return ColumnDrift(
        column=known.name,
        distance=distance,
        allowed=allowed,
        largest=0.0,
        largest_allowed=math.inf,
        missing_before=known.missing,
        missing=missing,
        missing_allowed=_allowed(n_before, len(numbers), 2 / risk),
        words="; ".join(words + missing_words),
    )


def _categories_drift(known: Categories, numbers: Array, column: Column, n_before: int, risk: float) -> ColumnDrift:
    counts = _count(numbers, column)
    count = counts.total()
    missing = 1 - count / len(numbers)
    before = {_key(value): share for value, share in zip(known.values, known.shares, strict=True)}
    new = [value for value, _ in counts.most_common() if value not in before]
    distance, allowed, largest, largest_allowed, words = 0.0, math.inf, 0.0, math.inf, []
    if count and before:
        n_known = n_before * (1 - known.missing)
        every = [*before, *new]
        old = np.array([before.get(value, 0.0) for value in every])
        now = np.array([counts[value] / count for value in every])
        distance = float(np.abs(now - old).sum() / 2)
        # Its mean (each share's standard deviation) plus what McDiarmid allows beyond.
        pooled = (n_known * old + count * now) / (n_known + count)
        usual = 0.5 * np.sqrt(pooled * (1 - pooled) * (1 / n_known + 1 / count)).sum()
        allowed = float(usual) + _allowed(n_known, count, 1 / risk)
        share_new = float(now[len(before) :].sum())
        changes = np.abs(now - old)[: len(before)]
        # Values seen once in training foretell how many are still to come (Good and Turing).
        unseen = float(old[old * n_known < 1.5].sum())
        largest = max(float(changes.max()), share_new - unseen)
        largest_allowed = _allowed(n_known, count, 2 * (len(before) + 1) / risk)
        most = int(changes.argmax())
        words.append(f"{_text(every[most])} was {old[most]:.1%}, now {now[most]:.1%}")
        if new:
            names = ", ".join(map(_text, new[:NAMES_IN_TEXT])) + (", ..." if len(new) > NAMES_IN_TEXT else "")
            words.append(f"{share_new:.1%} are new to it: {names}")
    return ColumnDrift(
        column=known.name,
        distance=distance,
        allowed=allowed,
        largest=largest,
        largest_allowed=largest_allowed,
        missing_before=known.missing,
        missing=missing,
        missing_allowed=_allowed(n_before, len(numbers), 2 / risk),
        words="; ".join(words + _missing_words(known.missing, missing)),
    )


def _allowed(n: float, m: float, odds: float) -> float:
    """The difference of two samples' shares that chance exceeds once in `odds` (Hoeffding)."""
    return math.inf if min(n, m) < 0.5 else math.sqrt(math.log(odds) / 2 * (1 / n + 1 / m))


def _shares(ordered: Array, grid: Array) -> tuple[Array, Array]:
    """The shares of sorted numbers below, and up to, each of a grid's."""
    count = max(1, len(ordered))
    below, up_to = (np.searchsorted(ordered, grid, side=side) / count for side in ("left", "right"))
    return np.asarray(below), np.asarray(up_to)


def _count(numbers: Array, column: Column) -> Counter[tuple[str, Any]]:
    """How often each category occurs, by its kind and value, because True, 1 and "1" are three; missing ones aside."""
    found, counts = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
    keys = (_key(column.values[int(number)] if column.coded else number) for number in found)
    counted = Counter(dict(zip(keys, counts.tolist(), strict=True)))
    counted.pop(_key(None), None)
    return counted


def _key(value: Any) -> tuple[str, Any]:
    value = value.item() if isinstance(value, np.generic) else value
    return type(value).__name__, value


def _text(key: tuple[str, Any]) -> str:
    return f"{key[1]:g}" if isinstance(key[1], float) else repr(key[1])


def _missing_words(before: float, now: float) -> list[str]:
    return [f"missing in {before:.1%} of training, {now:.1%} now"] if before != now else []
