"""The caller's table (NumPy, pandas, polars, Arrow) as one numeric matrix, and back before the model sees it.

Numeric columns keep their numbers. Other columns (text, categories, booleans) become codes into a list of
their values; the model is always given the values, in a table of the caller's own kind, names and dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.seeding import mix, text_word

Matrix = npt.NDArray[np.float64]
FRAMES = ("numpy", "pandas", "polars", "pyarrow")


@dataclass(frozen=True)
class Column:
    """One column: its name, whether its values are categories, and the caller's dtype."""

    name: str
    categorical: bool
    dtype: Any
    coded: bool = False
    """True when the matrix holds positions in `values` instead of the numbers themselves."""
    values: tuple[Any, ...] = ()


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

    def row_words(self) -> npt.NDArray[np.uint64]:
        """A 64-bit word for each row that depends on its content alone, not on row, column or code order."""
        words = np.zeros(len(self), dtype=np.uint64)
        for j, column in enumerate(self.schema.columns):
            if column.coded:
                pool = np.array([text_word(f"{type(v).__name__}:{v}") for v in column.values], dtype=np.uint64)
                content = pool[self.matrix[:, j].astype(np.int64)]
            else:
                numbers = self.matrix[:, j] + 0.0  # -0.0 and 0.0 are one value
                numbers[np.isnan(numbers)] = np.nan
                content = numbers.view(np.uint64)
            with np.errstate(over="ignore"):
                words += mix(content ^ mix(np.asarray(text_word(column.name))))
        return words


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
    if hasattr(data, "detach") and hasattr(data, "cpu"):  # a torch tensor, without importing torch
        data = data.detach().cpu().numpy()
    if isinstance(data, (list, tuple)):
        data = np.asarray(data)
    if isinstance(data, np.ndarray):
        table = _read_array(data, schema, frozenset(categorical), what)
    else:
        table = _read_frame(data, schema, frozenset(categorical), what)
    infinite = np.isinf(table.matrix)
    if infinite.any():
        rows, columns = np.nonzero(infinite)
        raise InputError(
            f"{what} has infinite values: column {table.schema.names[columns[0]]!r}, row {rows[0]} "
            f"({infinite.sum()} in all); replace them by a large number or a missing value"
        )
    return table


def _read_array(array: npt.NDArray[Any], schema: Schema | None, categorical: frozenset[str | int], what: str) -> Table:
    if array.ndim != 2:
        raise InputError(
            f"{what} must have two axes (rows, columns), got shape {array.shape}; "
            "for a single row use row.reshape(1, -1)"
        )
    if array.dtype == object or array.dtype.kind in "USMm":
        raise InputError(
            f"{what} is an array of dtype {array.dtype}; give numbers, or a pandas or polars frame for text columns"
        )
    if schema is None:
        names = tuple(f"x{j}" for j in range(array.shape[1]))
        chosen = _resolve(categorical, names, what)
        columns = tuple(Column(name, j in chosen, array.dtype) for j, name in enumerate(names))
        return Table(array.astype(np.float64), Schema(columns, "numpy"))
    if array.shape[1] != len(schema.columns):
        raise InputError(f"{what} has {array.shape[1]} columns, expected {len(schema.columns)}: {_some(schema.names)}")
    coded = [column.name for column in schema.columns if column.coded]
    if coded:
        raise InputError(
            f"{what} is an array of numbers, but these columns hold categories: {_some(coded)}; give a frame"
        )
    if schema.frame == "numpy":
        columns = tuple(replace(column, dtype=array.dtype) for column in schema.columns)
        schema = replace(schema, columns=columns)
    return Table(array.astype(np.float64), schema)


def _read_frame(data: Any, schema: Schema | None, categorical: frozenset[str | int], what: str) -> Table:
    import narwhals as nw

    try:
        frame = nw.from_native(data, eager_only=True)
    except TypeError as error:
        raise InputError(
            f"{what} is a {type(data).__module__}.{type(data).__qualname__}; "
            "expected a NumPy array, a torch tensor, or a pandas, polars or Arrow table"
        ) from error
    kind = frame.implementation.value
    if kind not in FRAMES:
        raise InputError(f"{what} is a {kind} frame; convert it to one of {', '.join(FRAMES)} first")
    names = tuple(map(str, frame.columns))
    if len(set(names)) != len(names):
        raise InputError(f"{what} has columns of the same name: {_some([n for n in names if names.count(n) > 1])}")
    wanted = names if schema is None or schema.frame == "numpy" else schema.names
    if schema is not None and schema.frame == "numpy" and len(names) != len(schema.columns):
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
    for j, name in enumerate(wanted):
        known = None if schema is None else schema.columns[j]
        series = frame[frame.columns[names.index(name)]]
        numbers, column = _read_column(series, name, j in chosen, known, what)
        matrix[:, j] = numbers
        columns.append(column)
    return Table(matrix, Schema(tuple(columns), kind if schema is None or schema.frame == "numpy" else schema.frame))


def _read_column(
    series: Any, name: str, categorical: bool, known: Column | None, what: str
) -> tuple[npt.NDArray[np.float64], Column]:
    native_dtype = series.to_native().type if hasattr(series.to_native(), "type") else series.to_native().dtype
    if series.dtype.is_numeric():
        if known is not None and known.coded:
            raise InputError(
                f"column {name!r} of {what} has dtype {native_dtype}, but it holds categories like {known.values[0]!r}; "
                "cast it to the dtype the game was made with"
            )
        numbers = series.cast(_float64()).to_numpy().astype(np.float64)
        column = known or Column(name, categorical, native_dtype)
        return numbers, column
    import narwhals as nw

    text_like = (nw.String, nw.Categorical, nw.Enum, nw.Boolean, nw.Object)
    if not isinstance(series.dtype, text_like):
        raise InputError(
            f"column {name!r} of {what} has dtype {native_dtype}, which cannot be explained; "
            "convert it to a number (dates: days since a start) or to text"
        )
    if known is not None and not known.coded:
        raise InputError(
            f"column {name!r} of {what} has dtype {native_dtype}, expected numbers; convert it before explaining"
        )
    codes, values = _code(series, () if known is None else known.values, name, what)
    base = known or Column(name, True, native_dtype, coded=True)
    return codes.astype(np.float64), replace(base, values=values)


def _code(series: Any, known: tuple[Any, ...], name: str, what: str) -> tuple[npt.NDArray[np.int64], tuple[Any, ...]]:
    """Codes of a column's values: first the known ones, then new ones in order of appearance; None is a value."""
    position = {_key(value): code for code, value in enumerate(known)}
    values = list(known)
    unique = [None if _is_missing(value) else value for value in series.unique(maintain_order=True).to_list()]
    for value in unique:
        if not isinstance(value, (str, bool, np.bool_, int, float, type(None))):
            raise InputError(
                f"column {name!r} of {what} holds a {type(value).__name__}; only text, booleans and numbers can be categories"
            )
        if _key(value) not in position:
            position[_key(value)] = len(values)
            values.append(value)
    native = series.to_native()
    if series.implementation.value == "pandas":
        import pandas as pd

        local, uniques = pd.factorize(native, use_na_sentinel=True)
        lookup = np.array([position[_key(value)] for value in uniques] + [position.get(_key(None), -1)], dtype=np.int64)
        return lookup[local], tuple(values)
    codes = (position[_key(None if _is_missing(value) else value)] for value in series.to_list())
    return np.fromiter(codes, dtype=np.int64, count=len(series)), tuple(values)


def _key(value: Any) -> tuple[str, Any]:
    """Keeps True and 1, and "1" and 1, apart."""
    if isinstance(value, (bool, np.bool_)):
        return "bool", bool(value)
    return type(value).__name__, value


def _is_missing(value: Any) -> bool:
    return value is None or value != value or type(value).__name__ == "NAType"


def write_table(matrix: Matrix, schema: Schema) -> Any:
    """The rows as a table of the schema's own kind: names, dtypes and categories as the caller had them."""
    if schema.frame == "numpy":
        dtype = schema.columns[0].dtype if schema.columns else np.float64
        return _fit_dtype(matrix, dtype)
    columns = {
        column.name: _decode(matrix[:, j].astype(np.int64), column, schema.frame)
        if column.coded
        else _numeric(matrix[:, j], column.dtype, schema.frame)
        for j, column in enumerate(schema.columns)
    }
    if schema.frame == "pandas":
        import pandas as pd

        return pd.DataFrame(columns, copy=False)
    if schema.frame == "polars":
        import polars as pl

        return pl.DataFrame(columns)
    import pyarrow as pa

    return pa.table(columns)


def _fit_dtype(numbers: npt.NDArray[np.float64], dtype: Any) -> npt.NDArray[Any]:
    """The numbers in the caller's dtype; whole-number dtypes only while the values are whole."""
    if dtype.kind == "f":
        return numbers.astype(dtype, copy=False)
    if np.isnan(numbers).any() or (numbers != np.rint(numbers)).any():
        return numbers
    return numbers.astype(dtype)


def _numeric(numbers: npt.NDArray[np.float64], dtype: Any, frame: str) -> Any:
    if frame == "pandas":
        import pandas as pd

        if isinstance(dtype, np.dtype):
            return _fit_dtype(numbers, dtype)
        missing = np.isnan(numbers)
        whole = bool((numbers[~missing] == np.rint(numbers[~missing])).all())
        series = pd.Series(numbers).mask(missing)
        return series.astype(dtype) if whole or "int" not in str(dtype).lower() else series
    missing = np.isnan(numbers)
    whole = bool((numbers[~missing] == np.rint(numbers[~missing])).all())
    if frame == "polars":
        import polars as pl

        series = pl.Series(numbers)
        if missing.any():
            series = series.fill_nan(None)
        return series.cast(dtype) if whole or not dtype.is_integer() else series
    import pyarrow as pa

    array = pa.array(numbers, mask=missing)
    return array.cast(dtype) if whole or not pa.types.is_integer(dtype) else array


def _decode(codes: npt.NDArray[np.int64], column: Column, frame: str) -> Any:
    try:
        if frame == "pandas":
            import pandas as pd

            pool = pd.Series(list(column.values), dtype=column.dtype)
            _check_kept(pool.isna().sum(), column)
            return pool.array.take(codes)
        if frame == "polars":
            import polars as pl

            return pl.Series(column.name, list(column.values), dtype=column.dtype).gather(codes)
        import pyarrow as pa

        if pa.types.is_dictionary(column.dtype):
            return pa.array(list(column.values)).cast(column.dtype.value_type).take(pa.array(codes)).dictionary_encode()
        return pa.array(list(column.values), type=column.dtype).take(pa.array(codes))
    except (TypeError, ValueError) as error:
        raise _outside(column, str(error)) from error
    except Exception as error:
        if type(error).__module__.startswith("polars"):
            raise _outside(column, str(error)) from error
        raise


def _check_kept(n_missing: int, column: Column) -> None:
    """pandas turns a value outside a categorical dtype into a missing one without a word."""
    if n_missing > sum(value is None for value in column.values):
        raise _outside(column, "it would become a missing value")


def _outside(column: Column, why: str) -> InputError:
    return InputError(
        f"column {column.name!r} has a category that its dtype {column.dtype} does not allow ({why}); "
        f"values seen: {_some([str(v) for v in column.values])}"
    )


def reference_row(table: Table) -> Matrix:
    """The mean of each numeric column and the most frequent value of each categorical one, (1, columns).

    Missing values are left out; a column with nothing else keeps them.
    """
    if len(table) == 0:
        raise InputError("the reference table has no rows; give at least one")
    row = np.empty((1, table.matrix.shape[1]))
    for j, column in enumerate(table.schema.columns):
        numbers = table.matrix[:, j]
        if column.coded:
            missing = [code for code, value in enumerate(column.values) if value is None]
            present = numbers[~np.isin(numbers, missing)]
        else:
            present = numbers[~np.isnan(numbers)]
        if present.size == 0:
            row[0, j] = numbers[0]
        elif column.categorical:
            values, counts = np.unique(present, return_counts=True)
            row[0, j] = values[counts.argmax()]
        else:
            row[0, j] = present.mean()
    return row


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


def _float64() -> Any:
    import narwhals as nw

    return nw.Float64
