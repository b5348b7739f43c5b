"""JSON records to encoded rows and back, without a frame: checked against an artifact's own columns.

A refusal names the record, the column and the reason, never the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.images import ImageSchema
from cortx.interfaces.server.http import HttpError, kind_of
from cortx.tables import WHOLE_UP_TO, Column, Schema, Table

Matrix = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.float32]
SHOWN = 8
"""Categories that a refusal lists."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one request: encoded, and as they came.

    `numbers` are lists of (columns,) with the codes of the artifact's schema, which become one matrix when batches are
    joined, or images (rows, *shape); `cells` holds the JSON values by column; `news` the categories that the schema
    does not know, by column, in the order of their codes.
    """

    numbers: Any
    cells: list[Sequence[Any]] | None = None
    news: dict[int, list[Any]] | None = None

    def __len__(self) -> int:
        return len(self.numbers)


class ColumnReader:
    """One column: which JSON values it takes, and their codes."""

    def __init__(self, column: Column, known: frozenset[float], may_miss: bool, unseen: str) -> None:
        self.column, self.known, self.may_miss = column, known, may_miss
        self.name, self.ignores = column.name, unseen == "ignore"
        fixed = getattr(column.dtype, "categories", None)
        self.possible = None if fixed is None else frozenset(map(str, fixed))
        """Of a dtype that lists its categories: no others can be given to the model."""
        self.whole = "int" in str(column.dtype).lower()
        self.boolean = not column.coded and "bool" in str(column.dtype).lower()
        # Numbers that need no look at their value; text that has a code.
        self.free = not column.categorical and not column.coded and not self.whole
        allowed = {code: value for code, value in enumerate(column.values) if code in known and value is not None}
        self.codes = {value: float(code) for code, value in allowed.items() if isinstance(value, str)}
        self.others = {
            (type(value), value): float(code) for code, value in allowed.items() if not isinstance(value, str)
        }
        self.gap = next((code for code, value in enumerate(column.values) if value is None), None)
        self.categories: list[Any] = [
            bool(number) if self.boolean else _plain_number(number) for number in sorted(known)
        ]
        if column.coded:
            self.categories = list(allowed.values())

    def read(self, value: Any, where: str) -> float:
        """The number that stands for a JSON value, unless it is new."""
        if value is None:
            return self._read_gap(where)
        if self.column.coded:
            return self._read_category(value, where)
        if type(value) is bool and not self.boolean:
            raise self._refuse(where, "must be a number, got true or false")
        if not isinstance(value, (int, float)):
            wanted = "true or false" if self.boolean else "a number"
            raise self._refuse(where, f"must be {wanted}, got {kind_of(value)}")
        number = float(value)
        if self.whole and abs(value) > WHOLE_UP_TO:
            raise self._refuse(where, "has a whole number beyond 2**53, which would be rounded")
        if self.column.categorical and number not in self.known and not self.ignores:
            raise self._unseen(where)
        return number

    def _read_gap(self, where: str) -> float:
        known = self.gap in self.known if self.column.coded else self.may_miss
        if not known:
            raise self._refuse(where, "is missing (null), but no training row missed it")
        return float("nan") if not self.column.coded else float(self.gap or 0)

    def _read_category(self, value: Any, where: str) -> float:
        if isinstance(value, (dict, list)):
            raise self._refuse(where, f"must be a category, got {kind_of(value)}")
        code = self.codes.get(value) if isinstance(value, str) else self.others.get((type(value), value))
        if code is None and isinstance(value, float) and value.is_integer():
            code = self.others.get((int, int(value)))
        if code is None and isinstance(value, int):
            code = self.others.get((float, float(value)))
        if code is not None:
            return code
        if self.ignores and (self.possible is None or str(value) in self.possible):
            return -1.0
        raise self._unseen(where)

    def _unseen(self, where: str) -> HttpError:
        some = ", ".join(repr(value) for value in self.categories[:SHOWN])
        more = f" and {len(self.categories) - SHOWN} more" if len(self.categories) > SHOWN else ""
        return self._refuse(where, f"has a category that training never saw; known are {some}{more}")

    def _refuse(self, where: str, why: str) -> HttpError:
        return HttpError(400, f"{where}: column {self.name!r} {why}")

    def decode(self, number: float) -> Any:
        """An encoded value as JSON."""
        if self.column.coded:
            value = self.column.values[int(number)]
            return value.item() if isinstance(value, np.generic) else value
        if np.isnan(number):
            return None
        return bool(number) if self.boolean else _plain_number(number) if self.whole else float(number)


class RecordReader:
    """Records of a table's artifact."""

    def __init__(self, schema: Schema, known: Sequence[frozenset[float]], missing: frozenset[int], unseen: str) -> None:
        self.schema = schema
        self.columns = [ColumnReader(column, known[j], j in missing, unseen) for j, column in enumerate(schema.columns)]
        self.names = schema.names
        names = self.names
        self._pick = itemgetter(*names) if len(names) > 1 else lambda record: (record[names[0]],)

    def read(self, records: Any, what: str = "records") -> Rows:
        """Rows of a list of objects {column: value}, or of lists with the values in the columns' order."""
        if not isinstance(records, list) or not records:
            got = "an empty list" if isinstance(records, list) else kind_of(records)
            raise HttpError(400, f"{what!r} must be a list of at least one record, got {got}")
        cells: list[Sequence[Any]] = []
        numbers: list[list[float]] = []
        news: dict[int, list[Any]] = {}
        for position, record in enumerate(records):
            values = self._values(record, position, what)
            cells.append(values)
            numbers.append(self._numbers(values, position, what, news))
        return Rows(numbers, cells, news or None)

    def _values(self, record: Any, position: int, what: str) -> Sequence[Any]:
        if type(record) is dict:
            try:
                values: Sequence[Any] = self._pick(record)
            except KeyError:
                lacking = [name for name in self.names if name not in record]
                raise HttpError(400, f"{what}[{position}] lacks the column {_some(lacking)}") from None
            if len(record) != len(self.names):
                unknown = [key[:60] for key in record if key not in self.names]
                raise HttpError(
                    400, f"{what}[{position}] has the unknown column {_some(unknown)}; known are {_some(self.names)}"
                )
            return values
        if type(record) is list:
            if len(record) != len(self.names):
                raise HttpError(
                    400, f"{what}[{position}] has {len(record)} values, expected {len(self.names)}: {_some(self.names)}"
                )
            return record
        raise HttpError(400, f"{what}[{position}] must be an object of columns and values, got {kind_of(record)}")

    def _numbers(self, values: Sequence[Any], position: int, what: str, news: dict[int, list[Any]]) -> list[float]:
        row: list[float] = []
        for column, value in zip(self.columns, values, strict=True):
            kind = type(value)
            if column.free and (kind is float or kind is int):
                row.append(value)
                continue
            code = column.codes.get(value) if kind is str else None
            if code is None:
                code = column.read(value, f"{what}[{position}]")
                if code == -1.0 and column.column.coded:
                    code = self._new_code(len(row), value, news)
            row.append(code)
        return row

    def _new_code(self, j: int, value: Any, news: dict[int, list[Any]]) -> float:
        """A code beyond those of the schema, for artifacts that explain rows with unseen categories."""
        listed = news.setdefault(j, [])
        keys = [(type(item), item) for item in listed]
        if (type(value), value) not in keys:
            listed.append(value)
            keys.append((type(value), value))
        return float(len(self.schema.columns[j].values) + keys.index((type(value), value)))

    def from_columns(self, columns: Sequence[Sequence[Any]]) -> Rows:
        """Rows of one list of values for each column, in the schema's order."""
        return self.read([list(values) for values in zip(*columns, strict=True)], "row")

    def decode(self, row: Matrix) -> dict[str, Any]:
        """An encoded row, (columns,), as a record."""
        return {column.name: column.decode(number) for column, number in zip(self.columns, row, strict=True)}

    def join(self, parts: Sequence[Rows]) -> Table:
        """The rows of several requests as one table; categories that the schema lacks get codes beyond its own."""
        matrix = np.array([row for part in parts for row in part.numbers], dtype=np.float64)
        if all(part.news is None for part in parts):
            return Table(matrix, self.schema)
        values = [list(column.values) for column in self.schema.columns]
        start = 0
        for part in parts:
            rows = slice(start, start + len(part))
            start += len(part)
            for j, news in (part.news or {}).items():
                first = len(self.schema.columns[j].values)
                own = matrix[rows, j].copy()
                for k, value in enumerate(news):
                    keys = [(type(item), item) for item in values[j]]
                    if (type(value), value) not in keys:
                        values[j].append(value)
                        keys.append((type(value), value))
                    matrix[rows, j][own == first + k] = keys.index((type(value), value))
        columns = (replace(c, values=tuple(v)) for c, v in zip(self.schema.columns, values, strict=True))
        return Table(matrix, Schema(tuple(columns), self.schema.frame))


class ImageReader:
    """Images as nested numbers 0..255: (height, width, channels), or (height, width) for grey ones."""

    def __init__(self, schema: ImageSchema) -> None:
        self.schema = schema
        height, width = schema.size
        self.shape = (height, width) if schema.grey else (height, width, schema.n_channels)

    def read(self, images: Any, what: str = "images") -> Rows:
        if not isinstance(images, list) or not images:
            got = "an empty list" if isinstance(images, list) else kind_of(images)
            raise HttpError(400, f"{what!r} must be a list of at least one image, got {got}")
        try:
            array = np.array(images)
        except ValueError:
            raise self._wrong(what, "lists of different lengths") from None
        if array.dtype.kind not in "iuf":
            raise self._wrong(what, "something that is no number")
        return self.read_array(array, what)

    def read_array(self, array: npt.NDArray[Any], what: str = "images") -> Rows:
        """Images of one array, (images, height, width[, channels])."""
        if array.dtype.kind not in "iuf":
            raise self._wrong(what, "something that is no number")
        if not self.schema.grey and self.schema.n_channels == 1 and array.shape[1:] == self.shape[:2]:
            array = array[..., None]
        if array.shape[1:] != self.shape or not len(array):
            raise self._wrong(what, f"shape {list(array.shape)}")
        if not (array >= 0).all() or not (array <= 255).all():
            raise self._wrong(what, "numbers outside 0..255")
        low, high = self.schema.pixels
        pixels = array.astype(np.float32) * np.float32((high - low) / 255) + np.float32(low)
        if not self.schema.grey and self.schema.channels == "first":
            pixels = np.moveaxis(pixels, -1, 1)
        return Rows(np.ascontiguousarray(pixels))

    def join(self, parts: Sequence[Rows]) -> Pixels:
        matrix: Pixels = parts[0].numbers if len(parts) == 1 else np.concatenate([part.numbers for part in parts])
        return matrix

    def _wrong(self, what: str, got: str) -> HttpError:
        want = ", ".join(map(str, self.shape))
        return HttpError(400, f"{what!r} must hold images of numbers 0..255 with shape ({want}), got {got}")


Reader = RecordReader | ImageReader


def make_reader(schema: Schema | ImageSchema, features: Any, unseen: str) -> Reader:
    """The reader of an artifact; `features` know what training saw: its categories, and which columns were missing."""
    if isinstance(schema, ImageSchema):
        return ImageReader(schema)
    known: list[set[float]] = [set() for _ in schema.columns]
    for j, value in zip(features.known_column.tolist(), features.known_value.tolist(), strict=True):
        known[j].add(value)
    missing = frozenset(features.missing.tolist())
    return RecordReader(schema, [frozenset(values) for values in known], missing, unseen)


def read_outputs(outputs: Any, n_rows: int, n_outputs: int) -> Matrix:
    """The model's outputs that a request brings, (rows, outputs)."""
    if not isinstance(outputs, list):
        raise HttpError(400, f"'outputs' must be a list, got {kind_of(outputs)}")
    try:
        array = np.array(outputs)
    except ValueError:
        raise HttpError(400, "'outputs' has rows of different lengths") from None
    if array.dtype.kind not in "iuf":
        raise HttpError(400, "'outputs' must hold numbers alone")
    array = array[:, None] if array.ndim == 1 and n_outputs == 1 else array
    if array.shape != (n_rows, n_outputs):
        raise HttpError(
            400, f"'outputs' has shape {list(array.shape)}, expected [{n_rows}, {n_outputs}]: the model's output for "
            "each row",
        )  # fmt: skip
    return array.astype(np.float64)


def _plain_number(number: float) -> float | int:
    return int(number) if float(number).is_integer() else float(number)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + more
