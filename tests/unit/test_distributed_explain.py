"""Explaining tables of any size: the same values whatever carries the rows, and what is finished stays finished."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import make_tiny_recipe

import cortx
from cortx.distributed import explain_job
from cortx.distributed.explain_job import slices_of
from cortx.distributed.explaining import OpenExplainer, explain
from cortx.distributed.kernel import ExplainSettings, explain_batches, explained_schema
from cortx.distributed.places import list_files, parquet_files, place, write_whole
from cortx.distributed.source import FrameSource, ParquetSource, open_source
from cortx.distributed.work import Done, Engine, Job, Task, failed
from cortx.errors import ArtifactError, CortxError, InputError, StorageError
from cortx.explained import explained_columns
from cortx.explanation import Explanation
from cortx.interfaces.explain_folder import explain_folder
from cortx.named import load_model_from

COLUMNS = ("age", "count", "flag", "colour", "size")
MODULE = """
import numpy as np

def model(frame):
    colour = frame["colour"].map({"red": 1.0, "green": -1.0}).fillna(0.5).to_numpy(dtype=float)
    age, flag = frame["age"].to_numpy(dtype=float), frame["flag"].to_numpy(dtype=float)
    return np.tanh(age * colour) + flag * frame["count"].to_numpy(dtype=float) + (frame["size"] == "L").to_numpy()

def classes(frame):
    first = 1 / (1 + np.exp(-model(frame)))
    return np.stack([first / 2, first / 2, 1 - first], axis=1)
"""


class HereEngine:
    """The simplest engine: tasks one after the other, in this process."""

    name = "here"
    workers = 1

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        work = job.open("cpu")
        for task in tasks:
            self.tasks.append(task)
            try:
                done = work(task)
            except Exception as error:
                raise failed(task, error) from error
            yield done


class BackwardsEngine(HereEngine):
    """Finishes the last task first."""

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        return super().run(job, list(tasks)[::-1])


def make_rows(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(size=count),
            "count": rng.integers(0, 9, count),
            "flag": rng.random(count) < 0.4,
            "colour": pd.Series(rng.choice(["red", "green", "blue"], count), dtype="str"),
            "size": pd.Categorical(rng.choice(["S", "M", "L"], count)),
        }
    )


@dataclass(frozen=True)
class World:
    """A saved explainer with its model, and a table to explain."""

    folder: Path
    explainer: cortx.CoRTX
    model: Any
    rows: pd.DataFrame

    @property
    def saved(self) -> Path:
        return self.folder / "one.cortx"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    (folder / "scoring_of_rows.py").write_text(MODULE)
    model, classes = (load_model_from(str(folder), f"scoring_of_rows:{name}") for name in ("model", "classes"))
    rows = make_rows(300, 0)
    game = cortx.Game(model, reference=rows)
    explainer = cortx.CoRTX(make_tiny_recipe(10)).fit(game, rows, n_labels=60)
    explainer.calibrate(make_rows(80, 1))
    explainer.save(folder / "one.cortx")
    several = cortx.CoRTX(make_tiny_recipe(10), seed=3).fit(
        cortx.Game(classes, reference=rows, target="all"), rows, n_labels=40
    )
    several.save(folder / "three.cortx")
    return World(folder, explainer, model, make_rows(1_000, 2))


def more(rows: pd.DataFrame) -> pa.Table:
    """The rows as Arrow, with columns that no model takes, of many types, and the model's columns among them."""
    count = len(rows)
    table = pa.Table.from_pandas(rows, preserve_index=False)
    extra = {
        "id": pa.array(np.arange(count), pa.int64()),
        "name": pa.array([f"n{i}" if i % 3 else None for i in range(count)], pa.large_string()),
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(count)], pa.decimal128(12, 2)),
        "day": pa.array([dt.date(2024, 1, 1) + dt.timedelta(i) for i in range(count)], pa.date32()),
        "at": pa.array(np.arange(count) * 1_000, pa.timestamp("us", tz="UTC")),
        "kind": pa.array(["x", "y"] * (count // 2) + ["x"] * (count % 2)).dictionary_encode(),
        "list": pa.array([[i, i + 1] for i in range(count)]),
    }
    for position, (name, column) in enumerate(extra.items()):
        table = table.add_column(position, pa.field(name, column.type, metadata={b"told": name.encode()}), column)
    return table.replace_schema_metadata({b"owner": b"me"} | (table.schema.metadata or {}))


def write_folder(folder: Path, table: pa.Table, cuts: list[int], row_group_size: int = 100) -> list[str]:
    """Parts of a table as files, some in folders named as Hive does, with what Spark leaves beside."""
    names = [
        f"part-{i:03d}.parquet" if i % 2 else f"year={2020 + i}/part-{i:03d}.parquet" for i in range(len(cuts) + 1)
    ]
    ends = [0, *cuts, len(table)]
    for name, start, stop in zip(names, ends[:-1], ends[1:], strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(start, stop - start), folder / name, row_group_size=row_group_size)
    (folder / "_SUCCESS").touch()
    (folder / ".part-000.parquet.crc").write_bytes(b"crc")
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "0.parquet").write_bytes(b"no data")
    return names


def read_back(folder: Path) -> pa.Table:
    """All Parquet files in the order of their names, read one by one."""
    _, found = parquet_files(place(folder))
    return pa.concat_tables([pq.ParquetFile(folder / file.relative).read() for file in found])


def attributions(frame: Any) -> np.ndarray:
    return np.stack([np.asarray(frame[f"attribution_{name}"]) for name in COLUMNS], axis=1)


# The kernel --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_rows", [1, 7, 333, 5_000])
def test_kernel_equals_explain(world: World, batch_rows: int) -> None:
    rows = world.rows[: 30 * batch_rows]
    table = more(rows)
    expected = world.explainer.explain(rows, confidence=0.8)
    settings = ExplainSettings(confidence=0.8)
    batches = list(explain_batches(world.explainer, table.to_batches(batch_rows), settings))
    found = pa.Table.from_batches(batches)
    assert found.schema.equals(explained_schema(world.explainer, table.schema, settings), check_metadata=True)
    assert found.select(table.column_names).equals(table, check_metadata=True)
    np.testing.assert_allclose(attributions(found), expected.values, atol=1e-6)
    np.testing.assert_allclose(found["base_value"], expected.base_values)
    np.testing.assert_allclose(found["model_output"], expected.outputs)
    np.testing.assert_allclose(found["error_bound"], expected.error_bound, rtol=1e-5)
    for j, name in enumerate(COLUMNS):
        np.testing.assert_allclose(found[f"lower_{name}"], expected.lower_bounds[:, j], atol=1e-5)
        np.testing.assert_allclose(found[f"upper_{name}"], expected.upper_bounds[:, j], atol=1e-5)
    total = attributions(found).sum(axis=1) + np.asarray(found["base_value"])
    np.testing.assert_allclose(total, world.model(rows), atol=1e-9)


def test_kernel_names_the_strongest(world: World) -> None:
    expected = world.explainer.explain(world.rows)
    batches = explain_batches(world.explainer, more(world.rows).to_batches(100), ExplainSettings(top=2))
    found = pa.Table.from_batches(list(batches)).to_pylist()
    for row, values in zip(found, expected.values, strict=True):
        strongest = sorted(zip(COLUMNS, values, strict=True), key=lambda pair: -abs(pair[1]))
        assert row["value_1"] == pytest.approx(strongest[0][1], abs=1e-6)
        assert row["value_2"] == pytest.approx(strongest[1][1], abs=1e-6)
        assert row["feature_1"] in [name for name, value in strongest if abs(value - strongest[0][1]) < 1e-6]
        assert "feature_3" not in row
        assert "attribution_age" not in row


def test_kernel_of_several_outputs(world: World) -> None:
    explainer = cortx.load(world.folder / "three.cortx")
    names = explainer.fitted.spec.output_names or ("0", "1", "2")
    guessed = explainer.explain(world.rows)
    settings = ExplainSettings()
    found = pa.Table.from_batches(list(explain_batches(explainer, more(world.rows).to_batches(128), settings)))
    assert "model_output:" + names[0] not in found.column_names  # nobody knows it
    for k, output in enumerate(names):
        for j, name in enumerate(COLUMNS):
            np.testing.assert_allclose(found[f"attribution_{name}:{output}"], guessed.values[:, j, k], atol=1e-6)
        np.testing.assert_allclose(found[f"base_value:{output}"], guessed.base_values[:, k])


def test_outputs_may_stand_in_the_table(world: World) -> None:
    bare = cortx.load(world.saved)
    table = more(world.rows).append_column("score", pa.array(world.model(world.rows)))
    settings = ExplainSettings(outputs=("score",))
    found = pa.Table.from_batches(list(explain_batches(bare, table.to_batches(256), settings)))
    np.testing.assert_allclose(attributions(found), world.explainer.explain(world.rows).values, atol=1e-6)
    gap = table.set_column(
        table.column_names.index("score"), "score", pa.array([None if i == 777 else 0.5 for i in range(len(table))])
    )
    with pytest.raises(InputError, match=r"'score'.*row 777"):
        list(explain_batches(bare, gap.to_batches(256), settings))
    text = table.set_column(table.column_names.index("score"), "score", pa.array(["x"] * len(table)))
    with pytest.raises(InputError, match=r"'score'.*string"):
        explained_schema(bare, text.schema, settings)
    with pytest.raises(InputError, match="use one of them"):
        explained_schema(world.explainer, table.schema, settings)


def test_types_of_other_writers(world: World) -> None:
    """The same values in other Arrow types: views, dictionaries, decimals, small floats, no values at all."""
    table = pa.Table.from_pandas(world.rows, preserve_index=False)
    age = pa.array(np.asarray(table["age"]).astype(np.float32))
    others = pa.table(
        {
            "size": table["size"].cast(pa.string()),
            "colour": table["colour"].cast(pa.string()).dictionary_encode(),
            "flag": table["flag"].cast(pa.int8()),
            "count": table["count"].cast(pa.decimal128(21, 2)),
            "age": age.dictionary_encode(),
        }
    )
    expected = world.explainer.explain(world.rows.assign(age=np.asarray(age, dtype=np.float64)))
    for other in (others, others.set_column(0, "size", table["size"].cast(pa.string()).cast(pa.string_view()))):
        found = pa.Table.from_batches(list(explain_batches(world.explainer, other.to_batches(100), ExplainSettings())))
        assert found.select(other.column_names).equals(other)
        np.testing.assert_allclose(attributions(found), expected.values, atol=1e-6)


def test_booleans_that_are_categories() -> None:
    """A pandas column of booleans and None holds categories; in Parquet it is a column of booleans with gaps."""
    rows = pd.DataFrame({"a": np.linspace(-1, 1, 90), "b": pd.Series([True, False, None] * 30, dtype=object)})
    game = cortx.Game(lambda t: t["a"].to_numpy() * (t["b"] == True).to_numpy(), reference=rows)  # noqa: E712
    explainer = cortx.CoRTX(make_tiny_recipe(10)).fit(game, rows, n_labels=20)
    table = pa.Table.from_pandas(rows, preserve_index=False)
    assert pa.types.is_boolean(table.schema.field("b").type)
    found = pa.Table.from_batches(list(explain_batches(explainer, table.to_batches(32), ExplainSettings())))
    values = np.stack([found["attribution_a"], found["attribution_b"]], axis=1)
    np.testing.assert_allclose(values, explainer.explain(rows).values, atol=1e-6)


def test_an_explainer_of_arrays_finds_columns_by_name(table: np.ndarray, game: cortx.Game) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe(10)).fit(game, table, n_labels=20)
    columns = {f"x{j}": table[:, j] for j in (3, 0, 5, 1, 4, 2)}
    rows = pa.table({"id": np.arange(len(table)), **columns})
    found = pa.Table.from_batches(list(explain_batches(explainer, rows.to_batches(100), ExplainSettings())))
    values = np.stack([found[f"attribution_x{j}"] for j in range(6)], axis=1)
    np.testing.assert_allclose(values, explainer.explain(table).values, atol=1e-6)
    with pytest.raises(InputError, match=r"lacks the column 'x0'.*array"):
        explained_schema(explainer, pa.schema([("a", pa.float64())]), ExplainSettings())


def test_refusals_number_rows_from_the_start(world: World) -> None:
    spoilt = more(world.rows).to_pandas()
    spoilt["colour"] = spoilt["colour"].astype(object)
    spoilt.loc[612, "colour"] = "pink"
    table = pa.Table.from_pandas(spoilt, preserve_index=False)
    with pytest.raises(InputError, match=r"'colour'.*'pink' \(first in row 612"):
        list(explain_batches(world.explainer, table.to_batches(100), ExplainSettings()))
    with pytest.raises(InputError, match="first in row 5612"):
        list(explain_batches(world.explainer, table.to_batches(100), ExplainSettings(), first_row=5_000))
    for value, words in ((np.nan, "'age' is missing .* row 930"), (np.inf, "infinite.*'age', row 930")):
        gaps = world.rows.copy()
        gaps.loc[930, "age"] = value
        table = pa.Table.from_pandas(gaps, preserve_index=False)
        with pytest.raises(InputError, match=words):
            list(explain_batches(world.explainer, table.to_batches(100), ExplainSettings()))


def test_schema_refuses_before_anything_is_spent(world: World) -> None:
    schema = more(world.rows).schema
    without = schema.remove(schema.get_field_index("age"))
    with pytest.raises(InputError, match="lacks the column 'age'"):
        explained_schema(world.explainer, without, ExplainSettings())
    with pytest.raises(InputError, match=r"'attribution_age'.*rename or drop"):
        explained_schema(world.explainer, schema.append(pa.field("attribution_age", pa.int8())), ExplainSettings())
    with pytest.raises(InputError, match="'age' has the type string"):
        explained_schema(world.explainer, without.append(pa.field("age", pa.string())), ExplainSettings())
    with pytest.raises(InputError, match="'age' has the type timestamp"):
        explained_schema(world.explainer, without.append(pa.field("age", pa.timestamp("s"))), ExplainSettings())
    with pytest.raises(InputError, match="add up to the model's output"):
        explained_schema(cortx.load(world.saved), schema, ExplainSettings(confidence=0.8))
    with pytest.raises(CortxError, match=r"0\.999"):
        explained_schema(world.explainer, schema, ExplainSettings(confidence=0.999))
    with pytest.raises(InputError, match="top must be at least 1"):
        ExplainSettings(top=0)


# Frames ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [None, HereEngine(), BackwardsEngine()], ids=["none", "here", "backwards"])
@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "batch"])
def test_frames_become_frames_of_their_kind(
    world: World, kind: str, engine: Engine | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.distributed.explaining.TASK_ROWS", 300)
    expected = world.explainer.explain(world.rows)
    pandas = world.rows.assign(thing=[object() for _ in range(len(world.rows))])
    pandas.index = pd.Index(np.arange(len(pandas))[::-1] // 2, name="key")  # with repetitions
    table = more(world.rows).drop_columns(["list"])
    frame = {
        "pandas": pandas,
        "polars": pl.from_arrow(table),
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
    }[kind]
    model = cortx.distributed.work.NamedModel("scoring_of_rows:model", folder=str(world.folder))
    found = explain(world.saved, frame, model=model, engine=engine, batch_rows=77)
    assert type(found) is type(frame)
    np.testing.assert_allclose(attributions(found), expected.values, atol=1e-6)
    np.testing.assert_allclose(np.asarray(found["model_output"]), expected.outputs)
    if kind == "pandas":
        pd.testing.assert_frame_equal(found[pandas.columns], pandas)
    elif kind == "polars":
        assert found.select(frame.columns).equals(frame)
    else:
        assert found.select(table.column_names).equals(frame)


@pytest.mark.parametrize("engine", [None, HereEngine()], ids=["none", "here"])
@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "batch"])
def test_empty_frames_become_empty_frames_of_their_kind(world: World, kind: str, engine: Engine | None) -> None:
    table = more(world.rows).drop_columns(["list"])
    frame = {
        "pandas": world.rows,
        "polars": pl.from_arrow(table),
        "arrow": table,
        "batch": table.combine_chunks().to_batches()[0],
    }[kind]
    some, none = (explain(world.saved, part, engine=engine) for part in (frame[:5], frame[:0]))
    assert type(none) is type(some) is type(frame)
    assert len(none) == 0
    if kind in ("arrow", "batch"):
        assert none.schema.equals(some.schema, check_metadata=True)
    else:
        assert list(none.columns) == list(some.columns)


def test_a_fitted_explainer_explains_frames_here(world: World) -> None:
    found = explain(world.explainer, world.rows)
    np.testing.assert_allclose(attributions(found), world.explainer.explain(world.rows).values, atol=1e-6)
    assert len(explain(world.explainer, world.rows[:0])) == 0
    with pytest.raises(InputError, match="save it"):
        explain(world.explainer, world.rows, engine=HereEngine())
    with pytest.raises(InputError, match="leave out= out"):
        explain(world.explainer, world.rows, world.folder / "out")
    with pytest.raises(InputError, match="lacks the column 'age'"):
        explain(world.explainer, world.rows.drop(columns="age"))
    with pytest.raises(InputError, match="'base_value'"):
        explain(world.explainer, world.rows.assign(base_value=1))
    with pytest.raises(InputError, match=r"'colour'.*one type"):
        explain(world.explainer, world.rows.assign(colour=pd.Series(["red", 1] * 500, dtype=object)))
    with pytest.raises(InputError, match="dict"):
        explain(world.explainer, {"age": [1]})
    with pytest.raises(InputError, match="same name"):
        explain(world.explainer, pd.concat([world.rows, world.rows[["age"]]], axis=1))


# Folders -----------------------------------------------------------------------------------------------------


def run_folder(world: World, source: Any, out: Any, engine: Engine | None = None, **options: Any) -> Any:
    model = cortx.distributed.work.NamedModel("scoring_of_rows:model", folder=str(world.folder))
    return explain(world.saved, source, out, engine=engine or HereEngine(), **({"model": model} | options))


@pytest.mark.parametrize("engine", [HereEngine, BackwardsEngine])
def test_a_folder_becomes_a_folder(
    world: World, tmp_path: Path, engine: type[HereEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.distributed.explain_record.SLICE_ROWS", 200)
    table = more(world.rows)
    names = write_folder(tmp_path / "in", table, [150, 155, 155, 800])  # the fourth is empty
    report = run_folder(world, tmp_path / "in", tmp_path / "out", engine(), batch_rows=64)
    assert (report.rows, report.evaluations, report.finished_before) == (1_000, 1_000, 0)
    assert "1,000 rows" in str(report)
    assert "rows/s" in str(report)
    parts = [
        pq.ParquetFile(tmp_path / "in" / file.relative).read() for file in parquet_files(place(tmp_path / "in"))[1]
    ]
    source, found = pa.concat_tables(parts), read_back(tmp_path / "out")
    assert found.select(source.column_names).equals(source)
    values = world.explainer.explain(source.select(COLUMNS).to_pandas()).values
    np.testing.assert_allclose(attributions(found), values, atol=1e-6)
    made = [file.relative for file in list_files(place(tmp_path / "out"))]
    for name in names:
        mine = [out for out in made if out.startswith(name)]
        rows = [pq.read_metadata(tmp_path / "out" / out).num_rows for out in mine]
        assert sum(rows) == pq.read_metadata(tmp_path / "in" / name).num_rows
        assert max(rows) <= 200
        assert len(mine) == 1 or mine == sorted(mine)
        one = pq.read_schema(tmp_path / "out" / mine[0])
        assert list(one)[: len(table.schema)] == list(pq.read_schema(tmp_path / "in" / name))
        assert one.metadata[b"owner"] == b"me"
        assert one.field("id").metadata[b"told"] == b"id"
    # Other readers take the folder as it is, and the record does not disturb them.
    assert len(pd.read_parquet(tmp_path / "out")) == 1_000
    assert not [file for file in list_files(place(tmp_path / "out"), hidden=True) if ".tmp" in file.relative]


def test_a_single_file_and_a_uri(world: World, tmp_path: Path) -> None:
    pq.write_table(more(world.rows), tmp_path / "table.parquet")
    run_folder(world, tmp_path / "table.parquet", tmp_path / "a")
    run_folder(world, (tmp_path / "table.parquet").as_uri(), (tmp_path / "b").as_uri())
    a, b = (pq.read_table(tmp_path / name / "table.parquet") for name in "ab")
    assert a.equals(b)
    assert len(a) == 1_000


def test_a_file_system_that_is_not_this_machine(world: World) -> None:
    """pyarrow's file system in memory stands for object stores: no path of it is one of ours."""
    source, out = place("mock:///in"), place("mock:///out")
    for name in ("a", "b"):
        write_whole(source / f"{name}.parquet", lambda stream: pq.write_table(more(world.rows), stream))
    report = run_folder(world, source, "mock:///out")
    assert (report.rows, report.files) == (2_000, 2)
    made = pa.Table.from_batches(list(ParquetSource(out).batches()))
    np.testing.assert_allclose(made["model_output"], np.tile(world.model(world.rows), 2))
    assert [file.relative for file in list_files(out, hidden=True)] == ["_explained.json", "a.parquet", "b.parquet"]


def test_the_command(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "in", more(world.rows), [500])
    explain_folder(world.saved, tmp_path / "in", tmp_path / "out", top=2, engine="local", workers=0)
    said = capsys.readouterr().err
    assert "Explained 1,000 rows" in said
    assert "guessed" in said
    assert {"id", "feature_1", "value_2"} < set(read_back(tmp_path / "out").column_names)
    explain_folder(world.saved, tmp_path / "in", tmp_path / "out", top=2, workers=0)
    assert "Nothing to do: all 2 files" in capsys.readouterr().err
    with pytest.raises(InputError, match="use one of them"):
        explain_folder(world.saved, tmp_path / "in", tmp_path / "x", model="a:b", outputs=["id"])


def test_a_second_run_goes_on(world: World, tmp_path: Path) -> None:
    names = write_folder(tmp_path / "in", more(world.rows), [300, 600])
    run_folder(world, tmp_path / "in", tmp_path / "out")
    whole = read_back(tmp_path / "out")
    (tmp_path / "out" / names[1]).unlink()
    (killed, running) = (tmp_path / "out" / f".tmp-{name}-half.parquet" for name in ("12345678", "87654321"))
    killed.write_bytes(b"PAR1")
    running.write_bytes(b"PAR1")
    os.utime(killed, (time.time() - 4_000,) * 2)
    engine = HereEngine()
    report = run_folder(world, tmp_path / "in", tmp_path / "out", engine)
    assert (report.files, report.rows, report.finished_before) == (1, 300, 2)
    assert [task.name for task in engine.tasks] == [f"{tmp_path / 'in' / names[1]}, rows 0 to 299"]
    assert read_back(tmp_path / "out").equals(whole)
    assert not killed.exists()
    assert running.exists()  # somebody may be writing it
    assert "Nothing to do" in str(run_folder(world, tmp_path / "in", tmp_path / "out"))
    # A table that has grown is explained where it has.
    pq.write_table(more(make_rows(50, 9)), tmp_path / "in" / "zz.parquet")
    assert run_folder(world, tmp_path / "in", tmp_path / "out").rows == 50


def test_another_run_is_refused(world: World, tmp_path: Path) -> None:
    names = write_folder(tmp_path / "in", more(world.rows), [300, 600])
    run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)
    before = read_back(tmp_path / "out")
    for options, words in (
        ({"confidence": 0.7}, "confidence=0.8, not 0.7"),
        ({"confidence": 0.8, "top": 2}, "top=None, not 2"),
        ({"confidence": 0.8, "model": None, "outputs": "id"}, "with the model"),
    ):
        with pytest.raises(InputError, match=words):
            run_folder(world, tmp_path / "in", tmp_path / "out", **options)
    with pytest.raises(InputError, match="by another explainer"):
        explain(world.folder / "three.cortx", tmp_path / "in", tmp_path / "out", engine=HereEngine())
    pq.write_table(more(make_rows(300, 9)), tmp_path / "in" / names[1])
    with pytest.raises(InputError, match=f"{names[1]} has changed"):
        run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)
    (tmp_path / "in" / names[1]).unlink()
    with pytest.raises(InputError, match=f"{names[1]} is not in the table any more"):
        run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)
    assert read_back(tmp_path / "out").equals(before)
    # A changed file of which nothing is there is no contradiction.
    (tmp_path / "out" / names[1]).unlink()
    pq.write_table(more(make_rows(40, 9)), tmp_path / "in" / names[1])
    assert run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8).rows == 40
    record = json.loads((tmp_path / "out" / "_explained.json").read_text())
    damaged = [{key: value} for key in ("explainer", "settings", "files", "slice_rows") for value in (None, [], "x")]
    damaged += [{"explainer": {"folder": "x"}}, {"files": {names[0]: 300}}]
    for text in ("{", "[]", "3", '{"format": "cortx-explained"}', *(json.dumps(record | part) for part in damaged)):
        (tmp_path / "out" / "_explained.json").write_text(text)
        with pytest.raises(StorageError, match=r"_explained\.json is damaged"):
            run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)
    (tmp_path / "out" / "_explained.json").write_text('{"format": "another"}')
    with pytest.raises(StorageError, match="not a record"):
        run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)
    (tmp_path / "out" / "_explained.json").unlink()
    with pytest.raises(InputError, match="not made by cortx"):
        run_folder(world, tmp_path / "in", tmp_path / "out", confidence=0.8)


def test_a_changed_file_without_an_ending_is_refused(world: World, tmp_path: Path) -> None:
    pq.write_table(more(world.rows), tmp_path / "t.data")
    run_folder(world, tmp_path / "t.data", tmp_path / "out")
    assert "Nothing to do" in str(run_folder(world, tmp_path / "t.data", tmp_path / "out"))
    pq.write_table(more(make_rows(1_000, 9)), tmp_path / "t.data")
    with pytest.raises(InputError, match=r"t\.data has changed .* remove t\.data\.parquet"):
        run_folder(world, tmp_path / "t.data", tmp_path / "out")


@pytest.mark.parametrize("second", ["a.parquet-00000.parquet", "a.parquet-0.parquet", "a.parquet-00009.parquet"])
def test_slices_that_would_meet_are_refused(
    world: World, tmp_path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.distributed.explain_record.SLICE_ROWS", 200)
    (tmp_path / "in").mkdir()
    pq.write_table(more(world.rows), tmp_path / "in" / "a.parquet", row_group_size=100)
    pq.write_table(more(world.rows[:50]), tmp_path / "in" / second)
    if second.startswith("a.parquet-00009"):  # behind the last slice: allowed
        assert run_folder(world, tmp_path / "in", tmp_path / "out").rows == 1_050
        assert read_back(tmp_path / "out")["id"].to_pylist() == [*range(1_000), *range(50)]
        return
    with pytest.raises(InputError, match=f"{second}.*rename"):
        run_folder(world, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_replaced_during_the_run(world: World, tmp_path: Path) -> None:
    names = sorted(write_folder(tmp_path / "in", more(world.rows), [300, 600]))

    class Replacing(HereEngine):
        def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
            pq.write_table(more(make_rows(300, 9)), tmp_path / "in" / names[1], row_group_size=100)
            return super().run(job, tasks)

    with pytest.raises(StorageError, match=rf"{names[1]} was replaced .* run again"):
        run_folder(world, tmp_path / "in", tmp_path / "out", Replacing())
    assert [file.relative for file in list_files(place(tmp_path / "out"))] == [names[0]]
    assert run_folder(world, tmp_path / "in", tmp_path / "out").files == 2


def test_values_that_cannot_be_read_are_no_failure_of_the_disk(world: World, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    score = pa.array([2**53 + 1 if i == 777 else 0 for i in range(1_000)], pa.int64())
    pq.write_table(more(world.rows).append_column("score", score), tmp_path / "in" / "a.parquet", row_group_size=100)
    with pytest.raises(InputError, match=r"'score'.*rows 700 to 799: .*9007199254740993"):
        run_folder(world, tmp_path / "in", tmp_path / "out", batch_rows=100, model=None, outputs="score")
    count = pa.array([2**53 + 1 if i == 777 else 0 for i in range(1_000)], pa.int64())
    table = more(world.rows)
    table = table.set_column(table.column_names.index("count"), "count", count)
    with pytest.raises(InputError, match=r"'count'.*2\*\*53"):
        list(explain_batches(world.explainer, table.to_batches(), ExplainSettings()))


def test_places_that_cannot_be(world: World, tmp_path: Path) -> None:
    write_folder(tmp_path / "in", more(world.rows), [500])
    with pytest.raises(InputError, match="lie in one another"):
        run_folder(world, tmp_path / "in", tmp_path / "in" / "out")
    with pytest.raises(InputError, match="lie in one another"):
        run_folder(world, tmp_path / "in" / "part-001.parquet", tmp_path / "in")
    far = place("mock:///far/in?x=1")
    write_whole(far / "a.parquet", lambda stream: pq.write_table(more(world.rows), stream))
    for out in ("mock:///far/in/out?x=1", "mock:///far/in/out", "mock:///far?x=1"):
        with pytest.raises(InputError, match="lie in one another"):
            run_folder(world, far, out)
    assert run_folder(world, far, "mock:///far/in2?x=1").rows == 1_000
    with pytest.raises(InputError, match="no file or folder"):
        run_folder(world, tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "empty" / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="has no Parquet file"):
        run_folder(world, tmp_path / "empty", tmp_path / "out")
    with pytest.raises(InputError, match="give out="):
        explain(world.saved, tmp_path / "in")
    with pytest.raises(ArtifactError, match="no explainer at"):
        explain(tmp_path / "no.cortx", tmp_path / "in", tmp_path / "out")
    with pytest.raises(StorageError, match="cannot be reached"):
        run_folder(world, "unheard-of://bucket/in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_file_is_named_before_anything_is_spent(world: World, tmp_path: Path) -> None:
    names = write_folder(tmp_path / "in", more(world.rows), [300, 600])
    good = (tmp_path / "in" / names[1]).read_bytes()
    (tmp_path / "in" / names[1]).write_bytes(good[: len(good) // 2])
    with pytest.raises(StorageError, match=names[1]):
        run_folder(world, tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / names[1]).write_bytes(b"")
    with pytest.raises(StorageError, match=names[1]):
        run_folder(world, tmp_path / "in", tmp_path / "out")
    pq.write_table(more(world.rows).drop_columns(["flag"]), tmp_path / "in" / names[1])
    with pytest.raises(InputError, match=f"{names[1]}.*lacks the column 'flag'"):
        run_folder(world, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damage_found_later_keeps_what_is_finished(world: World, tmp_path: Path) -> None:
    names = sorted(write_folder(tmp_path / "in", more(world.rows), [300, 600]))  # in the order of the tasks
    good = (tmp_path / "in" / names[1]).read_bytes()
    offset = pq.read_metadata(tmp_path / "in" / names[1]).row_group(2).column(0).data_page_offset
    bad = bytearray(good)
    bad[offset : offset + 200] = b"\xff" * 200
    (tmp_path / "in" / names[1]).write_bytes(bytes(bad))
    with pytest.raises(StorageError, match=rf"{names[1]}.*rows from \d+ on cannot be read"):
        run_folder(world, tmp_path / "in", tmp_path / "out", batch_rows=100)
    finished = (tmp_path / "out" / names[0]).read_bytes()
    assert sorted(file.relative for file in list_files(place(tmp_path / "out"), hidden=True)) == [
        "_explained.json",
        names[0],
    ]
    (tmp_path / "in" / names[1]).write_bytes(good)
    report = run_folder(world, tmp_path / "in", tmp_path / "out")
    assert (report.finished_before, report.files) == (1, 2)
    assert (tmp_path / "out" / names[0]).read_bytes() == finished
    run_folder(world, tmp_path / "in", tmp_path / "undisturbed")
    assert read_back(tmp_path / "out").equals(read_back(tmp_path / "undisturbed"))


def test_a_refused_row_is_named_with_its_file(world: World, tmp_path: Path) -> None:
    rows = world.rows.copy()
    rows["colour"] = rows["colour"].astype(object)
    rows.loc[777, "colour"] = "pink"
    names = write_folder(tmp_path / "in", more(rows), [300, 600])
    with pytest.raises(InputError, match=rf"{names[2]}, rows 0 to 399: .*'pink' \(first in row 177"):
        run_folder(world, tmp_path / "in", tmp_path / "out", batch_rows=50)


FULL = """
import resource, signal, sys
from tests.unit.test_distributed_explain import HereEngine
from cortx.distributed.explaining import explain
from cortx.errors import StorageError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    explain(*sys.argv[1:4], engine=HereEngine())
except StorageError as error:
    print(error)
    sys.exit(3)
"""


def python(code: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


ROOT = Path(__file__).parents[2]


def write_small_and_large(folder: Path) -> None:
    folder.mkdir()
    table = more(make_rows(30_000, 4))
    pq.write_table(table.slice(0, 300), folder / "a.parquet")
    pq.write_table(table, folder / "b.parquet")


@pytest.mark.slow
def test_a_file_larger_than_is_allowed(world: World, tmp_path: Path) -> None:
    write_small_and_large(tmp_path / "in")
    run = subprocess.run(
        python(FULL, world.saved, tmp_path / "in", tmp_path / "out", 200_000),
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert run.returncode == 3, run.stderr
    assert "b.parquet" in run.stdout
    assert "disk is full" in run.stdout
    assert [file.relative for file in list_files(place(tmp_path / "out"))] == ["a.parquet"]
    report = explain(world.saved, tmp_path / "in", tmp_path / "out", engine=HereEngine())
    assert (report.finished_before, report.rows) == (1, 30_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where this user may make one."""
    (tmp_path / "disk").mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path / "disk"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    yield tmp_path / "disk"
    subprocess.run(["umount", tmp_path / "disk"], check=True)


def test_a_full_disk(world: World, tmp_path: Path, small_disk: Path) -> None:
    write_small_and_large(tmp_path / "in")
    out = place(small_disk / "out")
    with pytest.raises(StorageError, match=r"out/b\.parquet could not be written: the disk is full"):
        explain(world.saved, tmp_path / "in", str(out), engine=HereEngine())
    assert [file.relative for file in list_files(out, hidden=True)] == ["_explained.json", "a.parquet"]
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    report = explain(world.saved, tmp_path / "in", str(out), engine=HereEngine())
    assert (report.finished_before, report.rows) == (1, 30_000)


KILLED = """
import sys
from tests.unit.test_distributed_explain import HereEngine
from cortx.distributed.explaining import explain
explain(*sys.argv[1:4], engine=HereEngine(), batch_rows=500)
"""


@pytest.mark.slow
def test_killed_again_and_again(world: World, tmp_path: Path) -> None:
    """SIGKILL at random moments, as often as it takes: the end is the same, byte for byte."""
    write_folder(tmp_path / "in", more(make_rows(24_000, 5)), list(range(2_000, 24_000, 2_000)), row_group_size=1_000)
    command = python(KILLED, world.saved, tmp_path / "in")
    explain(world.saved, tmp_path / "in", tmp_path / "whole", engine=HereEngine(), batch_rows=500)
    draw, kills, last, out = random.Random(0), 0, -1, place(tmp_path / "out")
    for _ in range(40):
        process = subprocess.Popen([*command, str(tmp_path / "out")], cwd=ROOT)
        while process.poll() is None and len(list_files(out)) <= last:
            time.sleep(0.005)
        time.sleep(draw.random() * 0.2)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        last = len(list_files(out)) + draw.randrange(2, 4)
    assert process.returncode == 0
    assert kills >= 2
    names = [file.relative for file in list_files(place(tmp_path / "whole"))]
    assert [file.relative for file in list_files(out)] == names
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for left in (tmp_path / "out").rglob(".tmp*"):
        os.utime(left, (0, 0))
    assert "Nothing to do" in str(explain(world.saved, tmp_path / "in", tmp_path / "out", engine=HereEngine()))
    assert not [file for file in list_files(out, hidden=True) if ".tmp" in file.relative]


@pytest.mark.slow
def test_two_workers_of_the_local_engine(world: World, tmp_path: Path) -> None:
    from cortx.distributed.local import LocalEngine

    write_folder(tmp_path / "in", more(world.rows), [150, 155, 155, 800])
    run_folder(world, tmp_path / "in", tmp_path / "one")
    report = run_folder(world, tmp_path / "in", tmp_path / "two", LocalEngine(2))
    assert (report.rows, report.evaluations) == (1_000, 1_000)
    one, two = read_back(tmp_path / "one"), read_back(tmp_path / "two")
    assert one.schema.equals(two.schema, check_metadata=True)
    np.testing.assert_allclose(attributions(one), attributions(two), rtol=1e-6, atol=1e-9)
    frame = explain(world.saved, world.rows, engine=LocalEngine(2))
    np.testing.assert_allclose(attributions(frame), cortx.load(world.saved).explain(world.rows).values, atol=1e-6)


# Parts -------------------------------------------------------------------------------------------------------


def test_slices_cover_all_row_groups_in_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(1_000)}), tmp_path / "x.parquet", row_group_size=90)
    (file,) = ParquetSource(tmp_path / "x.parquet").files
    for most in (1, 90, 200, 450, 10_000):
        slices = slices_of(file, most)
        assert [part.groups[0] for part in slices] == [0, *(part.groups[1] for part in slices[:-1])]
        assert slices[-1].groups[1] == len(file.groups)
        assert sum(part.rows for part in slices) == 1_000
        assert [part.first_row for part in slices] == [90 * part.groups[0] for part in slices]
        assert all(part.rows <= max(most, 90) for part in slices)
        assert sorted({part.out for part in slices}) == [part.out for part in slices]


def test_sources_stream_the_same_rows(world: World, tmp_path: Path) -> None:
    table = more(world.rows)
    write_folder(tmp_path / "in", table, [150, 155, 155, 800])
    source = ParquetSource(tmp_path / "in")
    assert (source.n_rows, len(source.files)) == (1_000, 5)
    found = pa.Table.from_batches(list(source.batches(batch_rows=64)))
    in_order = read_back(tmp_path / "in")
    assert found.equals(in_order)
    some = list(source.batches(["colour", "age"], batch_rows=64))
    assert max(map(len, some)) <= 64
    assert pa.Table.from_batches(some).equals(in_order.select(["colour", "age"]))
    for frame in (table, table.to_pandas(), pl.from_arrow(table)):
        opened = open_source(frame)
        assert opened.n_rows == 1_000
        batches = list(opened.batches(["age", "id"], batch_rows=100))
        assert [len(batch) for batch in batches] == [100] * 10
        assert pa.Table.from_batches(batches).to_pydict() == table.select(["age", "id"]).to_pydict()
    assert open_source(source) is source
    assert isinstance(open_source(str(tmp_path / "in")), ParquetSource)
    with pytest.raises(InputError, match="lacks the column 'nothing'"):
        next(source.batches(["nothing"]))
    with pytest.raises(InputError, match="pandas, polars or Arrow"):
        FrameSource(5)


def test_sources_of_files_that_differ(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.5], "y": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": pa.array([2], pa.int32()), "z": [0], "x": [2.5]}), tmp_path / "b.parquet")
    found = pa.Table.from_batches(list(ParquetSource(tmp_path).batches()))
    assert found.to_pydict() == {"x": [1.5, 2.5], "y": [1, 2]}
    pq.write_table(pa.table({"x": [1.5]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c\.parquet lacks the column 'y'"):
        list(ParquetSource(tmp_path).batches())


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    there = place(tmp_path / "deep" / "file.bin")
    write_whole(there, lambda stream: stream.write(b"first"))
    assert there.read_bytes() == b"first"

    def fails(stream: Any) -> None:
        stream.write(b"half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_whole(there, fails)
    assert there.read_bytes() == b"first"
    assert os.listdir(tmp_path / "deep") == ["file.bin"]
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/below"):
        write_whole(place(tmp_path / "file" / "below"), lambda stream: None)


def test_a_file_is_on_the_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may take what was not synced: first the content, then, under its name, the folder."""
    synced, sync = [], os.fsync

    def remember(opened: int) -> None:
        told = os.fstat(opened)
        synced.append((told.st_ino, (tmp_path / "deep" / "file").exists()))
        sync(opened)

    monkeypatch.setattr(os, "fsync", remember)
    write_whole(place(tmp_path / "deep" / "file"), lambda stream: stream.write(b"content"))
    assert synced == [((tmp_path / "deep" / name).stat().st_ino, name == "") for name in ("file", "")]
    write_whole(place("mock:///deep/file"), lambda stream: stream.write(b"content"))
    assert len(synced) == 2


def test_places() -> None:
    assert place("/data/what?.parquet").parent == place("/data")
    assert str(place("/data/what?") / "x") == "/data/what?/x"
    assert place("s3://bucket/a/b.parquet?region=eu").parent == place("s3://bucket/a?region=eu")
    assert (place("s3://bucket/a/?region=eu") / "b").address == "s3://bucket/a/b"
    assert str(place("s3://bucket/a/?region=eu") / "b/c") == "s3://bucket/a/b/c?region=eu"
    assert str(place("relative") / "x") == f"{os.getcwd()}/relative/x"
    assert place("/a/b").parent == place("/a")
    assert (place("/a") / "b/c").parent == place("/a") / "b"
    assert place("file:///a/b") == place("/a/b")
    assert place("/a/b").name == "b"
    with pytest.raises(InputError, match="empty"):
        place("")


def test_an_explainer_is_opened_once(world: World, tmp_path: Path) -> None:
    opened = OpenExplainer.of(world.saved)
    assert opened.load() is opened.load() is OpenExplainer.of(str(world.saved)).load()
    shutil.copytree(world.saved, tmp_path / "x.cortx")
    copy = OpenExplainer.of(tmp_path / "x.cortx")
    first = copy.load()
    manifest = json.loads((tmp_path / "x.cortx" / "manifest.json").read_text())
    (tmp_path / "x.cortx" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="another explainer"):
        copy.load()
    assert OpenExplainer.of(tmp_path / "x.cortx").load() is not first
    with pytest.raises(InputError, match="save it"):
        OpenExplainer.of(world.explainer)  # type: ignore[arg-type]


def test_memory_of_wide_tables_is_bounded(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_job, "NUMBERS_AT_A_TIME", 1_000)
    pq.write_table(more(world.rows), tmp_path / "x.parquet")
    run_folder(world, tmp_path / "x.parquet", tmp_path / "out")
    made = pq.read_metadata(tmp_path / "out" / "x.parquet")
    assert max(made.row_group(g).num_rows * made.num_columns for g in range(made.num_row_groups)) <= 1_000


def frame_of(explanation: Explanation, top: int | None = None) -> pd.DataFrame:
    return pd.DataFrame(explained_columns(explanation, top))


def test_columns_of_explanations() -> None:
    """`cortx explain FILE`: all players by name, or places for the strongest."""
    values = np.array([[0.5, -2.0, 1.0], [0.0, 0.1, -0.2]])
    two = Explanation(
        values=values, base_values=np.array([1.0, 1.0]), feature_names=("a", "b", "c"), outputs=np.array([0.5, 0.9])
    )
    assert list(frame_of(two).columns) == [*(f"attribution_{name}" for name in "abc"), "base_value", "model_output"]
    top = frame_of(two, 2)
    assert list(top.columns) == ["feature_1", "value_1", "feature_2", "value_2", "base_value", "model_output"]
    assert top.values.tolist() == [["b", -2.0, "c", 1.0, 1.0, 0.5], ["c", -0.2, "b", 0.1, 1.0, 0.9]]
    three = Explanation(
        values=np.stack([values, -values], axis=2),
        base_values=np.ones((2, 2)),
        feature_names=("a", "b", "c"),
        output_names=("no", "yes"),
        lower_bounds=np.stack([values, -values], axis=2) - 1,
        upper_bounds=np.stack([values, -values], axis=2) + 1,
        error_bound=np.full((2, 2), 0.25),
        confidence=0.9,
    )
    bounded = frame_of(three, 1)
    assert list(bounded.columns) == [
        f"{name}:{end}"
        for end in ("no", "yes")
        for name in ("feature_1", "value_1", "lower_1", "upper_1", "base_value", "error_bound")
    ]
    assert bounded["value_1:yes"].tolist() == [2.0, 0.2]
    assert bounded["upper_1:yes"].tolist() == [3.0, 1.2]
