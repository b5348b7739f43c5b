"""The caller's table (NumPy, pandas, polars, Arrow) as one numeric matrix, and back before the model sees it.

Numbers stay numbers and booleans become 0 and 1. Other columns (text, categories) become codes into a list of
their values; the model is always given the values, in a table of the caller's own kind, names and dtypes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need
from cortx.seeding import mix, text_word

Matrix = npt.NDArray[np.float64]
FRAMES = ("numpy", "pandas", "polars", "pyarrow")
WHOLE_UP_TO = 2**53
"""Whole numbers beyond this have no float64 of their own."""
MOST_CODES, ROWS_FOR_CODE, LOOK_AT = 50, 20, 10_000
"""What numeric columns that may hold codes of categories are told by (`few_whole_values`)."""


class RowError(InputError):
    """A row that cannot be used: the text before its number, the number, the text after it."""

    def __init__(self, before: str, row: int | None = None, after: str = "") -> None:
        super().__init__(before, row, after)

    def __str__(self) -> str:
        before, row, after = self.args
        return f"{before}{'' if row is None else row}{after}"

    def counted_from(self, first: int) -> RowError:
        """The same error where the rows are a part of a table that starts at its row `first`."""
        before, row, after = self.args
        return RowError(before, None if row is None else row + first, after)


NOT_AVAILABLE = "pandas.NA"
"""Stands for pandas.NA in `Column.missing` where pandas was not needed yet."""
KINDS = {
    "integer": r"u?int(8|16|32|64|128)(\[pyarrow\])?|[<>][iu]\d",
    "float": r"(float(16|32|64|96|128)?|double|halffloat)(\[pyarrow\])?|[<>]f\d+",
    "decimal": r"decimal\d*(\([\d, -]*\))?(\[pyarrow\])?",
    "boolean": r"bool(ean)?(\[pyarrow\])?",
    "text": r"(str|string|large_string|string_view|utf8|object)(\[(python|pyarrow|pyarrow_numpy)\])?",
    "category": r"category|categorical|enum|dictionary<[\w=, ]*>(\[pyarrow\])?",
}
"""The kinds of columns that tables may have, and how libraries call their dtypes, in small letters."""
POLARS_NAMES = frozenset(
    {"Boolean", "Categorical", "Decimal", "Float16", "Float32", "Float64", "Int8", "Int16", "Int32", "Int64", "Int128",
     "Object", "String", "UInt8", "UInt16", "UInt32", "UInt64", "UInt128", "Utf8"}
)  # fmt: skip
"""What a dtype of polars without settings may be called."""


def dtype_kind(dtype: Any) -> str | None:
    """The kind of a dtype, or of its name, in `KINDS`; None for any other."""
    text = str(dtype).lower()
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, text)), None)


@dataclass(frozen=True)
class Dtype:
    """A dtype by its name: no library is needed to read it, only to make a table of it (`native`)."""

    frame: str
    name: str
    """As the library writes it: "int64", "Int64", "category", "dictionary<values=string, ...>"."""
    categories: tuple[Any, ...] | None = None
    """Those that a dtype lists, in their order."""
    ordered: bool = False
    values: str | None = None
    """The type of the values of an Arrow dictionary."""

    def __str__(self) -> str:
        return self.name

    @cached_property
    def native(self) -> Any:
        """The library's own dtype; of decimals, which models are given as floats, the name."""
        library = _library(self.frame)
        if dtype_kind(self) == "decimal":
            return self.name
        if self.frame == "pandas":
            if self.categories is not None:
                return library.CategoricalDtype(list(self.categories), ordered=self.ordered)
            return library.api.types.pandas_dtype(self.name)
        if self.frame == "polars":
            if self.categories is not None:
                return library.Enum(list(self.categories))
            assert self.name in POLARS_NAMES
            return getattr(library, self.name)()
        if self.values is not None:
            return library.dictionary(library.int32(), library.type_for_alias(self.values))
        return library.type_for_alias(self.name)


def native_dtype(dtype: Any) -> Any:
    """A library's own dtype, from itself or from a `Dtype`."""
    return dtype.native if isinstance(dtype, Dtype) else dtype


def listed_categories(dtype: Any) -> tuple[Any, ...] | None:
    """The categories of a dtype that allows no others; None for any other dtype."""
    if isinstance(dtype, Dtype):
        return dtype.categories
    return tuple(dtype.categories) if type(dtype).__name__ in ("CategoricalDtype", "Enum") else None


def _library(frame: str) -> Any:
    """The module that makes frames of a kind."""
    try:
        return importlib.import_module(frame)
    except ImportError as error:
        raise need(frame, f"a table for a model that takes {frame} frames", "tables") from error


@dataclass(frozen=True)
class Column:
    """One column: its name, whether its values are categories, and the caller's dtype."""

    name: str
    categorical: bool
    dtype: Any
    coded: bool = False
    """True when the matrix holds positions in `values` instead of the numbers themselves."""
    values: tuple[Any, ...] = ()
    label: Any = None
    """The caller's own name where that is not a text: pandas columns may be numbers."""
    missing: Any = None
    """What the caller writes for a missing category, which is None in `values`: None, NaN, pandas.NA or its name."""

    def codes_in(self, other: Column) -> list[int]:
        """What the categories of this column are in another one; beyond all of its codes where it lacks them."""
        known = {_key(value): code for code, value in enumerate(other.values)}
        return [known.get(_key(value), len(known) + code) for code, value in enumerate(self.values)]


@dataclass(frozen=True)
class Schema:
    """The columns of a table and the kind of table ("numpy", "pandas", "polars", "pyarrow")."""

    columns: tuple[Column, ...]
    frame: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows as a float64 matrix, (rows, columns), with the schema that turns them back."""

    matrix: Matrix
    schema: Schema

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, index: npt.NDArray[np.int64] | slice) -> Table:
        return Table(self.matrix[index], self.schema)

    def coded_like(self, schema: Schema) -> Matrix:
        """The matrix in the codes of another schema of the same columns; categories it lacks are beyond its own."""
        matrix = self.matrix
        for j, (own, other) in enumerate(zip(self.schema.columns, schema.columns, strict=True)):
            if not own.coded or own.values is other.values:
                continue
            codes = own.codes_in(other)
            if codes == list(range(len(codes))):
                continue
            if matrix is self.matrix:
                matrix = matrix.copy()
            matrix[:, j] = np.array(codes, dtype=np.float64)[self.matrix[:, j].astype(np.int64)]
        return matrix

    def row_words(self) -> npt.NDArray[np.uint64]:
        """A 64-bit word for each row that depends on its content alone, not on row, column or code order."""
        words = np.zeros(len(self), dtype=np.uint64)
        for j, column in enumerate(self.schema.columns):
            if column.coded:
                pool = np.array([text_word("{}:{}".format(*_key(v))) for v in column.values], dtype=np.uint64)
                content = pool[self.matrix[:, j].astype(np.int64)]
            else:
                numbers = self.matrix[:, j] + 0.0  # -0.0 and 0.0 are one value
                numbers[np.isnan(numbers)] = np.nan
                content = numbers.view(np.uint64)
            with np.errstate(over="ignore"):
                words += mix(content ^ mix(np.asarray(text_word(column.name))))
        return words


def plain(data: Any) -> Any:
    """Torch tensors and lists as arrays; everything else as it is."""
    if hasattr(data, "detach") and hasattr(data, "cpu"):  # a torch tensor, without importing torch
        tensor = data.detach().cpu()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()  # NumPy has no bfloat16
    if isinstance(data, (list, tuple)):
        try:
            return np.asarray(data)
        except ValueError as error:
            raise InputError(f"the list is not a table of numbers with rows of one length ({error})") from error
    return data


def read_table(
    data: Any,
    *,
    schema: Schema | None = None,
    categorical: Iterable[str | int] = (),
    what: str = "the table",
) -> Table:
    """Reads rows; with a schema, columns are matched to it by name and its categories keep their codes."""
    if isinstance(data, Mapping):
        raise InputError(f"{what} is a dict; give a frame (for example pandas.DataFrame([row])) or an array")
    data = plain(data)
    if isinstance(data, Table):
        table = _read_again(data, schema, what)
    elif isinstance(data, np.ndarray):
        table = _read_array(data, schema, frozenset(categorical), what)
    else:
        table = _read_frame(data, schema, frozenset(categorical), what)
    if not table.schema.columns:
        raise InputError(f"{what} has no columns; give at least one")
    infinite = np.isinf(table.matrix)
    if infinite.any():
        rows, columns = np.nonzero(infinite)
        raise RowError(
            f"{what} has infinite values: column {table.schema.names[columns[0]]!r}, row ",
            int(rows[0]),
            f" ({infinite.sum()} in all); replace them by a large number or a missing value",
        )
    return table


def _read_again(table: Table, schema: Schema | None, what: str) -> Table:
    """Rows that were read already; their codes must be those of the schema, which they may only have added to."""
    pairs = [] if schema is None else list(zip(table.schema.columns, schema.columns, strict=False))
    same = all(c.name == k.name and c.values[: len(k.values)] == k.values for c, k in pairs)
    if schema is not None and (len(table.schema.columns) != len(schema.columns) or not same):
        raise InputError(f"{what} was read with another schema; read it again, or give it as a frame")
    return table


def _read_array(array: npt.NDArray[Any], schema: Schema | None, categorical: frozenset[str | int], what: str) -> Table:
    if array.ndim != 2:
        hint = "for images say players=cortx.Patches(2) in the game"
        if array.ndim not in (3, 4):
            hint = "for a single row use row.reshape(1, -1)"
        raise InputError(f"{what} must have two axes (rows, columns), got shape {array.shape}; {hint}")
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{what} is an array of dtype {array.dtype}; give numbers, or a pandas or polars frame for text columns"
        )
    numbers = array.astype(np.float64)
    if schema is None:
        names = tuple(f"x{j}" for j in range(array.shape[1]))
        chosen = _resolve(categorical, names, what)
        columns = tuple(Column(name, j in chosen, array.dtype) for j, name in enumerate(names))
        schema = Schema(columns, "numpy")
    elif array.shape[1] != len(schema.columns):
        raise InputError(f"{what} has {array.shape[1]} columns, expected {len(schema.columns)}: {_some(schema.names)}")
    coded = [column.name for column in schema.columns if column.coded]
    if coded:
        raise InputError(
            f"{what} is an array of numbers, but these columns hold categories: {_some(coded)}; give a frame"
        )
    if schema.frame == "numpy":
        schema = replace(schema, columns=tuple(replace(column, dtype=array.dtype) for column in schema.columns))
    for j, name in enumerate(schema.names):
        _check_digits(numbers[:, j], array.dtype, name, what)
    return Table(numbers, schema)


def _read_frame(data: Any, schema: Schema | None, categorical: frozenset[str | int], what: str) -> Table:
    import narwhals as nw

    try:
        frame = nw.from_native(data, eager_only=True)
        labels = frame.columns
    except TypeError as error:
        raise InputError(
            f"{what} is a {type(data).__module__}.{type(data).__qualname__}; expected a NumPy array, a torch tensor, "
            "or a pandas, polars or Arrow table (a single row: X.iloc[[0]]; a lazy frame: X.collect())"
        ) from error
    except nw.exceptions.DuplicateError as error:
        raise InputError(f"{what} has columns of the same name: {error}") from error
    kind = frame.implementation.value
    if kind not in FRAMES:
        raise InputError(f"{what} is a {kind} frame; convert it to one of {', '.join(FRAMES)} first")
    names = tuple(map(str, labels))
    if len(set(names)) != len(names):
        raise InputError(f"{what} has columns of the same name: {_some([n for n in names if names.count(n) > 1])}")
    # An array has no names to match: a frame's columns are then taken in their order.
    wanted = names if schema is None or schema.frame == "numpy" else schema.names
    if schema is not None and len(wanted) != len(schema.columns):
        raise InputError(f"{what} has {len(names)} columns, expected {len(schema.columns)}")
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    if missing or extra:
        parts = [f"it lacks {_some(missing)}"] if missing else []
        parts += [f"it has the unknown {_some(extra)}"] if extra else []
        raise InputError(
            f"{what} does not have the expected columns: {'; '.join(parts)}. Expected: {_some(wanted, 40)}"
        )
    chosen = _resolve(categorical, names, what) if schema is None else frozenset()
    matrix = np.empty((len(frame), len(wanted)), dtype=np.float64)
    columns: list[Column] = []
    kind_known = schema is not None and schema.frame != "numpy"
    for j, name in enumerate(wanted):
        position = names.index(name)
        label = None if isinstance(labels[position], str) else labels[position]
        known = None if schema is None else schema.columns[j]
        series = frame[:, position]
        if known is not None and kind_known and len(series) and series.is_null().all():
            matrix[:, j], column = _read_missing(known)  # such a column has any dtype: that of a row from JSON, say
        else:
            matrix[:, j], column = _read_column(series, name, known, what)
        if known is None or not kind_known:
            flagged = column.categorical or j in chosen or (known is not None and known.categorical)
            column = replace(column, categorical=flagged, label=label)
        else:
            column = replace(
                known, values=column.values, missing=column.missing if known.missing is None else known.missing
            )
        columns.append(column)
    return Table(matrix, Schema(tuple(columns), kind if schema is None or schema.frame == "numpy" else schema.frame))


def _read_column(series: Any, name: str, known: Column | None, what: str) -> tuple[npt.NDArray[np.float64], Column]:
    import narwhals as nw

    native = series.to_native()
    dtype = native.type if series.implementation.value == "pyarrow" else native.dtype
    boolean = isinstance(series.dtype, nw.Boolean)
    if series.dtype.is_numeric() or boolean:
        if known is not None and known.coded:
            raise InputError(
                f"column {name!r} of {what} has dtype {dtype}, but it holds categories like {known.values[0]!r}; "
                "cast it to the dtype the game was made with"
            )
        try:
            numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        except ValueError as error:  # Arrow does not round
            raise _too_long(name, what) from error
        _check_digits(numbers, dtype, name, what)
        return numbers, Column(name, boolean, dtype)
    if not isinstance(series.dtype, (nw.String, nw.Categorical, nw.Enum, nw.Object)):
        raise InputError(
            f"column {name!r} of {what} has dtype {dtype}, which cannot be explained; "
            "convert it to a number (dates: days since a start) or to text"
        )
    if known is not None and not known.coded:
        raise InputError(f"column {name!r} of {what} has dtype {dtype}, expected numbers; convert it before explaining")
    codes, values, gap = _code(series, () if known is None else known.values, name, what)
    return codes.astype(np.float64), Column(name, True, dtype, coded=True, values=values, missing=gap)


def _read_missing(known: Column) -> tuple[float, Column]:
    """The matrix's word for a missing value of a known column."""
    if not known.coded:
        return np.nan, known
    values = known.values if None in known.values else (*known.values, None)
    return values.index(None), replace(known, values=values)


def _check_digits(numbers: npt.NDArray[np.float64], dtype: Any, name: str, what: str) -> None:
    if "int" in str(dtype).lower() and (np.abs(numbers) > WHOLE_UP_TO).any():
        raise _too_long(name, what)


def _too_long(name: str, what: str) -> InputError:
    return InputError(
        f"column {name!r} of {what} holds whole numbers beyond 2**53, which would be rounded; "
        "a column of identifiers belongs in no explanation, or in it as text"
    )


def _code(
    series: Any, known: tuple[Any, ...], name: str, what: str
) -> tuple[npt.NDArray[np.int64], tuple[Any, ...], Any]:
    """Codes of a column's values, first the known ones, then new ones in order of appearance; and its missing value.

    A missing value is a value of its own, None, whatever stands for it.
    """
    try:
        unique, local, missing = _factorized(series)
    except TypeError as error:
        raise InputError(f"column {name!r} of {what} holds values that are no categories ({error})") from error
    position = {_key(value): code for code, value in enumerate(known)}
    values = list(known)
    lookup = np.empty(len(unique), dtype=np.int64)
    for place, value in enumerate(unique):
        if _is_missing(value):
            value = None
        elif not isinstance(value, (str, bool, np.bool_, int, float)):
            raise InputError(
                f"column {name!r} of {what} holds a {type(value).__name__}; "
                "only text, booleans and numbers can be categories"
            )
        if _key(value) not in position:
            position[_key(value)] = len(values)
            values.append(value)
        lookup[place] = position[_key(value)]
    return lookup[local], tuple(values), missing


def _factorized(series: Any) -> tuple[list[Any], npt.NDArray[np.int64], Any]:
    """A column's different values in order of appearance, each row's position among them, and its missing value."""
    native = series.to_native()
    if series.implementation.value == "pandas":
        import pandas as pd

        missing = next(iter(native[native.isna()]), None)
        local, unique = pd.factorize(native, use_na_sentinel=True)
        unique = list(unique)
        gaps = local < 0
        if gaps.any():  # None, NaN and pandas.NA are one value, which takes its place among the others
            before = int(local[: gaps.argmax()].max(initial=-1)) + 1
            local = np.where(gaps, before, local + (local >= before))
            unique.insert(before, None)
        return unique, local, missing
    if series.implementation.value == "polars":
        import polars as pl

        unique = native.unique(maintain_order=True)
        codes = pl.Series(np.arange(len(unique)), dtype=pl.Int64)
        local = native.replace_strict(unique, codes, return_dtype=pl.Int64).to_numpy()
        return unique.to_list(), local.astype(np.int64), None  # of no rows polars makes text, whatever it is told
    import pyarrow as pa

    encoded = _wide_codes(native) if pa.types.is_dictionary(native.type) else native.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    size = len(encoded.dictionary)
    entries = encoded.indices.fill_null(size).to_numpy().astype(np.int64)
    first = np.full(size + 1, len(entries))  # where each entry appears first; the last stands for a missing value
    first[entries[::-1]] = np.arange(len(entries))[::-1]
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(entries))]
    place = np.empty(size + 1, dtype=np.int64)
    place[used] = np.arange(len(used))
    return encoded.dictionary.take(pa.array(used, mask=used == size)).to_pylist(), place[entries], None


def _wide_codes(native: Any) -> Any:
    """A dictionary column whose codes have room: all chunks together may have more values than its own codes reach."""
    import pyarrow as pa

    chunks = [pa.DictionaryArray.from_arrays(c.indices.cast(pa.int64()), c.dictionary) for c in native.chunks]
    return pa.chunked_array(chunks, pa.dictionary(pa.int64(), native.type.value_type))


def _key(value: Any) -> tuple[str, Any]:
    """Keeps True and 1, and "1" and 1, apart."""
    value = value.item() if isinstance(value, np.generic) else value
    return type(value).__name__, value


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def write_table(matrix: Matrix, schema: Schema) -> Any:
    """The rows as a table of the schema's own kind: names, dtypes and categories as the caller had them."""
    if schema.frame == "numpy":
        dtype = schema.columns[0].dtype
        return matrix.astype(dtype, copy=False) if _fits(matrix, dtype) else matrix
    library = _library(schema.frame)
    columns = {
        column.name if column.label is None else column.label: _decode(matrix[:, j].astype(np.int64), column, schema)
        if column.coded
        else _numeric(matrix[:, j], native_dtype(column.dtype), schema.frame)
        for j, column in enumerate(schema.columns)
    }
    if schema.frame == "pandas":
        return library.DataFrame(columns, copy=False)
    return library.DataFrame(columns) if schema.frame == "polars" else library.table(columns)


def _fits(numbers: npt.NDArray[np.float64], dtype: Any) -> bool:
    """Whether the dtype holds these numbers: a mean is rarely whole, and the column is then given as floats."""
    text = str(dtype).lower()
    if "bool" in text:
        return bool(((numbers == 0) | (numbers == 1)).all())
    if "int" in text:
        bits = int(re.findall(r"\d+", text)[0])
        low, high = (0, 2**bits) if text.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return bool((numbers == np.rint(numbers)).all() and (numbers >= low).all() and (numbers < high).all())
    return "decimal" not in text


def _numeric(numbers: npt.NDArray[np.float64], dtype: Any, frame: str) -> Any:
    if frame == "pandas" and isinstance(dtype, np.dtype):
        return numbers.astype(dtype, copy=False) if _fits(numbers, dtype) else numbers
    missing = np.isnan(numbers)
    fits = _fits(numbers[~missing], dtype)
    if frame == "pandas":
        import pandas as pd

        return pd.Series(numbers).astype(dtype) if fits else numbers
    if frame == "polars":
        import polars as pl

        series = pl.Series(numbers, nan_to_null=True)
        return series.cast(dtype) if fits else series
    import pyarrow as pa

    array = pa.array(numbers, mask=missing)
    return array.cast(dtype) if fits else array


def _decode(codes: npt.NDArray[np.int64], column: Column, schema: Schema) -> Any:
    column = replace(column, dtype=native_dtype(column.dtype))
    try:
        if schema.frame == "pandas":
            import pandas as pd

            categories = getattr(column.dtype, "categories", None)
            unknown = [] if categories is None else [v for v in column.values if v is not None and v not in categories]
            if unknown:  # pandas would turn them into missing values
                raise ValueError(f"unknown: {_some(unknown)}")
            missing = pd.NA if isinstance(column.missing, str) else column.missing
            pool = pd.Series([missing if v is None else v for v in column.values], dtype=column.dtype)
            return pd.Series(pool.array.take(codes), dtype=column.dtype)
        if schema.frame == "polars":
            import polars as pl

            return pl.Series(column.name, list(column.values), dtype=column.dtype).gather(codes)
        import pyarrow as pa

        values = pa.array(list(column.values)).take(pa.array(codes))
        if pa.types.is_dictionary(column.dtype):  # a cast makes dictionaries of text alone
            values = values.cast(column.dtype.value_type).dictionary_encode()
        return values.cast(column.dtype)
    except Exception as error:
        if isinstance(error, (TypeError, ValueError)) or type(error).__module__.startswith("polars"):
            raise InputError(
                f"column {column.name!r} has a category that its dtype {column.dtype} does not allow ({error}); "
                f"values seen: {_some([str(v) for v in column.values])}"
            ) from error
        raise


def convert_schema(schema: Schema, frame: str) -> Schema:
    """The same columns in another kind of frame, each with the nearest dtype."""
    if frame == schema.frame:
        return schema
    return Schema(tuple(replace(column, dtype=_dtype(column, frame)) for column in schema.columns), frame)


def _dtype(column: Column, frame: str) -> Any:
    """The dtype of a column in another kind of frame: numbers, whole numbers, booleans, categories or text."""
    text = str(column.dtype).lower()
    if column.coded:
        category = any(word in text for word in ("categor", "enum", "dictionary"))
        booleans = not category and any(isinstance(value, (bool, np.bool_)) for value in column.values)
        kind = "category" if category else "boolean" if booleans else "text"
    else:
        kind = "boolean" if "bool" in text else "whole" if "int" in text else "number"
    present = [value for value in column.values if value is not None]
    if frame == "pandas":
        import pandas as pd

        dtypes = {
            "number": np.dtype(np.float64),
            "whole": np.dtype(np.int64),
            "boolean": np.dtype(object if column.coded else bool),
            "category": pd.CategoricalDtype(present),
            "text": pd.Series(["a"]).dtype,
        }
    elif frame == "polars":
        import polars as pl

        dtypes = {
            "number": pl.Float64(),
            "whole": pl.Int64(),
            "boolean": pl.Boolean(),
            "category": pl.Categorical(),
            "text": pl.String(),
        }
    elif frame == "pyarrow":
        import pyarrow as pa

        dtypes = {
            "number": pa.float64(),
            "whole": pa.int64(),
            "boolean": pa.bool_(),
            "category": pa.dictionary(pa.int32(), pa.string()),
            "text": pa.string(),
        }
    elif column.coded:
        raise InputError(f"frame='numpy' cannot hold the text of column {column.name!r}; use 'pandas' or 'polars'")
    else:
        return np.dtype(np.float64)
    return dtypes[kind]


def reference_row(table: Table, copies: npt.NDArray[np.int64] | None = None) -> Matrix:
    """The mean of each numeric column and the most frequent value of each categorical one, (1, columns).

    Missing values are left out; a column with nothing else keeps them. A row counts `copies` times, (rows,). The mean
    of a constant column is exactly that constant, so that its rows count as equal to the reference.
    """
    if len(table) == 0:
        raise InputError("the reference table has no rows; give at least one")
    row = np.empty((1, table.matrix.shape[1]))
    for j, column in enumerate(table.schema.columns):
        numbers = table.matrix[:, j]
        if column.coded:
            missing = [code for code, value in enumerate(column.values) if value is None]
            here = ~np.isin(numbers, missing)
        else:
            here = ~np.isnan(numbers)
        present, weights = numbers[here], None if copies is None else copies[here]
        if present.size == 0:
            row[0, j] = numbers[0]
        elif column.categorical:
            values, place = np.unique(present, return_inverse=True)
            row[0, j] = values[np.bincount(place, weights).argmax()]
        else:
            # Rounding may take a mean out of its column's range, and so away from a constant.
            row[0, j] = np.clip(np.average(present, weights=weights), present.min(), present.max())
    return row


def few_whole_values(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """The different values of a numeric column, (rows,), if they may be codes of categories, ascending; else None.

    They may, if they are whole, 3 to `MOST_CODES`, and each stands in `ROWS_FOR_CODE` rows or more on average.
    """
    some = numbers[:: max(1, len(numbers) // LOOK_AT)]  # most columns of numbers are told by a part of them
    if not _may_be_codes(np.unique(some[~np.isnan(some)]), len(numbers), least=1):
        return None
    known = numbers[~np.isnan(numbers)]
    values = np.unique(known)
    return values if _may_be_codes(values, len(known), least=3) else None


def _may_be_codes(values: npt.NDArray[np.float64], rows: int, *, least: int) -> bool:
    few = least <= len(values) <= min(MOST_CODES, rows // ROWS_FOR_CODE)
    return few and bool((values == np.rint(values)).all())


def _resolve(chosen: frozenset[str | int], names: tuple[str, ...], what: str) -> frozenset[int]:
    return frozenset(column_position(item, names, what) for item in chosen)


def column_position(item: str | int, names: Sequence[str], what: str = "the table") -> int:
    """The position of a column given by name or number."""
    if isinstance(item, str):
        if item not in names:
            raise InputError(f"{what} has no column {item!r}; it has {_some(names)}")
        return list(names).index(item)
    if not 0 <= item < len(names):
        raise InputError(f"{what} has no column number {item}; it has {len(names)} columns")
    return int(item)


def _some(items: Sequence[Any], most: int = 8) -> str:
    text = ", ".join(repr(item) for item in list(items)[:most])
    return text + (f", ... ({len(items)} in all)" if len(items) > most else "")
