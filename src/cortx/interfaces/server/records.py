"""JSON records to encoded rows and back, without a frame: checked against an artifact's own columns.

A refusal names the record, the column and the reason, never the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.explainer.reading import LARGEST_OUTPUT, Seen
from cortx.images import ImageSchema
from cortx.interfaces.server.http import HttpError, kind_of
from cortx.tables import WHOLE_UP_TO, Column, Schema, Table, listed_categories

Matrix = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.float32]
Key = tuple[type, Any]
"""A JSON value with its type, which keeps true and 1 apart."""
SHOWN = 8
"""Categories that a refusal lists."""
NUMBERS = {int, float}
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one request: encoded, and as they came.

    `numbers` are lists of (columns,) with the codes of the artifact's schema, which become one matrix when batches are
    joined, or images (rows, *shape); `cells` holds the JSON values by column; `news` the codes of categories that
    the schema does not know, by column.
    """

    numbers: Any
    cells: list[Sequence[Any]] | None = None
    news: dict[int, dict[Key, int]] | None = None

    def __len__(self) -> int:
        return len(self.numbers)


class ColumnReader:
    """One column: which JSON values it takes, and their codes."""

    def __init__(self, column: Column, known: frozenset[float], may_miss: bool, unseen: str) -> None:
        self.column, self.known, self.may_miss = column, known, may_miss
        self.name, self.ignores = column.name, unseen == "ignore"
        self.places: dict[Key, int] = {
            _key(value): code for code, value in enumerate(column.values) if value is not None
        }
        self.kinds = {kind for kind, _ in self.places} or {str}
        """The types of a coded column's categories: the model takes no others."""
        listed = listed_categories(column.dtype)
        self.possible = None if listed is None else dict.fromkeys(map(_key, listed))
        """Of a dtype that lists its categories: no others can be given to the model."""
        self.whole = not column.coded and "int" in str(column.dtype).lower()
        self.boolean = not column.coded and "bool" in str(column.dtype).lower()
        limits: tuple[float, float] = _limits(column.dtype) if self.whole else (-math.inf, math.inf)
        self.least, self.most = limits
        # What needs no second look: any number, or a whole one between these two, or one of these numbers, or text
        # that has a code.
        plain = not column.categorical and not column.coded
        self.free = plain and not self.whole
        self.low, self.high = limits if plain else (math.inf, -math.inf)
        self.numbers = {number: number for number in known} if column.categorical and not column.coded else {}
        allowed = {key: code for key, code in self.places.items() if code in known}
        self.codes = {value: float(code) for (kind, value), code in allowed.items() if kind is str}
        self.others = {key: float(code) for key, code in allowed.items() if key[0] is not str}
        spelled = {text: value for _, value in self.others for text in (str(value).lower(), str(value))}
        self.spelled = {text: value for text, value in spelled.items() if text not in self.codes}
        """Categories that are no text, by their text: for callers who can send nothing else."""
        self.gap = next((code for code, value in enumerate(column.values) if value is None), None)
        self.categories: list[Any] = [
            bool(number) if self.boolean else _plain_number(number) for number in sorted(known)
        ]
        if column.coded:
            self.categories = [value for _, value in allowed]

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
        # One that does not fit would change the column's type for every row of its batch.
        if self.whole and not (number.is_integer() and self.least <= value <= self.most):
            raise self._refuse(where, f"must be a whole number from {_short(self.least)} to {_short(self.most)}")
        if self.column.categorical and number not in self.known and not self.ignores:
            raise self._unseen(where)
        if self.boolean and number not in (0, 1):
            raise self._refuse(where, "must be true or false, got another number")
        return number

    def _read_gap(self, where: str) -> float:
        known = self.gap in self.known if self.column.coded else self.may_miss
        if not known:
            raise self._refuse(where, "is missing (null), but no training row missed it")
        return float("nan") if not self.column.coded else float(self.gap or 0)

    def _read_category(self, value: Any, where: str) -> float:
        if isinstance(value, (dict, list)):
            raise self._refuse(where, f"must be a category, got {kind_of(value)}")
        key = self.key(value)
        code = self.codes.get(value) if key[0] is str else self.others.get(key)
        if code is not None:
            return code
        if self.ignores and key[0] not in self.kinds:
            wanted = " or ".join(word for kind, word in KINDS.items() if kind in self.kinds)
            raise self._refuse(where, f"must be {wanted}, got {kind_of(value)}")
        if self.ignores and (self.possible is None or key in self.possible):
            return -1.0
        raise self._unseen(where)

    def key(self, value: Any) -> Key:
        """A category with its type; JSON does not tell 1 from 1.0, so a number gets the type that the column has."""
        keys: list[Key] = [(type(value), value)]
        if keys[0][0] is int:
            keys.append((float, float(value)))
        elif keys[0][0] is float and value.is_integer():
            keys.append((int, int(value)))
        known = [key for key in keys if key in self.places] or [key for key in keys if key[0] in self.kinds]
        return known[0] if known else keys[0]

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
        self._known = frozenset(names)
        self._pick = itemgetter(*names) if len(names) > 1 else lambda record: (record[names[0]],)

    def read(self, records: Any, what: str = "records") -> Rows:
        """Rows of a list of objects {column: value}, or of lists with the values in the columns' order."""
        if not isinstance(records, list) or not records:
            got = "an empty list" if isinstance(records, list) else kind_of(records)
            raise HttpError(400, f"{what!r} must be a list of at least one record, got {got}")
        cells: list[Sequence[Any]] = []
        numbers: list[list[float]] = []
        news: dict[int, dict[Key, int]] = {}
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
                columns = "column" if len(lacking) == 1 else "columns"
                raise HttpError(400, f"{what}[{position}] lacks the {columns} {_some(lacking)}") from None
            if len(record) != len(self.names):
                unknown = [key[:60] for key in record if key not in self._known]
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

    def _numbers(self, values: Sequence[Any], position: int, what: str, news: dict[int, dict[Key, int]]) -> list[float]:
        row: list[float] = []
        for column, value in zip(self.columns, values, strict=True):
            kind = type(value)
            code: float | None = None
            if kind is float:
                code = value if column.free else column.numbers.get(value)
            elif kind is int:
                code = value if column.free or column.low <= value <= column.high else column.numbers.get(value)
            elif kind is str:
                code = column.codes.get(value)
            if code is None:
                code = column.read(value, f"{what}[{position}]")
                if code == -1.0 and column.column.coded:
                    code = self._new_code(len(row), value, news)
            row.append(code)
        return row

    def _new_code(self, j: int, value: Any, news: dict[int, dict[Key, int]]) -> float:
        """A code beyond those of the schema, for artifacts that explain rows with unseen categories."""
        added = news.setdefault(j, {})
        return float(added.setdefault(self.columns[j].key(value), len(self.schema.columns[j].values) + len(added)))

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
        added: dict[int, dict[Key, int]] = {}
        start = 0
        for part in parts:
            rows = slice(start, start + len(part))
            start += len(part)
            for j, news in (part.news or {}).items():
                places, own, first = self.columns[j].places, added.setdefault(j, {}), len(self.schema.columns[j].values)
                codes = np.arange(first + len(news))
                for key, code in news.items():
                    place = places.get(key)
                    codes[code] = own.setdefault(key, first + len(own)) if place is None else place
                matrix[rows, j] = codes[matrix[rows, j].astype(np.intp)]
        columns = list(self.schema.columns)
        for j, own in added.items():
            columns[j] = replace(columns[j], values=(*columns[j].values, *(value for _, value in own)))
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
        # Level by level: an array of whatever came could take far more memory than the body.
        flat: list[Any] = images
        for axis, size in enumerate(self.shape):
            kinds = set(map(type, flat))
            if axis == 2 and size == 1 and kinds <= NUMBERS:
                break
            if kinds != {list}:
                raise self._wrong(what, "something else than lists of lists")
            if set(map(len, flat)) != {size}:
                raise self._wrong(what, "lists of other lengths")
            flat = list(chain.from_iterable(flat))
        kinds = set(map(type, flat))
        if not kinds <= NUMBERS:
            raise self._wrong(what, "something that is no number")
        try:
            array = np.frombuffer(bytes(flat), np.uint8) if kinds == {int} else np.fromiter(flat, np.float64, len(flat))
        except ValueError:
            raise self._wrong(what, "numbers outside 0..255") from None
        return self.read_array(array.reshape(-1, *self.shape), what)

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


def make_reader(seen: Seen) -> Reader:
    """The reader of an artifact, from what training saw: its categories, and which columns were missing."""
    schema = seen.schema
    if isinstance(schema, ImageSchema):
        return ImageReader(schema)
    known = [frozenset(seen.known[j].tolist() if j in seen.known else ()) for j in range(len(schema.columns))]
    return RecordReader(schema, known, seen.missing, "ignore" if seen.ignore else "error")


def read_outputs(
    outputs: Any, n_rows: int, n_outputs: int, allowed: tuple[float, float] = (-LARGEST_OUTPUT, LARGEST_OUTPUT)
) -> Matrix:
    """The model's outputs that a request brings, (rows, outputs), each from the least to the most that is allowed."""
    if not isinstance(outputs, list):
        raise HttpError(400, f"'outputs' must be a list, got {kind_of(outputs)}")
    numbers: list[Any] = outputs
    if n_outputs > 1 or set(map(type, outputs)) == {list}:
        fit = [row for row in outputs if type(row) is list and len(row) == n_outputs]
        numbers = list(chain.from_iterable(fit))
    # Types before the array, which would take "1.5" and true for numbers.
    if len(outputs) != n_rows or len(numbers) != n_rows * n_outputs or not set(map(type, numbers)) <= NUMBERS:
        raise HttpError(
            400, f"'outputs' must hold numbers of shape [{n_rows}, {n_outputs}]: the model's output for each row"
        )
    if not allowed[0] <= min(numbers) <= max(numbers) <= allowed[1]:
        raise beyond("'outputs'", allowed)
    return np.array(numbers, dtype=np.float64).reshape(n_rows, n_outputs)


def beyond(what: str, allowed: tuple[float, float]) -> HttpError:
    """The refusal of outputs that the model cannot have given, or the explainer cannot compute with."""
    return HttpError(400, f"{what} must hold numbers between {allowed[0]:g} and {allowed[1]:g}")


def _key(value: Any) -> Key:
    value = value.item() if isinstance(value, np.generic) else value
    return type(value), value


def _limits(dtype: Any) -> tuple[float, float]:
    """The least and the most of a type of whole numbers, as far as float64 tells them apart."""
    text = str(dtype).lower()
    bits = int(re.findall(r"\d+", text)[0])
    least, most = (0, 2**bits - 1) if text.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return max(least, -WHOLE_UP_TO), min(most, WHOLE_UP_TO)


def _short(limit: float) -> str:
    return {WHOLE_UP_TO: "2**53", -WHOLE_UP_TO: "-2**53"}.get(int(limit), str(limit))


def _plain_number(number: float) -> float | int:
    return int(number) if float(number).is_integer() else float(number)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name) for name in names[:SHOWN]) + more
