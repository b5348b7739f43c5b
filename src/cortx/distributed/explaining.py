"""Explaining tables of any size: a Parquet folder into a Parquet folder, or a frame into a frame."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortx.distributed.explain_job import ExplainJob, OpenExplainer, pack, unpack
from cortx.distributed.explain_record import RECORD, check_record
from cortx.distributed.kernel import ExplainSettings, explain_batches, explained_schema, table_schema
from cortx.distributed.places import Place, list_files, place, remove_unfinished
from cortx.distributed.source import BATCH_ROWS, FrameSource, ParquetPart, ParquetSource
from cortx.distributed.work import Engine, Task, Totals, run_tasks
from cortx.errors import InputError, StorageError
from cortx.storage import arrow

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX

__all__ = ["ExplainJob", "OpenExplainer", "Report", "explain", "explain_folder", "explain_frame"]


@dataclass(frozen=True)
class Report:
    """What explaining a folder came to."""

    out: str
    rows: int
    """Explained by this run."""
    files: int
    """Written by this run."""
    finished_before: int
    """Files that an earlier run had written."""
    evaluations: int
    seconds: float
    workers: int = 1

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        before = f"; {self.finished_before:,} files were finished before" if self.finished_before else ""
        if self.files == 0 and self.finished_before:
            return f"Nothing to do: all {self.finished_before:,} files in {self.out} are finished."
        return (
            f"Explained {self.rows:,} rows in {self.seconds:.3g} s ({self.rows_per_second:,.0f} rows/s, "
            f"{self.evaluations:,} model evaluations) into {self.files:,} files in {self.out}{before}."
        )


def explain(
    explainer: str | os.PathLike[str] | CoRTX,
    data: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    model: Any = None,
    outputs: str | Sequence[str] | None = None,
    confidence: float | None = None,
    top: int | None = None,
    engine: Engine | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: bool | None = None,
) -> Any:
    """Explains a Parquet file or folder into the folder `out`, or a frame into a frame of the same kind.

    Every row keeps its columns and its place; ``attribution_<player>``, ``base_value`` and, where it is known,
    ``model_output`` are added (several outputs: ``attribution_<player>:<output>``). A run that was stopped goes on
    when it is called again.

    Parameters
    ----------
    explainer:
        The folder of a saved explainer; for a frame in this process, a `CoRTX` will do.
    data:
        A path or URI (pyarrow's file systems) of a Parquet file or of a folder of them, or a pandas, polars or Arrow
        frame.
    model:
        With it attributions add up: a name ``package.module:object`` or an .onnx file that every worker opens for
        itself, or the model, which then travels.
    outputs:
        Instead of the model: the columns that hold its output.
    confidence:
        Adds bounds: ``lower_<player>``, ``upper_<player>`` and ``error_bound``.
    top:
        Adds ``feature_1``, ``value_1`` and so on instead, the strongest players by name and value.
    engine:
        Who does the work; by default all cores of this machine, for a frame this process.
    """
    columns = (outputs,) if isinstance(outputs, str) else tuple(outputs or ())
    settings = ExplainSettings(outputs=columns, confidence=confidence, top=top)
    if batch_rows < 1:
        raise InputError(f"batch_rows must be at least 1, got {batch_rows}")
    if isinstance(data, (str, os.PathLike, Place)):
        if out is None:
            raise InputError("explaining Parquet files needs a folder to write to; give out=...")
        opened = OpenExplainer.of(explainer, model, settings)  # type: ignore[arg-type]
        return explain_folder(opened, data, out, engine=engine, batch_rows=batch_rows, progress=progress)
    if out is not None:
        raise InputError("a frame is explained into a frame; leave out= out, or write the frame as Parquet first")
    return explain_frame(explainer, data, model, settings, engine=engine, batch_rows=batch_rows, progress=progress)


# Folders -----------------------------------------------------------------------------------------------------


def explain_folder(
    opened: OpenExplainer,
    data: str | os.PathLike[str] | Place,
    out: str | os.PathLike[str] | Place,
    *,
    engine: Engine | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: bool | None = None,
) -> Report:
    """Explains Parquet files into a folder; slices that are there already are left alone."""
    source, folder = ParquetSource(data), place(out)
    _check_apart(source, folder)
    explainer = OpenExplainer(opened.explainer, settings=opened.settings, digest=opened.digest).load()
    for file in _one_of_each_schema(source.files):
        try:
            explained_schema(explainer, file.schema, opened.settings, with_model=opened.model is not None)
        except InputError as error:
            raise InputError(f"{file.place}: {error}") from error
    if (folder / RECORD).exists():  # the folder is ours; writing needs the room
        remove_unfinished(folder)
    done = {file.relative for file in list_files(folder) if file.size}
    slices = check_record(opened, source, folder, done)
    todo = [part for part in slices if part.out not in done]
    engine = _local() if engine is None else engine
    job = ExplainJob(opened.explainer, opened.model, opened.settings, str(folder), batch_rows, opened.digest)
    tasks = [Task(part.called, part.rows, part) for part in todo]
    totals = run_tasks(engine, job, tasks, title="explaining", show=progress) if tasks else Totals()
    _check_there(folder, [part.out for part in todo])
    return Report(
        str(folder), totals.rows, totals.tasks, len(slices) - len(todo), totals.evaluations, totals.seconds,
        engine.workers,
    )  # fmt: skip


def _one_of_each_schema(files: Sequence[ParquetPart]) -> Iterator[ParquetPart]:
    seen: set[int] = set()
    for file in files:
        if id(file.schema) not in seen:
            seen.add(id(file.schema))
            yield file


def _check_apart(source: ParquetSource, folder: Place) -> None:
    inside, outside = f"{source.place.address}/", f"{folder.address}/"
    if inside.startswith(outside) or outside.startswith(inside):
        raise InputError(
            f"out={str(folder)!r} and the table {str(source.place)!r} lie in one another; choose another folder"
        )


def _check_there(folder: Place, outs: Sequence[str]) -> None:
    """What workers have written must be here: they may be on other machines."""
    there = {file.relative for file in list_files(folder)}
    lost = [out for out in outs if out not in there]
    if lost:
        raise StorageError(
            f"{len(lost):,} files that workers wrote are not in {folder} (the first: {lost[0]}); the folder must be "
            "one that all workers and this process see, such as a network folder or an object store"
        )


def _local() -> Engine:
    from cortx.distributed.local import LocalEngine

    engine: Engine = LocalEngine()
    return engine


# Frames ------------------------------------------------------------------------------------------------------

TASK_ROWS = 4 * BATCH_ROWS
"""Rows of a frame that travel to a worker together."""


def explain_frame(
    explainer: str | os.PathLike[str] | CoRTX,
    frame: Any,
    model: Any,
    settings: ExplainSettings,
    *,
    engine: Engine | None = None,
    batch_rows: int = BATCH_ROWS,
    progress: bool | None = None,
) -> Any:
    """A frame with its explanations, of its own kind."""
    opened = OpenExplainer.of(explainer, model, settings) if isinstance(explainer, (str, os.PathLike)) else None
    if opened is None and (model is not None or engine is not None):
        raise InputError(
            "model= and engine= go with the folder of a saved explainer; save it, or give the explainer its model"
        )
    source = FrameSource(frame)
    if opened is None:
        here: Any = explainer
    elif engine is None:
        here = opened.load()
    else:
        here = OpenExplainer(opened.explainer, digest=opened.digest).load()
    needed = [name for name in (*table_schema(here).names, *settings.outputs) if name in source.names]
    table = source.table(list(dict.fromkeys(needed)))
    with_model = here.game is not None if opened is None else opened.model is not None
    added = _added_fields(here, source, table, settings, with_model)
    pa = arrow()
    parts: list[Any]
    if opened is None or engine is None:
        parts = [batch.select(added.names) for batch in explain_batches(here, table.to_batches(batch_rows), settings)]
    else:
        parts = _explained_elsewhere(opened, table, engine, batch_rows, progress)
    return _beside(frame, pa.Table.from_batches(parts, schema=added))


def _added_fields(explainer: CoRTX, source: FrameSource, table: Any, settings: ExplainSettings, model: bool) -> Any:
    """The schema of the added columns; names of all columns are looked at, also of those that stay behind."""
    pa = arrow()
    others = [pa.field(name, pa.null()) for name in source.names if name not in table.column_names]
    whole = explained_schema(explainer, pa.schema([*table.schema, *others]), settings, with_model=model)
    return pa.schema(list(whole)[len(table.column_names) + len(others) :])


def _explained_elsewhere(
    opened: OpenExplainer, table: Any, engine: Engine, batch_rows: int, progress: bool | None
) -> list[Any]:
    """The added columns of a table that an engine explains, in order."""
    job = ExplainJob(opened.explainer, opened.model, opened.settings, batch_rows=batch_rows, digest=opened.digest)
    tasks = []
    for start in range(0, len(table), TASK_ROWS):
        part = table.slice(start, TASK_ROWS)
        tasks.append(Task(f"rows {start:,} to {start + len(part) - 1:,}", len(part), (pack(part), start, batch_rows)))
    results: dict[str, bytes] = {}
    run_tasks(engine, job, tasks, title="explaining", show=progress, each=lambda d: results.update({d.task: d.result}))
    return [batch for task in tasks for batch in unpack(results[task.name])]


def _beside(frame: Any, added: Any) -> Any:
    """The frame with the added columns, of its own kind."""
    kind = type(frame).__module__.split(".")[0]
    if kind == "pandas":
        import pandas as pd

        return pd.concat([frame, added.to_pandas().set_index(frame.index)], axis=1)
    if kind == "polars":
        import polars as pl

        return frame.hstack(pl.from_arrow(added).get_columns())
    pa = arrow()
    if isinstance(frame, pa.RecordBatch):
        schema = pa.schema([*frame.schema, *added.schema], frame.schema.metadata)
        return pa.RecordBatch.from_arrays([*frame.columns, *(c.combine_chunks() for c in added.columns)], schema=schema)
    for name in added.column_names:
        frame = frame.append_column(added.schema.field(name), added.column(name))
    return frame
