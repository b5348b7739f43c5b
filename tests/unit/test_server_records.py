"""JSON records to encoded rows: what is taken, what is refused, and that no value is repeated."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cortx.errors import InputError
from cortx.images import ImageSchema, read_images
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.records import ImageReader, RecordReader, Rows, read_outputs
from cortx.tables import read_table, write_table

TABLE = pd.DataFrame(
    {
        "age": [30, 41, 52],
        "height": [1.7, np.nan, 1.8],
        "job": ["cook", None, "smith"],
        "member": [True, False, True],
        "size": pd.Categorical(["small", "large", "small"], categories=["small", "large", "huge"]),
        "zone": [1, 2, 1],
    }
)


def make_reader(unseen: str = "error", frame: Any = TABLE, categorical: tuple[str, ...] = ("zone",)) -> RecordReader:
    table = read_table(frame, categorical=categorical)
    columns = table.schema.columns
    known = [
        frozenset(np.unique(table.matrix[:, j]).tolist()) if column.categorical else frozenset[float]()
        for j, column in enumerate(columns)
    ]
    missing = frozenset(np.flatnonzero(np.isnan(table.matrix).any(axis=0)).tolist())
    return RecordReader(table.schema, known, missing, unseen)


def records() -> list[dict[str, object]]:
    return [
        {"age": 30, "height": 1.7, "job": "cook", "member": True, "size": "small", "zone": 1},
        {"age": 41, "height": None, "job": None, "member": False, "size": "large", "zone": 2},
        {"zone": 1, "size": "small", "member": True, "job": "smith", "height": 1.8, "age": 52},
    ]


def test_records_are_encoded_as_the_frame_is() -> None:
    reader = make_reader()
    rows = reader.read(records())
    joined = reader.join([rows])
    np.testing.assert_array_equal(joined.matrix, read_table(TABLE, schema=reader.schema).matrix)
    pd.testing.assert_frame_equal(write_table(joined.matrix, joined.schema), TABLE)
    assert [reader.decode(row) for row in joined.matrix] == [
        {name: record[name] for name in reader.names} for record in records()
    ]
    lists = [[record[name] for name in reader.names] for record in records()]
    np.testing.assert_array_equal(reader.read(lists).numbers, rows.numbers)
    columns = [[record[name] for record in records()] for name in reader.names]
    np.testing.assert_array_equal(reader.from_columns(columns).numbers, rows.numbers)


def test_rows_that_were_read_are_taken_as_they_are() -> None:
    table = read_table(TABLE)
    assert read_table(table, schema=table.schema) is table
    with pytest.raises(InputError, match="another schema"):
        read_table(table, schema=read_table(TABLE[["job", "age"]]).schema)
    with pytest.raises(InputError, match="another schema"):
        read_table(read_table(TABLE[::-1]), schema=table.schema)  # the same names, but other codes


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("age", "secret", "must be a number, got text"),
        ("age", True, "must be a number"),
        ("age", None, "no training row missed it"),
        ("age", 2**60, "2**53"),
        ("age", 3.5, "must be a whole number"),
        ("zone", 1.5, "must be a whole number"),
        ("age", [1], "got a list"),
        ("height", {"a": 1}, "got an object"),
        ("job", "secret", "never saw; known are 'cook', 'smith'"),
        ("job", 1, "never saw"),
        ("job", ["cook"], "got a list"),
        ("member", "secret", "must be true or false"),
        ("member", 3, "never saw; known are False, True"),
        ("size", "huge", "never saw"),
        ("zone", 3, "never saw; known are 1, 2"),
    ],
)
def test_refusals_name_the_column_and_no_value(column: str, value: object, words: str) -> None:
    bad = records()
    bad[1][column] = value
    with pytest.raises(HttpError) as caught:
        make_reader().read(bad)
    assert caught.value.status == 400
    assert f"records[1]: column '{column}'" in caught.value.text
    assert words in caught.value.text
    assert "secret" not in caught.value.text


@pytest.mark.parametrize("bad", [None, [], {}, "text", [1], [None], [{}], [{"age": 1}], [[1, 2]]])
def test_what_is_no_record_is_refused(bad: object) -> None:
    with pytest.raises(HttpError) as caught:
        make_reader().read(bad)
    assert caught.value.status == 400


def test_unknown_and_lacking_columns_are_named() -> None:
    more, less = records()[0] | {"pet": "cat"}, records()[0]
    del less["job"]
    with pytest.raises(HttpError, match="unknown column 'pet'"):
        make_reader().read([more])
    with pytest.raises(HttpError, match="lacks the column 'job'"):
        make_reader().read([less])
    with pytest.raises(HttpError, match="lacks the columns 'age', 'height', 'job'"):
        make_reader().read([{}])


def test_new_categories_of_several_requests_keep_apart() -> None:
    reader = make_reader("ignore")
    jobs = [["baker", "cook"], ["tailor", "baker"], ["cook", "tailor"]]
    parts = [reader.read([records()[0] | {"job": job} for job in pair]) for pair in jobs]
    joined = reader.join(parts)
    assert write_table(joined.matrix, joined.schema)["job"].tolist() == [job for pair in jobs for job in pair]
    # A dtype that lists its categories cannot be given others: they are refused before a batch.
    assert reader.join([reader.read([records()[0] | {"size": "huge"}])]).matrix.shape == (1, 6)
    with pytest.raises(HttpError, match="'size'"):
        reader.read([records()[0] | {"size": "tiny"}])


NARROW = pd.DataFrame(
    {
        "small": np.array([1, 2], dtype=np.int8),
        "count": np.array([1, 2], dtype=np.uint16),
        "maybe": pd.array([1, None], dtype="Int64"),
        "plain": [1.5, 2.5],
    }
)


def test_a_neighbour_does_not_decide_what_the_model_sees() -> None:
    reader = make_reader("ignore", NARROW, ())
    good = [[-128, 0, 7, 3], [127, 65_535.0, None, 0.5]]
    joined = reader.join([reader.read([row]) for row in good])
    assert write_table(joined.matrix, joined.schema).dtypes.tolist() == NARROW.dtypes.tolist()
    for column, values in enumerate([(128, -129, 1.5, 1e300), (-1, 65_536, 0.5), (2**53 + 2, 0.25)]):
        for value in values:
            row = [1, 1, 1, 1.5]
            row[column] = value
            with pytest.raises(HttpError, match="must be a whole number"):
                reader.read([row])
    assert make_reader("ignore").read([records()[0] | {"zone": 3}]).numbers[0][-1] == 3  # new, but whole
    for name, value in (("zone", 3.5), ("member", 2)):  # a category of numbers, a boolean
        with pytest.raises(HttpError, match=name):
            make_reader("ignore").read([records()[0] | {name: value}])


def test_text_is_not_whole_because_its_type_has_int_in_its_name() -> None:
    reader = make_reader(
        frame=pl.DataFrame({"taste": pl.Series(["mint", "tea"], dtype=pl.Enum(["mint", "tea"]))}), categorical=()
    )
    assert not reader.columns[0].whole
    coded = pa.table({"taste": pa.array(["a", "b"]).dictionary_encode()})
    assert not make_reader(frame=coded, categorical=()).columns[0].whole


MIXED = pd.DataFrame(
    {
        "text": pd.Series(["1", "a", "b"], dtype=object),
        "whole": pd.Series([1, 2, 3], dtype=object),
        "real": pd.Series([1.0, 2.5, 3.0], dtype=object),
        "truth": pd.Series([True, False, None], dtype=object),
        "level": pd.Categorical([1, 2, 1], categories=[1, 2, 3]),
    }
)


@pytest.mark.parametrize("unseen", ["error", "ignore"])
def test_categories_keep_their_types(unseen: str) -> None:
    reader = make_reader(unseen, MIXED, ())
    good: list[Any] = ["1", 1, 1, True, 1]
    for j, values in enumerate(
        [(1, 1.0, True), ("1", True, 1.5), ("1", True), (1, 0, 0.0, "True"), ("1", True, 7, 3.5)]
    ):
        for value in values:
            row = good.copy()
            row[j] = value
            with pytest.raises(HttpError) as caught:
                reader.read([row])
            assert caught.value.status == 400
            assert repr(reader.names[j]) in caught.value.text
    rows = reader.join([reader.read([good, ["a", 2.0, 1.0, None, 2.0]])])
    table = write_table(rows.matrix, rows.schema)
    assert [(type(value), value) for value in table["whole"]] == [(int, 1), (int, 2)]
    assert [(type(value), value) for value in table["real"]] == [(float, 1.0), (float, 1.0)]
    assert table["truth"].tolist() == [True, None]
    assert rows.schema is reader.schema


def test_new_categories_get_the_types_of_the_known() -> None:
    reader = make_reader("ignore", MIXED, ())
    rows = reader.join([reader.read([["new", 4.0, 4, False, 3]]), reader.read([["a", 4, 4.0, False, 3.0]])])
    table = write_table(rows.matrix, rows.schema)
    assert table["text"].tolist() == ["new", "a"]
    assert [(type(value), value) for value in table["whole"]] == [(int, 4), (int, 4)]
    assert [(type(value), value) for value in table["real"]] == [(float, 4.0), (float, 4.0)]
    assert table["level"].tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [pl.String(), pl.Categorical()])
def test_polars_takes_new_text_and_nothing_else(dtype: Any) -> None:
    reader = make_reader("ignore", pl.DataFrame({"job": pl.Series(["cook", "smith"], dtype=dtype)}), ())
    rows = reader.join([reader.read([["baker"], ["cook"]])])
    assert write_table(rows.matrix, rows.schema)["job"].to_list() == ["baker", "cook"]
    for value in (7, 1.5, True):
        with pytest.raises(HttpError, match="must be text"):
            reader.read([[value]])


def steps_of(call: Any) -> int:
    """How many steps Python's interpreter takes."""
    count = 0

    def counted(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return counted

    before = sys.gettrace()
    sys.settrace(counted)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_many_new_categories_are_found_without_a_search() -> None:
    reader = make_reader("ignore", pd.DataFrame({"job": [f"known {i}" for i in range(2_000)]}), ())
    jobs = [f"new {i}" for i in range(300)]
    parts: list[Rows] = []
    assert (
        steps_of(lambda: parts.extend(reader.read([[job] for job in order]) for order in (jobs, jobs[::-1]))) < 400_000
    )
    assert steps_of(lambda: reader.join(parts)) < 400_000
    joined = reader.join(parts)
    assert write_table(joined.matrix, joined.schema)["job"].tolist() == jobs + jobs[::-1]
    assert len(joined.schema.columns[0].values) == 2_300


@pytest.mark.parametrize("channels", ["first", "last"])
def test_images_are_read_as_the_library_reads_bytes(channels: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(2, 4, 5, 3)).astype(np.uint8)
    axes = np.moveaxis(pixels, -1, 1) if channels == "first" else pixels
    schema = ImageSchema(axes.shape[1:], channels, (-1.0, 1.0))  # type: ignore[arg-type]
    reader = ImageReader(schema)
    rows = reader.join([reader.read(pixels.tolist())])
    np.testing.assert_array_equal(rows.reshape(2, -1), read_images(axes, schema=schema).matrix)
    for bad in (pixels[0].tolist(), [[1, 2], [3]], [[["a"]]], (pixels[:1].astype(int) - 300).tolist(), [], 7):
        with pytest.raises(HttpError):
            reader.read(bad)


def test_images_with_one_channel_may_leave_its_axis_out() -> None:
    reader = ImageReader(ImageSchema((2, 3, 1), "last", (0.0, 1.0)))
    flat = [[[1, 2, 3], [4, 5, 6]]]
    deep = [[[[value] for value in row] for row in image] for image in flat]
    np.testing.assert_array_equal(reader.read(flat).numbers, reader.read(deep).numbers)
    with pytest.raises(HttpError):
        reader.read([[[1, 2, 3], [[4], [5], [6]]]])


@pytest.mark.parametrize("bad", ["x", "1.5", True, None, [1], [], {}, 256, -1, 2**64 - 1, 255.5])
def test_images_hold_numbers_alone(bad: object) -> None:
    reader = ImageReader(ImageSchema((2, 3)))
    reader.read([[[1, 2, 3], [4, 5.5, 6]]])
    with pytest.raises(HttpError) as caught:
        reader.read([[[1, 2, 3], [4, bad, 6]]])
    assert caught.value.status == 400


def peak_of(call: Any) -> int:
    """The bytes that a refused call takes at most."""
    tracemalloc.start()
    try:
        with pytest.raises(HttpError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_body_takes_little_memory() -> None:
    # NumPy would make every number as wide as the longest text.
    image = [[1.5] * 50 for _ in range(50)]
    images = [[*image[:-1], [*image[0][:-1], "x" * 20_000]]]
    reader = ImageReader(ImageSchema((50, 50)))
    assert peak_of(lambda: reader.read(images)) < 2_000_000
    outputs: list[list[Any]] = [[0.5] * 3 for _ in range(1_000)]
    outputs[7][1] = "x" * 20_000
    assert peak_of(lambda: read_outputs(outputs, 1_000, 3)) < 2_000_000


def test_outputs() -> None:
    np.testing.assert_array_equal(read_outputs([0.25, 1], 2, 1), [[0.25], [1.0]])
    np.testing.assert_array_equal(read_outputs([[1, 2]], 1, 2), [[1.0, 2.0]])
    wrong: list[Any] = [
        None, "a", {}, [1], [[1], [2, 3]], [["a"], ["b"]], [[True], [False]], [[None], [1]], [["1.5"], [1]],
        [True, 1.0], [1, [1]], [[], []], [[1e31], [0]], [[0], [-1e39]], [[[1]], [[1]]],
    ]  # fmt: skip
    for bad in wrong:
        with pytest.raises(HttpError):
            read_outputs(bad, 2, 1)
