"""Spark: DataFrames explained where they lie, labels of DataFrames, and tasks on a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortx.distributed.explain_job import OpenExplainer, pack, unpack
from cortx.distributed.kernel import ExplainSettings, explained_schema
from cortx.distributed.source import BATCH_ROWS
from cortx.distributed.spark_engine import SparkEngine, needs_pyspark, pack_for_spark, task_device, unpack_from_spark
from cortx.distributed.work import Task, failed
from cortx.errors import CortxError, InputError
from cortx.explainer.generations import EXPLAINER
from cortx.storage import arrow, temporary_beside
from cortx.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SparkEngine", "explain", "label"]


def explain(
    df: DataFrame,
    explainer: str | os.PathLike[str],
    *,
    model: Any = None,
    outputs: str | Sequence[str] = (),
    confidence: float | None = None,
    top: int | None = None,
) -> DataFrame:
    """The DataFrame with explanations: the same rows and columns, computed when the result is used.

    `explainer` is the folder of a saved explainer; it travels to the executors, each of whose Python workers loads it
    once. The other arguments and the columns that are added are those of `cortx.distributed.explain`; a model that is
    given by name must be one that executors can import. Missing columns are said at once; rows that cannot be
    explained when they are reached, by their number in their partition.
    """
    with needs_pyspark("explaining a Spark DataFrame"):
        from pyspark.sql.types import DoubleType, StringType, StructField, StructType

    settings = ExplainSettings(outputs=outputs, confidence=confidence, top=top)  # type: ignore[arg-type]
    opened = OpenExplainer.of(explainer, model, settings)
    rows = DataFrameSource(df)
    whole = explained_schema(
        replace(opened, model=None).load(), rows.schema, settings, with_model=opened.model is not None
    )
    is_text = arrow().types.is_string
    added = [
        StructField(field.name, StringType() if is_text(field.type) else DoubleType())
        for field in list(whole)[len(rows.schema) :]
    ]
    folder = Path(opened.explainer)
    files = {name: (folder / name).read_bytes() for name in EXPLAINER.names(folder)}
    worker = ExplainPartition(pack_for_spark(opened), str(opened.digest), files, tuple(df.columns))
    return rows.plain().mapInArrow(worker.explain, StructType([*df.schema.fields, *added]))


def label(df: DataFrame, model: Any, folder: str | os.PathLike[str], **settings: Any) -> Any:
    """Labels rows of a DataFrame into a folder that only grows, as `cortx.distributed.label` does, on the same Spark.

    `folder` must be seen by the driver and every executor. `settings` are the other arguments of
    `cortx.distributed.label`; its `engine` is by default a `SparkEngine`.
    """
    from cortx.distributed.labelling import label as label_source

    source = DataFrameSource(df)
    engine = settings.pop("engine", None)
    return label_source(model, source, folder, engine=engine or SparkEngine(df.sparkSession), **settings)


class DataFrameSource:
    """A Spark DataFrame as a stream of record batches; it is computed again each time it is asked for."""

    def __init__(self, df: DataFrame) -> None:
        if not hasattr(df, "mapInArrow"):
            raise InputError(f"df is a {type(df).__module__}.{type(df).__qualname__}; expected a Spark DataFrame")
        self.df = df

    @cached_property
    def schema(self) -> Any:
        return self.df.limit(0).toArrow().schema

    @cached_property
    def n_rows(self) -> int:
        return int(self.df.count())

    def plain(self, columns: Sequence[str] | None = None) -> DataFrame:
        """The named columns, by default all, under names without a dot: Spark takes that for a path into a struct."""
        names = list(self.df.columns)
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise InputError(
                f"the DataFrame lacks the column {', '.join(map(repr, missing))}; it has {', '.join(names)}"
            )
        renamed = self.df.toDF(*(f"c{j}" for j in range(len(names))))
        return renamed if columns is None else renamed.select(*(f"c{names.index(name)}" for name in columns))

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Record batches of the named columns, of at most `batch_rows` rows; the driver holds a partition or two."""
        names = list(self.df.columns if columns is None else columns)
        packed = self.plain(columns).mapInArrow(_packed, "packed binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            for batch in unpack(row[0]):
                for start in range(0, len(batch), batch_rows):
                    yield batch.slice(start, batch_rows).rename_columns(names)

    def first_rows(self, columns: Sequence[str], count: int, seed: int) -> Iterator[Any]:
        """Record batches that hold, among others, the `count` different rows that come first by priority.

        Priorities are spread evenly: executors send the rows below a bound that about twice as many rows meet. Where
        too few of those differ, all rows are streamed through the driver, which holds a partition or two.
        """
        share = (2 * count + LEAST_SENT) / max(1, self.n_rows)
        if share < 1:
            plain, few = self.plain(columns), FewRows(int(share * 2.0**64), seed, tuple(columns))
            table = plain.mapInArrow(few.of, plain.schema).toArrow().rename_columns(list(columns))
            if len(np.unique(few.priorities(table))) >= count:
                yield from table.to_batches()
                return
        yield from self.batches(columns)


LEAST_SENT = 1_000


@dataclass(frozen=True)
class FewRows:
    """What a Python worker does to leave out the rows whose priority is above a bound."""

    bound: int
    seed: int
    names: tuple[str, ...]

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            try:
                keep = self.priorities(batch.rename_columns(list(self.names))) <= np.uint64(self.bound)
            except CortxError:
                yield batch  # the driver will find, and say, what is wrong with it
            else:
                yield batch.filter(arrow().array(keep))

    def priorities(self, rows: Any) -> npt.NDArray[np.uint64]:
        """(rows,)"""
        from cortx.explainer.label_folder import priorities

        pa = arrow()
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        return priorities(read_table(table).row_words(), self.seed) if len(table) else np.zeros(0, np.uint64)


@dataclass(frozen=True)
class ExplainPartition:
    """What a Python worker does with the record batches of a partition."""

    explainer: bytes
    """An `OpenExplainer`, unpacked for the first partition of a worker only: a model in it may be large."""
    digest: str
    files: dict[str, bytes]
    names: tuple[str, ...]

    def explain(self, batches: Iterable[Any]) -> Iterator[Any]:
        try:
            yield from self._opened(task_device()).explain(b.rename_columns(list(self.names)) for b in batches)
        except CortxError as error:
            raise failed(Task(f"partition {_partition()}", 0), error) from error

    def _opened(self, device: str) -> OpenExplainer:
        key = (self.explainer, device)
        if key not in _OPEN:
            _OPEN.clear()
            opened: OpenExplainer = unpack_from_spark(self.explainer)
            _OPEN[key] = replace(opened, explainer=str(self._folder()), device=device)
        return _OPEN[key]

    def _folder(self) -> Path:
        """The explainer's files in a folder that Spark removes when it ends, there whole or not at all."""
        from pyspark import SparkFiles

        folder = Path(SparkFiles.getRootDirectory()) / f"cortx-{self.digest}"
        if not folder.is_dir():
            ours = temporary_beside(folder)
            ours.mkdir(parents=True)
            for name, content in self.files.items():
                (ours / name).write_bytes(content)
            try:
                ours.rename(folder)
            except OSError:  # another worker was faster
                shutil.rmtree(ours)
        return folder


_OPEN: dict[tuple[bytes, str], OpenExplainer] = {}
"""The explainer that this Python worker has opened: Spark gives its workers one partition after the other."""


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else int(context.partitionId())


def _packed(batches: Iterable[Any]) -> Iterator[Any]:
    """Each record batch as one row, in the bytes of Arrow's own format: rows of Spark would be Python objects."""
    pa = arrow()
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"packed": [pack(pa.Table.from_batches([batch]))]})
