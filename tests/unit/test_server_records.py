"""JSON records to encoded rows: what is taken, what is refused, and that no value is repeated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from cortx.errors import InputError
from cortx.images import ImageSchema, read_images
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.records import ImageReader, RecordReader, read_outputs
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


def make_reader(unseen: str = "error") -> RecordReader:
    table = read_table(TABLE, categorical=["zone"])
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


def test_outputs() -> None:
    np.testing.assert_array_equal(read_outputs([0.25, 1], 2, 1), [[0.25], [1.0]])
    np.testing.assert_array_equal(read_outputs([[1, 2]], 1, 2), [[1.0, 2.0]])
    for bad in (None, "a", [1], [[1], [2, 3]], [["a"], ["b"]], [[True], [False]], [[None], [1]]):
        with pytest.raises(HttpError):
            read_outputs(bad, 2, 1)
