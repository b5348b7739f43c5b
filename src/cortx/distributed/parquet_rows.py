"""`ParquetRows`: a folder of Parquet files as a table to learn from that never has to fit into memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from itertools import count as numbers
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.distributed.places import Place, storing
from cortx.distributed.source import ParquetPart, ParquetSource, read_batches
from cortx.errors import InputError
from cortx.seeding import numpy_generator
from cortx.storage import arrow

IntArray = npt.NDArray[np.int64]
BUFFER_ROWS = 131_072
READ_ROWS = 16_384
SAMPLED_GROUPS = 64
"""Row groups that a random part comes from, where fewer hold enough rows: it need not read the whole table."""


class ParquetRows:
    """All rows of a Parquet file, or of the files below a folder, for ``fit(game, ParquetRows("train/"), labels=...)``.

    Rows come in a random order that the seed decides, whatever the number of processes: row groups in random order, and
    `buffer_rows` rows at a time mixed with each other. That many rows are in memory, twice as many while they are
    mixed, and what reading them takes.
    Where files are sorted and their row groups larger than the buffer, a larger one mixes better.

    Parameters
    ----------
    columns:
        The columns to learn from; by default those of the game's reference, or all if that has no names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Place,
        *,
        columns: Sequence[str] | None = None,
        buffer_rows: int = BUFFER_ROWS,
    ) -> None:
        if isinstance(columns, str) or buffer_rows < 1:
            raise InputError(f"give a list of columns and buffer_rows >= 1, got {columns!r} and {buffer_rows!r}")
        self.source = ParquetSource(path)
        self.columns = None if columns is None else tuple(columns)
        self.buffer_rows = int(buffer_rows)
        self._groups = [
            (file, group) for file in self.source.files for group, rows in enumerate(file.groups) if rows > 0
        ]
        self._rows = np.array([file.groups[group] for file, group in self._groups], dtype=np.int64)
        if not self._groups:
            raise InputError(f"{self.source.place} has no rows")
        if self.columns is not None:
            self.source.check_columns(self.columns)

    @property
    def n_rows(self) -> int:
        return int(self._rows.sum())

    def __len__(self) -> int:
        return self.n_rows

    @property
    def identity(self) -> str:
        """A hash of what the footers say of all files, and of what decides the order of rows."""
        text = [f"{file.relative} {file.digest}" for file in self.source.files]
        return hashlib.sha256("\n".join([*text, repr(self.columns), str(self.buffer_rows)]).encode()).hexdigest()

    def sample(self, count: int, seed: int, columns: Sequence[str] | None = None) -> Any:
        """At most `count` random rows as an Arrow table, in the order of the files.

        Of a table with more than 64 row groups they come from 64 random ones, or as many as it takes.
        """
        generator = numpy_generator(seed, "part of a table")
        order = generator.permutation(len(self._groups))
        enough = 1 + int(np.searchsorted(np.cumsum(self._rows[order]), count))
        some = np.sort(order[: max(SAMPLED_GROUPS, enough)])
        ends = np.cumsum(self._rows[some])
        chosen = np.sort(generator.choice(ends[-1], size=min(count, int(ends[-1])), replace=False))
        names, taken = self._names(columns), []
        for group, end, rows in zip(some, ends, self._rows[some], strict=True):
            wanted = chosen[(chosen >= end - rows) & (chosen < end)] - (end - rows)
            taken += [part for part in self._picked(int(group), wanted, names) if len(part)]
        return arrow().Table.from_batches(taken)

    def shuffled(
        self, size: int, seed: int, columns: Sequence[str] | None = None, start: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Arrow tables of `size` rows without end, from batch number `start` on, each with the number of its pass.

        Every pass has all rows once, in another random order; a batch may hold the end of one and the start of another.
        """
        position = start * size
        waiting: list[Any] = []
        for block in self._blocks(seed, self._names(columns), position):
            table = arrow().concat_tables([*waiting, block])
            whole = len(table) // size * size
            for first in range(0, whole, size):
                yield (position + first) // self.n_rows, table.slice(first, size)
            position += whole
            # A copy of what is left, and no other reference: the block is gone before the next one is read.
            waiting = [table.slice(whole).take(np.arange(len(table) - whole)) if whole else table]
            del block, table

    def _blocks(self, seed: int, names: list[str], position: int) -> Iterator[Any]:
        """Mixed blocks of rows without end, from a place in the stream of all passes on."""
        first_pass, skip = divmod(position, self.n_rows)
        for pass_ in numbers(first_pass):
            order = numpy_generator(seed, "row groups", pass_).permutation(len(self._groups))
            first_block, inside = divmod(skip, self.buffer_rows)
            orders = (numpy_generator(seed, "rows", pass_, number) for number in numbers(first_block))
            skips = chain([inside], repeat(0))
            # No variable here may hold a block while the next one is read.
            yield from map(_mixed, self._cut(order, first_block * self.buffer_rows, names), orders, skips)
            skip = 0

    def _cut(self, order: IntArray, start: int, names: list[str]) -> Iterator[Any]:
        """The rows of one pass before they are mixed, as tables of `buffer_rows` rows, from row number `start` on."""
        held = 0
        parts: list[Any] = []
        ends = np.cumsum(self._rows[order])
        first = int(np.searchsorted(ends, start, side="right"))
        skip = start - int(ends[first] - self._rows[order[first]]) if first < len(order) else 0
        for group in order[first:]:
            for batch in self._read(int(group), names):
                batch, skip = batch.slice(min(skip, len(batch))), max(0, skip - len(batch))
                while held + len(batch) >= self.buffer_rows:
                    room = self.buffer_rows - held
                    parts.append(batch.slice(0, room))
                    batch, held = batch.slice(room), 0
                    yield _emptied(parts)
                if len(batch):
                    parts.append(batch)
                    held += len(batch)
        if parts:
            yield _emptied(parts)

    def _picked(self, group: int, wanted: IntArray, names: list[str]) -> Iterator[Any]:
        """Some rows of a row group, batch by batch."""
        start = 0
        for batch in self._read(group, names) if len(wanted) else ():
            inside = wanted[(wanted >= start) & (wanted < start + len(batch))] - start
            start += len(batch)
            yield batch.take(arrow().array(inside))

    def _read(self, group: int, names: list[str]) -> Iterator[Any]:
        """The record batches of a row group, with the types of the first file."""
        file, number = self._groups[group]
        schema = arrow().schema([self.source.schema.field(name) for name in names])
        rows = min(READ_ROWS, self.buffer_rows)
        first_row, groups = sum(file.groups[:number]), (number, number + 1)
        for batch in read_batches(file.place, columns=names, groups=groups, batch_rows=rows, first_row=first_row):
            yield _typed(batch, schema, file)

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        names = list(columns or self.columns or self.source.schema.names)
        self.source.check_columns(names)
        return names


def _mixed(block: Any, generator: np.random.Generator, skip: int) -> Any:
    """The rows of a table in random order, without the first `skip` of them."""
    return block.take(generator.permutation(len(block))[skip:])


def _emptied(parts: list[Any]) -> Any:
    """Record batches as one table, which then is all that holds them."""
    table = arrow().Table.from_batches(parts)
    parts.clear()
    return table


def _typed(batch: Any, schema: Any, file: ParquetPart) -> Any:
    batch = batch.replace_schema_metadata(None)
    if batch.schema.equals(schema):
        return batch
    with storing(file.place, "read"):
        return batch.cast(schema)
