"""The job of explaining: what a worker opens, and what it does to a slice of a Parquet file or to a packed table."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cortx.distributed.kernel import ExplainSettings, explain_batches, explained_schema
from cortx.distributed.places import ENDINGS, Place, parquet, place, write_whole
from cortx.distributed.source import BATCH_ROWS, ParquetPart, read_batches, read_schema
from cortx.distributed.work import Done, NamedModel, Task, Work
from cortx.errors import ArtifactError, InputError
from cortx.storage import arrow, local_path

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX

SLICE_ROWS = 2**20
"""Rows of one task, and so of one output file, unless a single row group has more."""
NUMBERS_AT_A_TIME = 2**24
"""Of a batch, columns times rows: a wide table is explained in smaller batches."""


@dataclass(frozen=True)
class OpenExplainer:
    """An explainer that every process opens for itself, once, and what it is to say of each row."""

    explainer: str
    model: NamedModel | None = None
    settings: ExplainSettings = field(default_factory=ExplainSettings)
    device: str = "cpu"
    digest: str | None = None
    """Of the explainer's manifest: a worker that finds another one in the folder refuses it."""

    @classmethod
    def of(
        cls,
        explainer: str | os.PathLike[str],
        model: Any = None,
        settings: ExplainSettings | None = None,
        device: str = "cpu",
    ) -> OpenExplainer:
        """From what a user gives; the folder must be there."""
        if not isinstance(explainer, (str, os.PathLike)):
            raise InputError(f"the explainer is a {type(explainer).__qualname__}; save it, and give its folder")
        folder = os.path.abspath(local_path(explainer, "the explainer's folder").expanduser())
        return cls(folder, NamedModel.of(model), settings or ExplainSettings(), device, manifest_digest(folder))

    def load(self) -> CoRTX:
        """The explainer with its model: loaded by the first call of a process, then kept."""
        digest = manifest_digest(self.explainer)
        if self.digest is not None and digest != self.digest:
            raise ArtifactError(
                f"{self.explainer} holds another explainer than the one this run started with; every worker must see "
                "the same folder"
            )
        named = None if self.model is None else (self.model.name, self.model.folder, id(self.model.model))
        key = (self.explainer, digest, self.device, named)
        if key not in _OPEN:
            from cortx.explainer.artifact import load

            explainer = load(self.explainer, None if self.model is None else self.model.load(), device=self.device)
            explainer.set_params(threads=None)  # workers share the machine; the number saved is another machine's
            while len(_OPEN) >= MOST_OPEN:
                _OPEN.pop(next(iter(_OPEN)))
            # The model is kept beside: while it lives, nothing else has its id.
            _OPEN[key] = (explainer, self.model)
        return _OPEN[key][0]

    def explain(self, batches: Iterable[Any], first_row: int = 0) -> Iterator[Any]:
        """`explain_batches` with this explainer and its settings."""
        return explain_batches(self.load(), batches, self.settings, first_row=first_row)


MOST_OPEN = 4
_OPEN: dict[tuple[Any, ...], tuple[CoRTX, NamedModel | None]] = {}


def manifest_digest(folder: str) -> str:
    """What tells one saved explainer from another: its manifest holds the checksum of its weights."""
    try:
        return hashlib.sha256((Path(folder) / "manifest.json").read_bytes()).hexdigest()
    except OSError as error:
        raise ArtifactError(
            f"there is no explainer at {folder} ({error.strerror}); give the folder that fit wrote"
        ) from error


@dataclass(frozen=True)
class Slice:
    """Some row groups of a Parquet file, and the file that they become."""

    source: Place
    groups: tuple[int, int]
    """The first one, and the one behind the last."""
    first_row: int
    rows: int
    out: str
    """Its path from the folder of explanations on."""
    digest: str = field(repr=False)
    """Of the source's footer, which tells the row groups."""

    @property
    def called(self) -> str:
        rows = f"rows {self.first_row:,} to {self.first_row + self.rows - 1:,}" if self.rows else "no rows"
        return f"{self.source}, {rows}"


def slices_of(file: ParquetPart, slice_rows: int = SLICE_ROWS) -> list[Slice]:
    """Row groups side by side that have at most `slice_rows` rows together, or one that has more."""
    ends: list[tuple[int, int, int]] = []  # first group, group behind the last, rows
    start = rows = 0
    for group, count in enumerate(file.groups):
        if rows and rows + count > slice_rows:
            ends.append((start, group, rows))
            start, rows = group, 0
        rows += count
    ends.append((start, len(file.groups), rows))
    slices, first_row = [], 0
    for number, (start, stop, rows) in enumerate(ends):
        out = _whole_name(file.relative) if len(ends) == 1 else f"{file.relative}-{number:05d}.parquet"
        slices.append(Slice(file.place, (start, stop), first_row, rows, out, file.digest))
        first_row += rows
    return slices


def _whole_name(relative: str) -> str:
    """What a source becomes that is one slice."""
    return relative if relative.lower().endswith(ENDINGS) else f"{relative}.parquet"


def comes_of(out: str, relative: str) -> bool:
    """Whether a file of explanations has a name that `slices_of` gives to slices of this source, however many."""
    return out == _whole_name(relative) or re.fullmatch(rf"{re.escape(relative)}-\d+\.parquet", out) is not None


def check_names(slices: Sequence[Slice]) -> None:
    """Refuses slices whose names do not sort as the sources do, or meet.

    A slice starts with the whole name of its source, so that takes a second source called a.parquet-00000.parquet.
    """
    for one, other in pairwise(slices):
        if one.out.split("/") >= other.out.split("/"):
            raise InputError(
                f"the explanations of {one.source} would be called {one.out}, which does not come before {other.out}, "
                f"those of {other.source}; rename one of the two"
            )


@dataclass(frozen=True)
class ExplainJob:
    """Explains slices of Parquet files into the folder `out`, or record batches that travel with the tasks."""

    explainer: str
    model: NamedModel | None = None
    settings: ExplainSettings = field(default_factory=ExplainSettings)
    out: str | None = None
    batch_rows: int = BATCH_ROWS
    digest: str | None = None

    def open(self, device: str) -> Work:
        opened = OpenExplainer(self.explainer, self.model, self.settings, device, self.digest)
        opened.load()

        def work(task: Task) -> Done:
            started = perf_counter()
            explainer = opened.load()
            spent = 0 if explainer.game is None else explainer.game.evaluations
            result = None
            if isinstance(task.payload, Slice):
                assert self.out is not None
                explain_slice(opened, task.payload, place(self.out), self.batch_rows)
            else:
                result = explain_packed(opened, *task.payload)
            evaluations = 0 if explainer.game is None else explainer.game.evaluations - spent
            return Done(task.name, task.rows, evaluations, perf_counter() - started, result)

        return work


def explain_slice(opened: OpenExplainer, part: Slice, out: Place, batch_rows: int = BATCH_ROWS) -> None:
    """Explains a slice batch by batch, and writes it whole or not at all."""

    def write(stream: Any) -> None:
        schema = explained_schema(opened.load(), read_schema(part.source), opened.settings)
        rows = min(batch_rows, max(1, NUMBERS_AT_A_TIME // len(schema)))
        batches = read_batches(
            part.source, groups=part.groups, batch_rows=rows, first_row=part.first_row, digest=part.digest
        )
        with parquet().ParquetWriter(stream, schema, **_writing(schema)) as writer:
            for batch in opened.explain(batches, part.first_row):
                writer.write_batch(batch)

    write_whole(out / part.out, write)


def _writing(schema: Any) -> dict[str, Any]:
    """How columns are written: attributions are all different, so looking for repeated ones would be in vain."""
    floating = arrow().types.is_floating
    repeated = [f.name for f in schema if not floating(f.type) or f.name.split(":")[0] == "base_value"]
    return {"use_dictionary": repeated, "compression": "snappy"}


def explain_packed(opened: OpenExplainer, packed: bytes, first_row: int, batch_rows: int) -> bytes:
    """The columns that are added to a packed table, packed as well."""
    table = arrow().Table.from_batches(unpack(packed))
    parts = list(opened.explain(table.to_batches(batch_rows), first_row))
    return pack(arrow().Table.from_batches(parts).select(parts[0].schema.names[len(table.column_names) :]))


def pack(table: Any) -> bytes:
    """A table as bytes (Arrow's stream format)."""
    pa = arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> list[Any]:
    """The record batches of a packed table."""
    pa = arrow()
    with pa.ipc.open_stream(packed) as reader:
        return list(reader)
