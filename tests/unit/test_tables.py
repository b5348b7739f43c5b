"""Tables in, one matrix, the same tables out."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from cortx.errors import InputError
from cortx.tables import RowError, Schema, convert_schema, read_table, reference_row, write_table

PANDAS = pd.DataFrame(
    {
        "float": [1.5, np.nan, -2.0, 0.0],
        "float32": np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32),
        "int": [1, 2, 3, -4],
        "uint8": np.array([0, 255, 7, 8], dtype=np.uint8),
        "bool": [True, False, True, True],
        "str": ["a", "b", "a", ""],
        "str_missing": ["a", None, "b", "a"],
        "object_nan": pd.Series(["a", np.nan, "b", "a"], dtype=object),
        "object_none": pd.Series(["a", None, "b", "a"], dtype=object),
        "object_mixed": pd.Series(["1", 1, 2.5, "a"], dtype=object),
        "string": pd.array(["a", None, "b", "c"], dtype="string"),
        "category": pd.Categorical(["u", "v", None, "u"], categories=["w", "v", "u"]),
        "ordered": pd.Categorical(["lo", "hi", "lo", "hi"], categories=["lo", "mid", "hi"], ordered=True),
        "category_int": pd.Categorical([3, 1, 3, 2]),
        "Int64": pd.array([1, None, 3, 4], dtype="Int64"),
        "Float64": pd.array([1.5, None, 3, 4], dtype="Float64"),
        "boolean": pd.array([True, None, False, True], dtype="boolean"),
        "arrow_int": pd.array([1, None, 3, 4], dtype="int64[pyarrow]"),
    }
)
POLARS = pl.DataFrame(
    {
        "i64": pl.Series([1, None, 3], dtype=pl.Int64),
        "u8": pl.Series([1, 255, 3], dtype=pl.UInt8),
        "f32": pl.Series([0.1, None, 0.3], dtype=pl.Float32),
        "f64": [0.1, 0.2, 0.3],
        "text": ["a", None, "b"],
        "categorical": pl.Series(["u", "v", None], dtype=pl.Categorical),
        "enum": pl.Series(["lo", "hi", None], dtype=pl.Enum(["lo", "mid", "hi"])),
        "bool": [True, None, False],
    }
)
ARROW = pa.table(
    {
        "i32": pa.array([1, None, 3], pa.int32()),
        "f32": pa.array([0.1, None, 0.3], pa.float32()),
        "text": pa.array(["a", None, "b"]),
        "large": pa.array(["a", None, "b"], pa.large_string()),
        "dictionary": pa.array(["u", None, "v"]).dictionary_encode(),
        "small": pa.array(["u", None, "v"]).cast(pa.dictionary(pa.int8(), pa.string())),
        "bool": pa.array([True, None, False]),
    }
)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint16, bool])
def test_numpy_round_trip(dtype: Any) -> None:
    array = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    table = read_table(array)
    back = write_table(table.matrix, table.schema)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, array)
    assert table.schema.names == ("x0", "x1")


@pytest.mark.parametrize("name", PANDAS.columns)
def test_pandas_round_trip(name: str) -> None:
    frame = PANDAS[[name]]
    table = read_table(frame)
    back = write_table(table.matrix, table.schema)
    pd.testing.assert_frame_equal(back, frame)
    assert [type(value) for value in back[name]] == [type(value) for value in frame[name]]  # None is not NaN


def test_pandas_frame_round_trip_without_its_index() -> None:
    frame = PANDAS.set_index(pd.Index([7, 3, 1, 0]))
    table = read_table(frame)
    pd.testing.assert_frame_equal(write_table(table.matrix, table.schema), PANDAS)


def test_pandas_columns_may_be_numbers() -> None:
    frame = pd.DataFrame(np.eye(2))
    table = read_table(frame)
    assert table.schema.names == ("0", "1")
    pd.testing.assert_frame_equal(write_table(table.matrix, table.schema), pd.DataFrame({0: [1.0, 0], 1: [0.0, 1]}))


@pytest.mark.parametrize("name", POLARS.columns)
def test_polars_round_trip(name: str) -> None:
    table = read_table(POLARS.select(name))
    back = write_table(table.matrix, table.schema)
    assert back.schema == POLARS.select(name).schema
    assert back[name].to_list() == POLARS[name].to_list()


@pytest.mark.parametrize("name", ARROW.column_names)
def test_arrow_round_trip(name: str) -> None:
    table = read_table(ARROW.select([name]))
    back = write_table(table.matrix, table.schema)
    assert back.schema == ARROW.select([name]).schema
    assert back[name].to_pylist() == ARROW[name].to_pylist()


def test_tensor_and_list() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(read_table(torch.tensor(expected, requires_grad=True)).matrix, expected)
    np.testing.assert_array_equal(read_table([[1, 2], [3, 4]]).matrix, expected)


def test_whole_number_columns_become_floats_only_when_they_must() -> None:
    table = read_table(pd.DataFrame({"a": [1, 2], "b": np.array([1, 2], dtype=np.uint8)}))
    assert write_table(np.array([[3.0, 4.0]]), table.schema).dtypes.tolist() == [np.int64, np.uint8]
    mixed = write_table(np.array([[1.5, 300.0]]), table.schema)
    assert mixed.iloc[0].tolist() == [1.5, 300.0]
    polars = read_table(pl.DataFrame({"a": pl.Series([1], dtype=pl.UInt8)}))
    assert write_table(np.array([[-1.0]]), polars.schema)["a"].to_list() == [-1.0]


def test_columns_are_matched_by_name() -> None:
    schema = read_table(PANDAS).schema
    shuffled = PANDAS[PANDAS.columns[::-1]]
    table = read_table(shuffled, schema=schema)
    np.testing.assert_array_equal(table.matrix, read_table(PANDAS).matrix)
    pd.testing.assert_frame_equal(write_table(table.matrix, table.schema), PANDAS)


def test_known_categories_keep_their_codes_and_new_ones_follow() -> None:
    schema = read_table(pd.DataFrame({"s": ["a", "b"]})).schema
    table = read_table(pl.DataFrame({"s": ["c", None, "b"]}), schema=schema)
    assert table.matrix[:, 0].tolist() == [2, 3, 1]
    assert table.schema.columns[0].values == ("a", "b", "c", None)
    back = write_table(table.matrix, table.schema)
    assert isinstance(back, pd.DataFrame)
    assert back["s"].isna().tolist() == [False, True, False]


def test_values_outside_a_closed_dtype_are_refused() -> None:
    closed = read_table(pd.DataFrame({"s": pd.Categorical(["a", "b"])}))
    more = read_table(pd.DataFrame({"s": ["c"]}), schema=closed.schema)
    with pytest.raises(InputError, match=r"column 's' has a category that its dtype category does not allow.*'c'"):
        write_table(more.matrix, more.schema)
    closed = read_table(pl.DataFrame({"s": pl.Series(["a"], dtype=pl.Enum(["a", "b"]))}))
    more = read_table(pl.DataFrame({"s": ["c"]}), schema=closed.schema)
    with pytest.raises(InputError, match="column 's' has a category that its dtype Enum"):
        write_table(more.matrix, more.schema)


@pytest.mark.parametrize("target", ["pandas", "polars", "pyarrow"])
@pytest.mark.parametrize("source", [PANDAS.drop(columns=["object_mixed", "category_int"]), POLARS, ARROW])
def test_conversion_keeps_values_and_kinds(source: Any, target: str) -> None:
    table = read_table(source)
    converted = write_table(table.matrix, convert_schema(table.schema, target))
    again = read_table(converted)
    assert again.schema.frame == target
    assert [c.coded for c in again.schema.columns] == [c.coded for c in table.schema.columns]
    np.testing.assert_array_equal(again.row_words(), table.row_words())


def test_conversion_to_numpy() -> None:
    table = read_table(POLARS.select("i64", "bool"))
    back = write_table(table.matrix, convert_schema(table.schema, "numpy"))
    np.testing.assert_array_equal(back, [[1, 1], [np.nan, np.nan], [3, 0]])
    text = read_table(POLARS.select("text"))
    with pytest.raises(InputError, match="frame='numpy' cannot hold the text of column 'text'"):
        convert_schema(text.schema, "numpy")


def test_row_words_follow_content() -> None:
    words = read_table(POLARS).row_words()
    assert len(set(words.tolist())) == 3
    order = [2, 0, 1]
    np.testing.assert_array_equal(read_table(POLARS[order]).row_words(), words[order])
    np.testing.assert_array_equal(read_table(POLARS.select(sorted(POLARS.columns))).row_words(), words)
    np.testing.assert_array_equal(read_table(POLARS.to_arrow()).row_words(), words)
    zeros = read_table(np.array([[0.0], [-0.0]])).row_words()
    assert zeros[0] == zeros[1]


def test_reference_row_is_mean_and_mode() -> None:
    frame = pd.DataFrame(
        {
            "n": [1.0, np.nan, 4.0, 4.0],
            "empty": [np.nan] * 4,
            "s": ["b", None, None, "b"],
            "c": pd.Categorical(["x", "y", "y", "x"]),
            "flag": [True, False, True, True],
            "code": [3, 1, 1, 2],
        }
    )
    table = read_table(frame, categorical=["code"])
    row = write_table(reference_row(table), table.schema).iloc[0]
    assert row["n"] == 3
    assert np.isnan(row["empty"])
    assert (row["s"], row["c"], row["flag"], row["code"]) == ("b", "x", True, 1)
    with pytest.raises(InputError, match="reference table has no rows"):
        reference_row(read_table(frame[:0]))


@pytest.mark.parametrize("rows", [pd.DataFrame([{"a": None, "b": None}]), pl.DataFrame([{"a": None, "b": None}]),
                                  pd.DataFrame([{"a": np.nan, "b": np.nan}])])  # fmt: skip
def test_a_column_of_nothing_but_missing_values_fits_any_column(rows: Any) -> None:
    """A single row from JSON has no dtype for what it lacks."""
    for known in (pd.DataFrame({"a": [1, 2], "b": ["u", "v"]}), pl.DataFrame({"a": [1, 2], "b": ["u", "v"]})):
        table = read_table(rows, schema=read_table(known).schema)
        back = write_table(table.matrix, table.schema)
        assert pd.isna(back["a"][0])
        assert pd.isna(back["b"][0])
        assert back["b"].dtype == known["b"].dtype


KNOWN = read_table(pd.DataFrame({"a": [1.0], "b": ["u"]})).schema


@pytest.mark.parametrize(
    ("data", "schema", "message"),
    [
        (np.ones(3), None, r"two axes .* got shape \(3,\); for a single row use row.reshape\(1, -1\)"),
        (np.ones((2, 2, 2)), None, r"got shape \(2, 2, 2\)"),
        (np.array([["a"]]), None, "dtype <U1; give numbers, or a pandas or polars frame"),
        (np.array([[1, "a"]], dtype=object), None, "array of dtype object"),
        (np.ones((1, 1), dtype=complex), None, "array of dtype complex128"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), None, "array of dtype datetime64"),
        ([[1, 2], [3]], None, "rows of one length"),
        (np.array([[1.0, np.inf]]), None, r"infinite values: column 'x1', row 0 \(1 in all\)"),
        (pd.DataFrame({"a": [1, -np.inf]}), None, "infinite values: column 'a', row 1"),
        (np.array([[2**60]]), None, r"column 'x0' .* whole numbers beyond 2\*\*53"),
        (pl.DataFrame({"id": [2**60]}), None, r"column 'id' .* whole numbers beyond 2\*\*53"),
        (np.ones((3, 0)), None, "has no columns"),
        (pd.DataFrame(index=[1, 2]), None, "has no columns"),
        ({"a": 1}, None, r"is a dict; give a frame"),
        (3, None, r"is a builtins.int; expected a NumPy array"),
        ("file.csv", None, "is a builtins.str; expected"),
        (None, None, "NoneType; expected"),
        (pd.Series([1.0]), None, r"Series; expected .*a single row: X.iloc\[\[0\]\]"),
        (pl.LazyFrame({"a": [1]}), None, r"LazyFrame; expected .* X.collect\(\)"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), None, "columns of the same name"),
        (pd.DataFrame([[1, 2]], columns=[0, "0"]), None, "columns of the same name: '0'"),
        (pd.DataFrame({"d": [datetime.datetime(2020, 1, 1)]}), None, "column 'd' .*dates: days since a start"),
        (pl.DataFrame({"d": [datetime.date(2020, 1, 1)]}), None, "column 'd' of the table has dtype Date"),
        (pd.DataFrame({"d": [datetime.date(2020, 1, 1)]}), None, "column 'd' .*date"),
        (pd.DataFrame({"l": [[1], [2]]}), None, "column 'l' of the table holds"),
        (pl.DataFrame({"l": [[1], [2]]}), None, "column 'l' of the table has dtype List"),
        (pd.DataFrame({"a": [1.0]}), KNOWN, "it lacks 'b'. Expected: 'a', 'b'"),
        (pd.DataFrame({"a": [1.0], "b": ["u"], "z": [0]}), KNOWN, "it has the unknown 'z'"),
        (pd.DataFrame({"a": ["x"], "b": ["u"]}), KNOWN, "column 'a' .* expected numbers"),
        (pd.DataFrame({"a": [1.0], "b": [3]}), KNOWN, "column 'b' .* holds categories like 'u'"),
        (np.ones((1, 2)), KNOWN, "array of numbers, but these columns hold categories: 'b'; give a frame"),
        (np.ones((1, 3)), KNOWN, "has 3 columns, expected 2: 'a', 'b'"),
        (pl.DataFrame({"a": [1.0]}), read_table(np.ones((1, 2))).schema, "has 1 columns, expected 2"),
    ],
)
def test_what_cannot_be_read_is_explained(data: Any, schema: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(data, schema=schema)


def test_unknown_categorical_columns_are_refused() -> None:
    with pytest.raises(InputError, match="has no column 'z'; it has 'a'"):
        read_table(pd.DataFrame({"a": [1]}), categorical=["z"])
    with pytest.raises(InputError, match="has no column number 3; it has 2 columns"):
        read_table(np.ones((1, 2)), categorical=[3])
    assert read_table(np.ones((1, 2)), categorical=[1]).schema.columns[1].categorical


def _chunks_with_their_own_dictionaries(values: list[str | None]) -> pa.Table:
    """Dictionary columns whose chunks list other values in another order, also some that no row has."""
    chunks = []
    for start in (0, len(values) // 2):
        part = values[start : start + len(values) // 2]
        pool = ["never", *sorted({v for v in part if v is not None}, reverse=start > 0)]
        codes = pa.array([None if v is None else pool.index(v) for v in part], pa.int16())
        chunks.append(pa.DictionaryArray.from_arrays(codes, pa.array(pool)))
    return pa.table({"c": pa.chunked_array(chunks)})


@pytest.mark.parametrize(
    "make",
    [
        lambda values: pd.DataFrame({"c": pd.Series(values, dtype=object)}),
        lambda values: pd.DataFrame({"c": pd.Categorical(values, categories=["d", "c", "b", "a", "never"])}),
        lambda values: pl.DataFrame({"c": values}),
        lambda values: pl.DataFrame({"c": pl.Series(values, dtype=pl.Enum(["d", "c", "never", "b", "a"]))}),
        lambda values: pa.table({"c": pa.chunked_array([values[:3], values[3:]])}),
        _chunks_with_their_own_dictionaries,
    ],
    ids=["object", "category", "text of polars", "enum", "text of Arrow", "dictionary"],
)
@pytest.mark.parametrize("known", [(), ("c", "z"), (None, "b")])
def test_codes_are_known_ones_first_then_by_appearance(make: Any, known: tuple[Any, ...]) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        pool: list[str | None] = ["a", "b", "c", "d", None]
        drawn = [pool[i] for i in rng.integers(0, 5, 12)]
        table = make(drawn)
        values = list(known)
        for value in drawn:
            if value not in values:
                values.append(value)
        frame = read_table(table).schema
        schema = Schema((replace(frame.columns[0], values=known),), frame.frame)
        found = read_table(table, schema=schema)
        assert found.schema.columns[0].values == tuple(values)
        assert found.matrix[:, 0].tolist() == [values.index(value) for value in drawn]


def test_an_error_about_a_row_can_count_from_elsewhere() -> None:
    with pytest.raises(RowError, match="column 'a', row 1 ") as caught:
        read_table(pd.DataFrame({"a": [0.0, np.inf]}))
    assert "row 101 " in str(caught.value.counted_from(100))
    assert str(RowError("only words")) == "only words"


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["a", "b"])])
def test_an_empty_polars_column_of_text(kind: Any) -> None:
    known = read_table(pl.DataFrame({"c": pl.Series(["a", "b"], dtype=kind)}))
    empty = pl.DataFrame({"c": pl.Series([], dtype=kind)})
    assert read_table(empty).matrix.shape == (0, 1)
    assert read_table(empty, schema=known.schema).schema.columns[0].values == ("a", "b")


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32()])
def test_dictionaries_as_large_as_their_codes_reach(kind: Any, chunks: int) -> None:
    """128 values fill int8; a missing value, and what other chunks hold, come on top."""
    size = 2 ** (7 if kind == pa.int8() else 8)
    codes = pa.array([*range(size), None, 0], kind)
    parts = [pa.DictionaryArray.from_arrays(codes, [f"{chunk}-{i}" for i in range(size)]) for chunk in range(chunks)]
    found = read_table(pa.table({"c": pa.chunked_array(parts)}))
    expected = [value for part in parts for value in part.to_pylist()]
    values = found.schema.columns[0].values
    assert [values[int(code)] for code in found.matrix[:, 0]] == expected
    assert values == tuple(dict.fromkeys(expected))


def test_arrow_numbers_that_would_be_rounded() -> None:
    with pytest.raises(InputError, match=r"'c'.*beyond 2\*\*53"):
        read_table(pa.table({"c": [1, 2**53 + 1]}))
