"""A folder of Parquet files as a table to learn from: every row once a pass, in the same random order for everybody."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe
from typer.testing import CliRunner

import cortx
from cortx.distributed import labelling
from cortx.distributed.local import LocalEngine
from cortx.distributed.parquet_rows import ParquetRows
from cortx.errors import ArtifactError, InputError, StorageError
from cortx.explainer.label_folder import LabelFolder
from cortx.interfaces.cli import app
from cortx.interfaces.fit_folder import fit_folder
from cortx.training.checkpoint import Checkpoint
from cortx.training.parallel import Processes
from cortx.training.pretrain import PretrainConfig
from cortx.training.row_stream import RowStream, StreamFeed

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")
FILES = {"a.parquet": 1_000, "b/part-0.parquet": 137, "b/part-1.parquet": 900}
N_ROWS = sum(FILES.values())
NAMES = tuple("abcdef")


def make_folder(folder: Path, row_group_size: int = 111) -> Path:
    start = 0
    for name, rows in FILES.items():
        numbers = np.random.default_rng(start).normal(size=(rows, len(NAMES)))
        columns: dict[str, Any] = {
            "id": np.arange(start, start + rows),
            **dict(zip(NAMES, numbers.T, strict=True)),
            "kind": [("x", "y", None)[row % 3] for row in range(rows)],
            "colour": pa.array([(name, "red")[row % 2] for row in range(rows)]).dictionary_encode(),
        }
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns, metadata={"file": name}), folder / name, row_group_size=row_group_size)
        start += rows
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "table")


def ids(batches: Any) -> np.ndarray:
    return np.concatenate([frame["id"].to_numpy() for _, frame in batches])


@pytest.mark.parametrize("size", [3, 64, 500, N_ROWS, N_ROWS + 3])
@pytest.mark.parametrize("buffer_rows", [37, 350, 10_000])
def test_every_pass_has_every_row_once(folder: Path, size: int, buffer_rows: int) -> None:
    rows = ParquetRows(folder, buffer_rows=buffer_rows)
    found = ids(islice(rows.shuffled(size, seed=1, columns=["id"]), 2 * N_ROWS // size + 2))
    for pass_ in range(2):
        assert np.array_equal(np.sort(found[pass_ * N_ROWS : (pass_ + 1) * N_ROWS]), np.arange(N_ROWS))
    assert (found[:N_ROWS] == found[N_ROWS : 2 * N_ROWS]).mean() < 0.2


def test_batches_say_which_pass_they_begin_in(folder: Path) -> None:
    numbers = [pass_ for pass_, _ in islice(ParquetRows(folder).shuffled(100, seed=0), 50)]
    assert numbers == [100 * batch // N_ROWS for batch in range(50)]


@pytest.mark.parametrize("start", [0, 1, 7, 20, 21, 33])
def test_a_stream_that_starts_later_goes_on_where_the_other_was(folder: Path, start: int) -> None:
    rows = ParquetRows(folder, buffer_rows=300)
    straight = list(islice(rows.shuffled(97, seed=3), 45))
    for (pass_, frame), (same_pass, same) in zip(
        straight[start:], rows.shuffled(97, seed=3, start=start), strict=False
    ):
        assert pass_ == same_pass
        assert frame.equals(same)


def test_rows_are_mixed_well(folder: Path) -> None:
    """With a buffer that holds the table, a batch is a random part of it: its mean place is in the middle."""
    found = ids(islice(ParquetRows(folder).shuffled(256, seed=5), 7)).reshape(7, 256)
    spread = N_ROWS / np.sqrt(12 * 256)
    assert (np.abs(found.mean(axis=1) - N_ROWS / 2) < 5 * spread).all()
    assert (found[:, 1:] > found[:, :-1]).mean() == pytest.approx(0.5, abs=0.06)
    other = ids(islice(ParquetRows(folder).shuffled(256, seed=6), 7)).reshape(7, 256)
    assert (other == found).mean() < 0.05


def test_no_more_than_the_buffer_is_read_ahead(folder: Path) -> None:
    rows = ParquetRows(folder, buffer_rows=200)
    order = np.arange(len(rows._groups))
    blocks = [len(block) for block in rows._cut(order, 0, ["id"])]
    assert blocks[:-1] == [200] * (N_ROWS // 200)
    assert sum(blocks) == N_ROWS
    assert max(len(batch) for batch in rows._read(0, ["id"])) <= 200


@pytest.mark.parametrize("count", [1, 500, N_ROWS, 10 * N_ROWS])
def test_a_part_is_random_and_without_repetition(folder: Path, count: int) -> None:
    part = ParquetRows(folder).sample(count, seed=0)
    found = part["id"].to_numpy()
    assert len(np.unique(found)) == len(found) == min(count, N_ROWS)
    assert part.column_names == ["id", *NAMES, "kind", "colour"]
    assert part.equals(ParquetRows(folder, buffer_rows=1).sample(count, seed=0))
    if count == 500:
        assert found.mean() == pytest.approx(N_ROWS / 2, abs=5 * N_ROWS / np.sqrt(12 * 500))
        assert not part.equals(ParquetRows(folder).sample(count, seed=1))


def test_of_many_row_groups_a_part_reads_some(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(1_000)}), tmp_path / "t.parquet", row_group_size=5)
    found = ParquetRows(tmp_path).sample(300, seed=0)["id"].to_numpy()
    assert len(np.unique(found)) == 300
    assert len(np.unique(found // 5)) == 64


@pytest.mark.parametrize("count", [1, 319, 321, 900, 1_000])
def test_a_part_reads_as_many_row_groups_as_it_takes(tmp_path: Path, count: int) -> None:
    pq.write_table(pa.table({"id": np.arange(1_000)}), tmp_path / "t.parquet", row_group_size=5)
    found = ParquetRows(tmp_path).sample(count, seed=0)["id"].to_numpy()
    assert len(np.unique(found)) == len(found) == count
    assert len(np.unique(found // 5)) <= max(64, -(-count // 5))


def test_a_block_is_gone_before_the_next_is_read(tmp_path: Path) -> None:
    """One block of rows is in memory between batches, however many batches a block has, or blocks a batch."""
    n_rows, buffer_rows, columns = 40_000, 8_000, 8
    numbers = np.random.default_rng(0).normal(size=(columns, n_rows))
    names = [f"x{column}" for column in range(columns)]
    pq.write_table(pa.table(dict(zip(names, numbers, strict=True))), tmp_path / "t.parquet", row_group_size=1_000)
    block, before, frame = buffer_rows * columns * 8, pa.total_allocated_bytes(), None
    most = 0
    for _, frame in islice(ParquetRows(tmp_path, buffer_rows=buffer_rows).shuffled(300, seed=0), 200):
        del frame
        most = max(most, pa.total_allocated_bytes() - before)
    assert block < most < 2 * block


def test_columns_are_chosen_and_missing_ones_named(folder: Path, tmp_path: Path) -> None:
    rows = ParquetRows(folder, columns=["c", "id"])
    assert next(rows.shuffled(5, seed=0))[1].column_names == ["c", "id"]
    assert rows.sample(5, seed=0, columns=["a"]).column_names == ["a"]
    with pytest.raises(InputError, match="lacks the column 'nothing'"):
        ParquetRows(folder, columns=["nothing"])
    with pytest.raises(InputError, match="list of columns"):
        ParquetRows(folder, columns="id")
    pq.write_table(pa.table({"a": [1.0]}), folder / "z.parquet")
    with pytest.raises(InputError, match=r"z\.parquet lacks the column 'id'"):
        next(ParquetRows(folder).shuffled(5, seed=0, columns=["id"]))
    pq.write_table(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="has no rows"):
        ParquetRows(tmp_path / "empty.parquet")
    (folder / "b" / "part-9.parquet").write_bytes(b"this is no Parquet file")
    with pytest.raises(StorageError, match=r"part-9\.parquet"):
        ParquetRows(folder)


def test_types_are_those_of_the_first_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1.5, 2.5], pa.float64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([3, 4], pa.int32())}), tmp_path / "b.parquet")
    _, frame = next(ParquetRows(tmp_path).shuffled(4, seed=0))
    assert sorted(frame["x"].to_pylist()) == [1.5, 2.5, 3.0, 4.0]


def test_the_identity_follows_the_content(folder: Path) -> None:
    before = ParquetRows(folder).identity
    assert before == ParquetRows(folder).identity
    assert before != ParquetRows(folder, columns=["id"]).identity
    pq.write_table(pa.table({"id": [1]}), folder / "a.parquet")
    assert before != ParquetRows(folder).identity


# Learning from it -----------------------------------------------------------------------------------------------------


def make_game(folder: Path) -> cortx.Game:
    reference = ParquetRows(folder).sample(200, seed=9, columns=NAMES)
    return cortx.Game(make_model(), reference=reference, output="probability")


def make_feed(
    folder: Path, together: Processes, silent: np.ndarray, rough_pairs: int = 1, spare: Any = None
) -> StreamFeed:
    game = make_game(folder)
    _ = game.base_values
    part = game.rows(ParquetRows(folder).sample(50, seed=0, columns=NAMES))
    schema, spare = part.table.schema, part if spare is None else spare
    network = torch.nn.Module()
    network.device = torch.device("cpu")  # type: ignore[assignment]
    network.active = lambda codes: torch.ones(codes.shape, dtype=torch.bool)  # type: ignore[assignment]
    config = PretrainConfig(batch_size=51, n_positives=3, rough_pairs=rough_pairs)
    stream = ParquetRows(folder, buffer_rows=400)
    return StreamFeed(network, game, stream, schema, silent, spare, config, 0, together)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", [2, 3])
def test_batches_are_the_same_for_any_number_of_processes(folder: Path, world: int) -> None:
    """Put together, the shares are the batch: rows, masked copies, labels and what they cost."""
    nobody, generator = np.zeros(0, dtype=np.uint64), torch.Generator()
    whole = make_feed(folder, Processes(), nobody)
    shares = [make_feed(folder, Processes(rank, world), nobody) for rank in range(world)]
    for step in range(45):  # more than a pass
        wanted = whole.batch(step, generator)
        parts = [feed.batch(step, generator) for feed in shares]
        assert all(part.whole == wanted.whole == 51 for part in parts)
        assert torch.equal(torch.cat([part.anchors for part in parts]), wanted.anchors)
        assert torch.equal(torch.cat([part.positives for part in parts]), wanted.positives)
        assert wanted.labels is not None
        labels = torch.cat([part.labels.labels for part in parts if part.labels is not None])
        torch.testing.assert_close(labels, wanted.labels.labels, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(wanted.labels.labels.sum(dim=1), wanted.labels.total, rtol=1e-4, atol=1e-5)
    # Its own output and base value are one each; a rough label walks two ways through 6 players.
    assert sum(feed.game.evaluations - 1 for feed in shares) == whole.game.evaluations - 1
    assert whole.game.evaluations - 1 <= 45 * 51 * (1 + 10 + 3)


def test_rows_that_must_teach_nothing_are_left_out(folder: Path) -> None:
    every = make_game(folder).rows(ParquetRows(folder).sample(N_ROWS, seed=0, columns=NAMES))
    feed = make_feed(folder, Processes(), every.words[:100], rough_pairs=0)
    batches = [feed.batch(step, torch.Generator()) for step in range(N_ROWS // 51)]
    assert all(batch.labels is None for batch in batches)
    seen = {tuple(row) for batch in batches for row in batch.anchors.tolist()}
    left_out = {tuple(row) for row in every.table.matrix[:100].tolist()}
    assert seen.isdisjoint(left_out)
    assert N_ROWS - 100 - 51 <= len(seen) <= N_ROWS - 100


@pytest.mark.parametrize("world", [1, 3])
def test_where_hardly_any_row_may_teach_spare_ones_do(folder: Path, world: int) -> None:
    """Never those that must not; and every process has something to do, with labels or without."""
    every = make_game(folder).rows(ParquetRows(folder).sample(N_ROWS, seed=0, columns=NAMES))
    spare = every.take(np.arange(9))
    feeds = [make_feed(folder, Processes(rank, world), every.words[9:], 1, spare) for rank in range(world)]
    allowed = {tuple(row) for row in spare.table.matrix.tolist()}
    for step in range(N_ROWS // 51):
        parts = [feed.batch(step, torch.Generator()) for feed in feeds]
        assert all(len(part.anchors) for part in parts)
        assert sum(len(part.anchors) for part in parts) == parts[0].whole <= 9
        assert {tuple(row) for part in parts for row in part.anchors.tolist()} <= allowed


def test_later_passes_draw_anew(folder: Path) -> None:
    feed = make_feed(folder, Processes(), np.zeros(0, dtype=np.uint64))
    first: dict[tuple[float, ...], Any] = {}
    differs = []
    for step in range(2 * N_ROWS // 51):
        batch = feed.batch(step, torch.Generator())
        assert batch.labels is not None
        for row, label in zip(batch.anchors.tolist(), batch.labels.labels, strict=True):
            if tuple(row) in first:
                differs.append(not torch.equal(first[tuple(row)], label))
            first[tuple(row)] = label
    assert np.mean(differs) > 0.9


def test_a_fit_learns_from_a_folder(folder: Path) -> None:
    rows = ParquetRows(folder, buffer_rows=500)
    assert isinstance(rows, RowStream)
    assert not isinstance(np.zeros((3, 2)), RowStream)
    game = make_game(folder)
    labels = cortx.shapley(game, rows.sample(120, seed=4, columns=NAMES))
    recipe = make_tiny_recipe(steps=400, most_rows=300)
    spent = game.evaluations
    explainer = cortx.CoRTX(recipe).fit(game, rows, labels=labels)
    costs, config = explainer.costs_, recipe.pretrain
    assert costs["outputs"]["evaluations"] == 300
    assert costs["total_evaluations"] == labels.evaluations + game.evaluations - spent
    most = config.steps * config.batch_size * (1 + 2 * (len(NAMES) - 1) + config.n_positives)
    assert 0.8 * most < costs["pretraining"]["evaluations"] <= most
    assert explainer.quality_["l2"] < 0.35 * explainer.quality_["label_norm"]
    assert explainer.fitted.profile.rows == 300
    again = cortx.CoRTX(recipe).fit(make_game(folder), rows, labels=labels)
    fresh = rows.sample(50, seed=11, columns=NAMES)
    np.testing.assert_array_equal(again.explain(fresh).values, explainer.explain(fresh).values)


class Listening:
    """A model that keeps the rows it was asked about."""

    def __init__(self) -> None:
        self.network, self.asked = make_model(), set[tuple[float, ...]]()

    def __call__(self, table: Any) -> np.ndarray:
        numbers = np.stack([np.asarray(table[name]) for name in NAMES], axis=1)
        self.asked |= set(map(tuple, numbers.tolist()))
        with torch.inference_mode():
            return self.network(torch.from_numpy(numbers.astype(np.float32)))[:, 0].numpy()


def tuples(table: Any) -> set[tuple[float, ...]]:
    return set(zip(*(table[name].to_pylist() for name in NAMES), strict=True))


@pytest.mark.parametrize("kind", ["stream", "table"])
def test_rows_that_are_left_out_teach_nothing(folder: Path, kind: str) -> None:
    """Nobody asks the model about them, no batch holds them, and no scale knows them."""
    stream, model = ParquetRows(folder, buffer_rows=500), Listening()
    whole = stream.sample(N_ROWS, seed=0, columns=NAMES)
    # Rows far from the others would be seen in any mean.
    far = pc.greater(whole["a"], 0.5)
    others, left_out = whole.filter(pc.invert(far)), whole.filter(far)
    game = cortx.Game(model, reference=whole)
    labels = cortx.shapley(game, others.slice(0, 60))
    kept = cortx.shapley(game, left_out)
    model.asked.clear()
    recipe = make_tiny_recipe(steps=20, most_rows=N_ROWS)
    explainer = cortx.CoRTX(recipe).fit(
        game, stream if kind == "stream" else whole, labels=labels, leave_out=kept if kind == "stream" else left_out
    )
    assert tuples(left_out).isdisjoint(model.asked)
    assert tuples(others) <= model.asked
    features = explainer.fitted.network.features
    numbers = np.stack([others[name].to_numpy() for name in NAMES], axis=1)
    np.testing.assert_allclose(features.centre.numpy(), numbers.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(features.scale.numpy(), numbers.std(axis=0), rtol=1e-9)
    assert explainer.costs_["outputs"]["evaluations"] == len(others)
    assert len(explainer.calibrate(kept).calibration) == len(left_out)


def test_what_cannot_be_left_out_is_said(folder: Path) -> None:
    game, rows = make_game(folder), ParquetRows(folder)
    part = rows.sample(60, seed=4, columns=NAMES)
    labels = cortx.shapley(game, part)
    explainer = cortx.CoRTX(make_tiny_recipe())
    with pytest.raises(InputError, match="3 of the 60 labels are of rows that leave_out="):
        explainer.fit(game, rows, labels=labels, leave_out=part.slice(57))
    with pytest.raises(InputError, match="without its rows"):
        explainer.fit(game, rows, labels=labels, leave_out=replace(labels, data=None))
    with pytest.raises(InputError, match="belongs to labels="):
        explainer.fit(game, part, n_labels=20, leave_out=part.slice(57))
    with pytest.raises(InputError, match="0 of them remain"):
        explainer.fit(game, part.slice(40), labels=labels[:40], leave_out=part.slice(40))


@pytest.fixture
def labelled(folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder of rows as the model takes them, and their labels."""
    only, labels = tmp_path / "only", tmp_path / "labels"
    only.mkdir()
    pq.write_table(ParquetRows(folder).sample(400, seed=2, columns=NAMES), only / "t.parquet", row_group_size=50)
    labelling.label(Listening(), only, labels, budget=40_000, rows=200, frame="pyarrow", engine=LocalEngine(workers=0))
    return only, labels


def test_rows_that_calibrate_teach_nothing(labelled: tuple[Path, Path], tmp_path: Path) -> None:
    table, labels = labelled
    model = Listening()
    explainer = fit_folder(
        model, table, tmp_path / "e.cortx", labels=labels, recipe=make_tiny_recipe(steps=20), progress=False
    )
    learned, kept = LabelFolder.open(labels).split(0.15)
    assert len(explainer.calibration) == len(kept) > 10
    whole = tuples(pq.read_table(table))
    calibrating = set(zip(*(np.asarray(kept.data[name]).tolist() for name in NAMES), strict=True))
    assert len(calibrating & whole) == len(kept)
    assert calibrating.isdisjoint(model.asked)
    assert whole - calibrating <= model.asked
    assert len(learned) + len(kept) == 200


def test_a_terminal_shows_the_cost_and_a_share_of_nothing_has_no_bounds(
    labelled: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, labels = labelled
    recipe = make_tiny_recipe(steps=10, most_rows=100)  # fewer than the table has: it is read as a stream
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    explainer = fit_folder(
        Listening(), table, tmp_path / "e.cortx", labels=labels, recipe=recipe, calibration_share=0, progress=False
    )
    out, err = capsys.readouterr()
    said = next(line for line in err.splitlines() if "model evaluations at most" in line)
    rows, whole, most = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said))
    assert (rows, whole) == (recipe.pretrain.steps * recipe.pretrain.batch_size, 400)
    assert 0.8 * most < explainer.costs_["pretraining"]["evaluations"] <= most
    assert explainer.fitted.calibration is None
    assert "--calibration-share" in out
    # A table that pre-training takes as a whole is read into memory, and asked about once.
    small = fit_folder(
        Listening(), table, tmp_path / "small.cortx", labels=labels, recipe=make_tiny_recipe(steps=10),
        calibration_share=0, progress=False,
    )  # fmt: skip
    assert "model evaluations at most" not in capsys.readouterr().err
    assert small.costs_["total_evaluations"] < most / 2
    with pytest.raises(InputError, match="--calibration-share 0"):
        fit_folder(Listening(), table, tmp_path / "e.cortx", labels=labels, recipe=recipe, calibration_share=0.001)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_one_process_speaks_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str) -> None:
    monkeypatch.setenv("RANK", rank)
    logger = logging.getLogger("cortx")
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    before, level = len(logger.handlers), logger.level
    (tmp_path / "thesis.txt").write_text("years of work")
    try:
        done = CliRunner().invoke(app, ["fit", "scoring:model", "train/", "--labels-from", "l", "-o", str(tmp_path)])
    finally:
        logger.setLevel(level)
    assert isinstance(done.exception, InputError)
    assert len(logger.handlers) - before == (1 if rank == "0" else 0)


def test_a_share_of_labels_needs_labels() -> None:
    done = CliRunner().invoke(app, ["fit", "scoring:model", "t.csv", "-o", "e.cortx", "--calibration-share", "0.2"])
    assert isinstance(done.exception, InputError)
    assert "--labels-from" in str(done.exception)


def test_text_columns_and_categories_that_no_part_has_seen(tmp_path: Path) -> None:
    """The model always gets the value itself; for the network an unknown one is none of those it knows."""
    generator = np.random.default_rng(0)
    kinds = generator.choice(["x", "y", None], size=900)
    kinds[[3, 700]] = "rare", "rarer"
    columns = {"kind": pa.array(kinds.tolist()), "a": generator.normal(size=900), "b": generator.normal(size=900)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=100)
    weights, given = {"x": 1.0, "y": -1.0, "rare": 5.0, "rarer": -5.0, None: 0.3}, set()

    def model(table: Any) -> np.ndarray:
        given.update(table["kind"].to_pylist())
        kind = np.array([weights[value] for value in table["kind"].to_pylist()])
        return kind * table["a"].to_numpy() + table["b"].to_numpy()

    rows = ParquetRows(tmp_path, buffer_rows=250)
    part = rows.sample(80, seed=0)
    assert set(part["kind"].to_pylist()) == {"x", "y", None}
    game = cortx.Game(model, reference=part)
    labels = cortx.shapley(game, part)
    given.clear()
    explainer = cortx.CoRTX(make_tiny_recipe(steps=300, most_rows=80)).fit(game, rows, labels=labels)
    assert given == {"x", "y", "rare", "rarer", None}
    assert explainer.quality_["l2"] < 0.6 * explainer.quality_["label_norm"]
    rare = rows.sample(900, seed=0).slice(3, 1)
    assert rare["kind"].to_pylist() == ["rare"]
    with pytest.raises(InputError, match="rare"):
        explainer.explain(rare)


def test_the_cost_is_said_before_it_is_paid(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    game, recipe = make_game(folder), make_tiny_recipe(steps=5)
    labels = cortx.shapley(game, ParquetRows(folder).sample(30, seed=4, columns=NAMES))
    with caplog.at_level("INFO", logger="cortx"):
        explainer = cortx.CoRTX(recipe).fit(game, ParquetRows(folder), labels=labels)
    said = next(text for text in caplog.messages if "pre-training reads" in text)
    rows, table, most = (int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", said))
    assert (rows, table) == (recipe.pretrain.steps * recipe.pretrain.batch_size, N_ROWS)
    assert 0.8 * most < explainer.costs_["pretraining"]["evaluations"] <= most


def test_what_a_folder_cannot_be_fitted_with_is_said(folder: Path) -> None:
    rows, game = ParquetRows(folder), make_game(folder)
    for options in ({"budget": 100_000}, {"n_labels": 50}, {}):
        with pytest.raises(InputError, match="make labels first"):
            cortx.CoRTX(make_tiny_recipe()).fit(game, rows, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no fixed places"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, rows, labels=(np.arange(20), np.zeros((20, 6))))
    assert game.evaluations == 0


def test_a_stopped_fit_goes_on_with_the_same_batches(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint.__init__, "__defaults__", (0.0,))  # keeps its progress at every step
    good, left = make_model(), [10**9]

    def model(table: Any) -> np.ndarray:
        left[0] -= table.num_rows
        if left[0] < 0:
            raise RuntimeError("the model went away")
        numbers = np.stack([table[name].to_numpy() for name in NAMES], axis=1).astype(np.float32)
        with torch.inference_mode():
            return good(torch.from_numpy(numbers))[:, 0].numpy()

    reference = ParquetRows(folder).sample(200, seed=9, columns=NAMES)
    labels = cortx.shapley(cortx.Game(model, reference=reference), reference.slice(0, 60))
    recipe = make_tiny_recipe(steps=20, most_rows=200)
    recipe = replace(recipe, pretrain=replace(recipe.pretrain, steps=60))

    def fit(leave_out: Any = None) -> cortx.CoRTX:
        rows = ParquetRows(folder, buffer_rows=300)
        game = cortx.Game(model, reference=reference)
        return cortx.CoRTX(recipe).fit(
            game, rows, labels=labels, leave_out=leave_out, checkpoint=tmp_path / "checkpoint"
        )

    left[0] = 10_000
    with pytest.raises(cortx.CortxError, match="the model went away"):
        fit()
    left[0] = 10**9
    with pytest.raises(ArtifactError, match="another fit"):
        fit(leave_out=reference.slice(100, 20))
    left[0] = 10**9
    resumed = fit()
    spent = 10**9 - left[0]
    straight = fit()
    assert resumed.costs_["total_evaluations"] == straight.costs_["total_evaluations"]
    assert spent + 5_000 < straight.costs_["total_evaluations"] - labels.evaluations
    np.testing.assert_array_equal(resumed.explain(reference).values, straight.explain(reference).values)


# Memory ----------------------------------------------------------------------------------------------------------


PEAK = """
import sys, pyarrow
from cortx.distributed.places import place
from cortx.distributed.source import read_batches
assert sum(len(batch) for batch in read_batches(place(sys.argv[1]), batch_rows=int(sys.argv[2]))) > 0
print(pyarrow.default_memory_pool().max_memory())
"""


def test_memory_follows_the_batch_and_not_the_row_group(tmp_path: Path) -> None:
    """Measured by Arrow itself, in processes of their own: what was held at once stays so."""
    generator = np.random.default_rng(0)
    batch_rows = 65_536
    rows = pa.table({f"x{j}": generator.normal(size=16 * batch_rows) for j in range(4)})  # 34 MB
    environment = {**os.environ, "PYTHONPATH": str(Path(cortx.__file__).parents[1])}

    def peak(n: int, group: int) -> int:
        """Most bytes at once while n rows in groups of that size are read in batches."""
        path = tmp_path / f"{n}-{group}.parquet"
        pq.write_table(rows.slice(0, n), path, row_group_size=group)
        command = [sys.executable, "-c", PEAK, str(path), str(batch_rows)]
        return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

    n = len(rows)
    batches, half, whole = peak(n, batch_rows), peak(n // 2, n // 2), peak(n, n)
    assert whole < 2 * batches, "a row group of sixteen batches takes at most twice the memory of row groups of one"
    assert whole < 1.1 * half, "twice the row group takes no more memory"
    print(f"peak {whole:,} of {rows.nbytes:,} bytes; row groups of one batch: {batches:,}")
