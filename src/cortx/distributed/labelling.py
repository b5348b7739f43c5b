"""`label`: Shapley labels of a large table's rows, by many workers, into a folder that a fit reads."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.distributed.explain_job import pack, unpack
from cortx.distributed.label_plan import LabelPlan, most_rows, plan_labels
from cortx.distributed.places import Place
from cortx.distributed.sampling import Sample, choose_rows, frequent_first
from cortx.distributed.source import FrameSource, ParquetSource, open_source
from cortx.distributed.work import Done, Engine, NamedModel, Task, Totals, Work, run_tasks
from cortx.errors import ArtifactError, InputError, ModelError, StorageError
from cortx.estimators.shapley import shapley, views_in_memory, views_per_row
from cortx.explainer.label_folder import (
    MANIFEST,
    LabelFolder,
    Spent,
    as_given,
    folder_path,
    refuse_foreign,
    with_categories,
)
from cortx.explainer.label_part import LabelPart
from cortx.explanation import take_rows
from cortx.games import Game, GameSpec
from cortx.games.calls import Calls
from cortx.games.fingerprint import probe_rows
from cortx.games.game import table_of
from cortx.games.models import Output
from cortx.games.players import Groups, make_players
from cortx.lease import Lease
from cortx.seeding import stream_seed
from cortx.storage import arrow
from cortx.tables import Schema, Table, plain, read_table, reference_row, write_table

logger = logging.getLogger("cortx")
REFERENCE_ROWS = 100_000
"""Different rows whose mean and mode, each with all its copies, are the reference, unless one is given."""
PROBED_ROWS = 1_000
MOST_BATCH_ROWS = 1_024
MOST_BATCH_EVALUATIONS = 2_000_000
"""About: what a kill may cost each worker. To a fast model it is a second's work, so that what a task itself costs is
little."""
SLOW_BATCH = 5_000
"""The same for a model that is called as a slow one."""
BATCHES_EACH = 8
"""Batches for each worker at least, so that none waits long for the last."""
SECONDS_TO_APPEAR = 15.0
"""What one machine wrote may take so long to be seen by another."""


@dataclass(frozen=True)
class LabelReport:
    """What a run of `label` came to."""

    folder: str
    rows: int
    """Labelled rows in the folder."""
    exact_rows: int
    evaluations: int
    """Model evaluations of this run's labels, and of the base value in a new folder; without the probe rows by which
    each run and each worker recognise the model."""
    total_evaluations: int
    """Of all labels in the folder, the base value included."""
    budget: int
    seconds: float
    plan: LabelPlan

    def __str__(self) -> str:
        return (
            f"{self.folder}: labels of {self.rows:,} rows ({self.exact_rows:,} of them exact), {self.evaluations:,} "
            f"model evaluations now and {self.total_evaluations:,} of {self.budget:,} in all, {self.seconds:.1f} s"
        )


def label(
    model: Any,
    data: Any,
    folder: str | os.PathLike[str],
    *,
    budget: int,
    rows: int | None = None,
    reference: Any = None,
    background: Any = None,
    output: Output = "auto",
    target: int | str | None = None,
    players: Groups | None = None,
    categorical: Iterable[str | int] | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    frame: str | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    progress: bool | None = None,
    announce: Callable[[str], None] | None = None,
    calls: Calls | None = None,
) -> LabelReport:
    """Labels rows of a table with Shapley values, and keeps them in a folder: ``fit(game, X, labels=folder)``.

    Which rows are labelled, and what their labels are, depends on the content of the rows, the settings and the budget:
    not on the order of the data, the engine, its workers, or how often a run was killed and started again. A run with a
    larger budget goes on from what is there.

    Parameters
    ----------
    model:
        As for `Game`, or a name that every worker imports for itself: ``"package.module:object"``, an .onnx file.
    data:
        A Parquet file or folder (path or URI), a pandas, polars or Arrow frame, an array, or anything with ``batches``.
    folder:
        Where the labels are kept; all workers must see it.
    budget:
        Model evaluations that all labels in the folder may cost together, those of earlier runs and the base value
        included; each batch is refused what the plan did not foresee. Outputs that recognise the model (at most 32 rows
        for each run and each worker) are not in it.
    rows:
        How many rows to label. By default as many as the budget pays for at a precise label each.
    reference, background, output, target, players, categorical:
        As for `Game`. Without reference and background: those of the labels that are there; for a new folder the mean
        and mode of the data (of 100,000 random different rows with all their copies, if more rows differ).
    columns, drop:
        The columns the model takes: all by default, or these, or all but those.
    frame:
        The kind of table the model is given; by default that of the reference, background or data, where one is a
        frame, and pandas for Parquet files. In a folder with labels it stays what it was.
    engine:
        Who does the work; by default all cores of this machine.
    announce:
        Is given the plan in words before anything is spent; the log has it anyway.
    calls:
        For a slow or remote model, as for `Game`: the calls of each worker, but for `per_second`, which they share.
    """
    started = perf_counter()
    _check_numbers(budget=budget, rows=rows)
    if reference is not None and background is not None:
        raise InputError("reference= and background= both say what replaces an absent feature; give one of them")
    named = NamedModel.of(model)
    if named is None:
        raise InputError("label needs a model; give it, or its name 'package.module:object'")
    asked = _Asked(
        named,
        plain(data),
        reference,
        background,
        output,
        target,
        players,
        None if categorical is None else tuple(categorical),
        frame,
        calls,
    )
    path = folder_path(folder)
    if not (path / MANIFEST).exists():
        refuse_foreign(path)
    source = _source(asked.data)
    if isinstance(asked.data, np.ndarray) and (columns is not None or drop):
        raise InputError("an array has no column names; give the columns that the model takes, X[:, columns]")
    names = _columns(source, columns, drop)
    with Lease(path, "cortx label") as lease:
        return _label_into(
            path, asked, source, names, lease, budget=budget, rows=rows, seed=seed, engine=engine, progress=progress,
            announce=announce, started=started,
        )  # fmt: skip


def _label_into(
    path: Path,
    asked: _Asked,
    source: Any,
    names: list[str],
    lease: Lease,
    *,
    budget: int,
    rows: int | None,
    seed: int,
    engine: Engine | None,
    progress: bool | None,
    announce: Callable[[str], None] | None,
    started: float,
) -> LabelReport:
    """`label` once its arguments are checked and no other run works in the folder."""
    kept = LabelFolder.open(path) if (path / MANIFEST).exists() else None
    model = asked.model.load()
    if kept is not None:  # before a pass over all the data
        kept.check_names(names, seed)
        draft = _draft(model, asked, *_kept_absent(asked, kept, names), write_table(kept.probe, kept.schema))
        kept.check_frame(asked.frame, draft)
        kept.check(draft)
    paid = Spent.none() if kept is None else kept.spent()
    n_players = asked.n_players(names) if kept is None else len(kept.spec.players)
    # More than are labelled: frequent rows are looked for among them, whatever is asked for.
    least = 0 if asked.given or kept else REFERENCE_ROWS
    wanted = max(rows or 0, most_rows(budget, n_players), len(paid), least)
    sample = choose_rows(source, names, wanted, seed, show=progress)
    game = _new_game(model, asked, sample, names) if kept is None else kept.game(model, calls=asked.calls)
    schema = game.schema
    assert isinstance(schema, Schema)
    sample = frequent_first(sample)
    ready = game.rows(as_given(sample.rows, schema))
    plan = plan_labels(
        ready.active.sum(axis=1), sample.words, paid, budget=budget, rows=rows, seen=sample.seen,
        copies=game.evaluations_per_value, n_players=game.n_players, more=not sample.whole,
    )  # fmt: skip
    logger.info(str(plan))
    if announce is not None:
        announce(str(plan))
    store = kept or LabelFolder.create(
        path, game, schema, probe_rows(table_of(ready, "label").matrix[:PROBED_ROWS], seed), seed
    )
    store.remove_unfinished()
    store.note_copies(sample.words, sample.copies, sample.seen)
    if engine is None:
        from cortx.distributed.local import LocalEngine

        engine = LocalEngine()
    copies = views_per_row(game, plan.rows, views_in_memory(game.n_players, len(store.spec.base_values), plan.rows))
    job = LabelJob(str(path), asked.model, copies, seed, _share(asked.calls, engine.workers))
    tasks = _tasks(plan, sample, engine.workers, slow=asked.calls is not None)
    totals = Totals()
    try:
        if tasks:
            totals = run_tasks(
                engine, job, tasks, title="labels", show=progress, each=lambda done: _seen(store, done, lease)
            )
    except ModelError as error:
        raise ModelError(f"{error}; {_kept_words(store)}") from error
    after = store.spent()
    report = LabelReport(
        folder=str(path),
        rows=len(after),
        exact_rows=plan.exact_rows(after),
        evaluations=totals.evaluations + (store.base_evaluations if kept is None else 0),
        total_evaluations=int(after.evaluations.sum()) + store.base_evaluations,
        budget=budget,
        seconds=perf_counter() - started,
        plan=plan,
    )
    logger.info(str(report))
    return report


# In the process that asks --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Asked:
    """What the caller said of the game."""

    model: NamedModel
    data: Any
    reference: Any
    background: Any
    output: Output
    target: int | str | None
    players: Groups | None
    categorical: tuple[str | int, ...] | None
    frame: str | None
    calls: Calls | None

    @property
    def given(self) -> bool:
        return self.reference is not None or self.background is not None

    @property
    def in_memory(self) -> bool:
        named = isinstance(self.data, (str, os.PathLike, Place))
        return not named and not callable(getattr(self.data, "batches", None))

    @property
    def default_frame(self) -> str | None:
        """The kind of table the model is given; None: that of the reference, the background or the data."""
        absent = plain(self.reference if self.background is None else self.background)
        of_a_frame = self.in_memory or (self.given and not isinstance(absent, (str, np.ndarray)))
        return self.frame or (None if of_a_frame else "pandas")

    def n_players(self, names: list[str]) -> int:
        return len(make_players(names, self.players)) if isinstance(self.players, Mapping) else len(names)


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is None and name == "rows":
            continue
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
            raise InputError(f"{name} must be a positive whole number, got {number!r}")


def _source(data: Any) -> Any:
    if not isinstance(data, np.ndarray):
        return open_source(data)
    if data.ndim != 2:
        raise InputError(f"the data must have two axes (rows, columns), got shape {data.shape}")
    return FrameSource(arrow().table({f"x{j}": np.ascontiguousarray(data[:, j]) for j in range(data.shape[1])}))


def _columns(source: Any, columns: Sequence[str] | None, drop: Sequence[str]) -> list[str]:
    """The columns the model takes; of several files each must have them all."""
    files = source.files if isinstance(source, ParquetSource) else (source,)
    schemas = {id(file.schema): file.schema for file in files}
    names = list(dict.fromkeys(name for schema in schemas.values() for name in schema.names))
    if isinstance(drop, str) or isinstance(columns, str):
        raise InputError("columns= and drop= list columns; use a list or a tuple of names")
    missing = [name for name in (*drop, *(columns or ())) if name not in names]
    if missing:
        raise InputError(
            f"the data has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, names))}"
        )
    chosen = [name for name in (names if columns is None else columns) if name not in drop]
    if not chosen:
        raise InputError("no column is left for the model; drop fewer")
    if len(schemas) > 1:
        try:
            source.check_columns(chosen)
        except InputError as error:
            raise InputError(f"{error}. Other files have it: write the file anew, or drop the column") from error
    return chosen


def _new_game(model: Any, asked: _Asked, sample: Sample, names: list[str]) -> Game:
    """The game that was asked for, not yet evaluated; it knows the texts of the rows that probe rows are drawn from."""
    some = _first(asked, sample, names, PROBED_ROWS)
    draft = _draft(model, asked, *_absent(asked, names, None if asked.given else _mean(asked, sample, names)), some)
    spec = _spec(draft, sample, asked.default_frame)
    assert isinstance(spec.schema, Schema)
    rows = Game.from_spec(model, spec).rows(as_given(sample.rows.slice(0, PROBED_ROWS), spec.schema))
    return Game.from_spec(model, replace(spec, schema=table_of(rows, "label").schema), calls=asked.calls)


def _draft(model: Any, asked: _Asked, absent: dict[str, Any], frame: str | None, some: Any) -> Game:
    """The game of these settings; `some` rows say at once which columns do not fit, and teach "zero" its columns."""
    game = Game(
        model, **absent, output=asked.output, target=asked.target, players=asked.players,
        categorical=asked.categorical, frame=frame, calls=asked.calls,
    )  # fmt: skip
    if game.of_images:
        raise InputError("labels in a folder are of tables; fit images with a budget instead")
    if isinstance(some, arrow().Table) and not isinstance(absent.get("reference"), str):
        assert isinstance(game.schema, Schema)
        some = with_categories(some, game.schema)
    game.rows(some)
    return game


def _absent(asked: _Asked, names: list[str], default: Any) -> tuple[dict[str, Any], str | None]:
    """What replaces absent columns, and the kind of table the model is given (None: that of the former)."""
    if asked.background is not None:
        return {"background": _only(asked.background, names, "the background")}, asked.default_frame
    given = default if asked.reference is None else _only(asked.reference, names, "the reference")
    return {"reference": given}, asked.default_frame


def _kept_absent(asked: _Asked, kept: LabelFolder, names: list[str]) -> tuple[dict[str, Any], str | None]:
    """The same where labels are: what was not asked for is as it was."""
    if asked.given:
        return _absent(asked, names, None)
    rows = write_table(kept.spec.absent, kept.schema)
    return {"background" if len(kept.spec.absent) > 1 else "reference": rows}, asked.frame or kept.spec.frame


def _mean(asked: _Asked, sample: Sample, names: list[str]) -> Table:
    """The mean and mode of the data, one row: every row of the sample counts as often as the data has it."""
    rows = _first(asked, sample, names, REFERENCE_ROWS)
    table = read_table(rows, categorical=asked.categorical or (), what="the data")
    return Table(reference_row(table, sample.copies[: len(table)]), table.schema)


def _first(asked: _Asked, sample: Sample, names: list[str], most: int) -> Any:
    """The first rows of the sample, in the caller's own kind of table."""
    if not asked.in_memory or type(asked.data).__module__.startswith("pyarrow"):
        rows = sample.rows.slice(0, most)
        for name in sample.categories:
            j = rows.column_names.index(name)
            rows = rows.set_column(j, name, rows.column(j).dictionary_encode())
        return rows
    rows = take_rows(asked.data, sample.positions[:most])
    return rows if isinstance(rows, np.ndarray) else _only(rows, names)


def _only(frame: Any, names: list[str], what: str = "the data") -> Any:
    """The named columns of a frame that has more; everything else as it is."""
    frame = plain(frame)
    if isinstance(frame, (str, np.ndarray)) or not hasattr(frame, "columns"):
        return frame
    import narwhals as nw

    wrapped = nw.from_native(frame, eager_only=True)
    labels = {str(label): label for label in wrapped.columns}
    missing = [name for name in names if name not in labels]
    if missing:
        raise InputError(f"{what} lacks the column {', '.join(map(repr, missing))} of the data")
    return wrapped.select([labels[name] for name in names]).to_native()


def _spec(draft: Game, sample: Sample, frame: str | None) -> GameSpec:
    """The game without its model and base values.

    Of texts only those of the reference are kept, of categories all that the data has: the table that a model is given
    must not depend on which rows are together in a batch.
    """
    schema, absent = draft.schema, np.array(draft.absent)
    assert isinstance(schema, Schema)
    columns = []
    for j, column in enumerate(schema.columns):
        if column.coded:
            used = np.unique(absent[:, j]).astype(np.int64)
            absent[:, j] = np.searchsorted(used, absent[:, j])
            values = tuple(column.values[code] for code in used)
            if str(column.dtype).startswith("dictionary"):
                values += tuple(v for v in sample.categories.get(column.name, ()) if v not in values)
            column = replace(column, values=values)
        columns.append(column)
    return GameSpec(
        schema=Schema(tuple(columns), schema.frame),
        absent=absent,
        players=draft.players,
        output=draft.model.output,
        target=draft.target,
        frame=frame,
        base_values=np.zeros(0),
        output_names=None,
    )


def _share(calls: Calls | None, workers: int) -> Calls | None:
    """The calls of one of so many workers."""
    if calls is None or calls.per_second is None:
        return calls
    return replace(calls, per_second=calls.per_second / max(1, workers))


def _tasks(plan: LabelPlan, sample: Sample, workers: int, *, slow: bool = False) -> list[Task]:
    """Batches of rows that get the same round and budget: so many evaluations each that a kill costs little."""
    most = SLOW_BATCH if slow else MOST_BATCH_EVALUATIONS
    size = max(1, min(most, plan.total // (BATCHES_EACH * max(1, workers))))
    pieces: list[tuple[int, int, npt.NDArray[np.int64], int]] = []
    for ask in plan.asks:
        before = np.cumsum(ask.costs) - ask.costs
        # Both only grow: a batch ends where either does, so both bounds hold.
        number = before // size + np.arange(len(before)) // MOST_BATCH_ROWS
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        batches = zip(np.split(ask.index, starts[1:]), np.split(ask.costs, starts[1:]), strict=True)
        pieces += [(ask.round, ask.values, index, int(costs.sum())) for index, costs in batches]
    return [
        Task(
            f"batch {i + 1} of {len(pieces)} ({len(index)} rows, round {round})",
            len(index),
            LabelBatch(pack(sample.rows.take(index)), round, values, cost),
        )
        for i, (round, values, index, cost) in enumerate(pieces)
    ]


def _seen(store: LabelFolder, done: Done, lease: Lease) -> None:
    """What a worker wrote must be here: else the folder is not the same one, or no longer this run's."""
    lease.check()
    last = time.monotonic() + SECONDS_TO_APPEAR
    while not store.has(done.result):
        if time.monotonic() > last:
            raise StorageError(
                f"{done.task}: the worker wrote {done.result} to {store.path}, and it is not there; the folder must "
                "lie on a file system that all machines share"
            )
        time.sleep(0.2)


def _kept_words(store: LabelFolder) -> str:
    spent = store.spent()
    return (
        f"labels of {len(spent):,} rows ({int(spent.evaluations.sum()):,} evaluations) are kept in {store.path}: run "
        "again once the model answers, and it goes on from there"
    )


# In a worker ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelBatch:
    """Rows to label, as an Arrow stream: in which round, with how many values v(S) each at most.

    `cost` is what the plan says that they cost together: no worker spends more.
    """

    rows: bytes
    round: int
    values: int
    cost: int


@dataclass(frozen=True)
class LabelJob:
    """Labels batches into a folder."""

    folder: str
    model: NamedModel
    views: int
    seed: int
    calls: Calls | None = None

    def open(self, device: str) -> Work:
        host = socket.gethostname()
        try:
            store = LabelFolder.open(self.folder)
        except ArtifactError as error:
            raise StorageError(
                f"the worker on {host} does not see the folder of labels ({error}); it must lie on a file system that "
                "all machines share"
            ) from error
        game = Game.from_spec(_on(self.model.load(), device), store.spec, known_base=True, calls=self.calls)
        store.check_model(game, f" of the worker on {host}")
        return lambda task: self._label(store, game, task)

    def _label(self, store: LabelFolder, game: Game, task: Task) -> Done:
        batch: LabelBatch = task.payload
        started, before = perf_counter(), game.evaluations
        table = arrow().Table.from_batches(unpack(batch.rows))
        words = read_table(table).row_words()  # as in the sample: the game may keep numbers as categories
        data = as_given(table, store.schema)
        rows = game.rows(data)
        name = store.part_name(words, batch.round, batch.values)
        if not store.has(name):  # a worker that was taken for dead may have written it
            stream = self.seed if batch.round == 0 else stream_seed(self.seed, "round", batch.round)
            budget = game.evaluations_per_value * batch.values
            with game.spending(batch.cost) as ledger:
                ledger.planned = batch.cost
                labels = shapley(
                    game, data, "auto-kernel", row_budget=budget, views=self.views, seed=stream, progress=False
                )
            part = LabelPart.of(labels, words, table, round=batch.round, seed=stream)
            store.append(part, batch.values)
        return Done(task.name, len(rows), game.evaluations - before, perf_counter() - started, name)


def _on(model: Any, device: str) -> Any:
    """A torch module where the worker computes; other models choose for themselves."""
    import torch

    return model.to(device) if isinstance(model, torch.nn.Module) and device != "cpu" else model
