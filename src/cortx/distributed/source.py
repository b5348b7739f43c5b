"""Tables as streams of Arrow record batches: a folder of Parquet files, or a frame in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from cortx.distributed.places import Found, Place, parquet, parquet_files, place, storing
from cortx.errors import InputError, StorageError
from cortx.storage import arrow

BATCH_ROWS = 65_536
BUFFER_LOCAL, BUFFER_FAR = 2**17, 2**21
"""Bytes of a column that are read at a time: far file systems answer few large questions faster."""
READERS = 16
"""Footers that are read at the same time: waiting for a far file system is most of the work."""


class Source(Protocol):
    """Rows in a fixed order, as often as they are asked for."""

    @property
    def schema(self) -> Any: ...

    @property
    def n_rows(self) -> int: ...

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Record batches of the named columns, by default all, of at most `batch_rows` rows."""
        ...


@dataclass(frozen=True)
class ParquetPart:
    """A Parquet file and what its footer says."""

    place: Place
    relative: str
    """Its path from the source's folder on, with "/"."""
    groups: tuple[int, ...]
    """Rows of each row group."""
    schema: Any = field(repr=False)
    """Names and types; its metadata may be those of another file."""
    digest: str = field(repr=False)
    """Of the footer: a file that is written anew has another one."""

    @property
    def rows(self) -> int:
        return sum(self.groups)


class ParquetSource:
    """A Parquet file, or all those below a folder in the order of their paths. Footers are read when it is made."""

    def __init__(self, path: str | os.PathLike[str] | Place) -> None:
        self.place = place(path)
        self.folder, found = parquet_files(self.place)
        with ThreadPoolExecutor(READERS) as pool:
            parts = pool.map(lambda file: read_footer(self.folder / file.relative, file), found)
            self.files: tuple[ParquetPart, ...] = tuple(_shared(parts))

    @property
    def schema(self) -> Any:
        """The Arrow schema of the first file; `batches` refuses a file that lacks one of its columns."""
        return self.files[0].schema

    @property
    def n_rows(self) -> int:
        return sum(file.rows for file in self.files)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Says which file lacks a column."""
        for file in self.files:
            missing = [name for name in columns if name not in file.schema.names]
            if missing:
                raise InputError(
                    f"{file.place} lacks the column {', '.join(map(repr, missing))}; "
                    f"it has {', '.join(map(repr, file.schema.names[:20]))}"
                )

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Record batches of all files in order, cast to the types of the first file where theirs differ."""
        wanted = list(self.schema.names if columns is None else columns)
        self.check_columns(wanted)
        schema = arrow().schema([self.schema.field(name) for name in wanted], self.schema.metadata)
        for file in self.files:
            for batch in read_batches(file.place, columns=wanted, batch_rows=batch_rows):
                with storing(file.place, "read"):
                    yield batch if batch.schema.equals(schema) else batch.cast(schema)


def _shared(parts: Any) -> Iterator[ParquetPart]:
    """Schemas that differ in their metadata alone as one object: a hundred thousand files have rarely more than one."""
    known: list[Any] = []
    for part in parts:
        same = next((schema for schema in known if schema.equals(part.schema)), None)
        if same is None:
            known.append(part.schema)
        else:
            object.__setattr__(part, "schema", same)
        yield part


def read_footer(where: Place, file: Found) -> ParquetPart:
    """What the footer of a Parquet file says; an unreadable one is named."""
    with storing(where, "read"), where.filesystem.open_input_file(where.path) as stream:
        opened = parquet().ParquetFile(stream)
        metadata, schema = opened.metadata, opened.schema_arrow
        groups = tuple(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))
        digest = _footer_digest(stream)
    return ParquetPart(where, file.relative, groups, schema, digest)


def _footer_digest(stream: Any) -> str:
    """Of the footer of an open Parquet file."""
    size = stream.size()
    stream.seek(size - 8)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(size - 8 - length)
    return hashlib.sha256(stream.read(length)).hexdigest()[:16]


def read_schema(where: Place) -> Any:
    """The Arrow schema of a Parquet file."""
    with storing(where, "read"), where.filesystem.open_input_file(where.path) as stream:
        return parquet().read_schema(stream)


def read_batches(
    where: Place,
    *,
    columns: Sequence[str] | None = None,
    groups: tuple[int, int] | None = None,
    batch_rows: int = BATCH_ROWS,
    first_row: int = 0,
    digest: str | None = None,
) -> Iterator[Any]:
    """Record batches of the row groups from groups[0] up to groups[1] of a Parquet file, on the calling thread.

    In memory are a batch and, of each column, the pages that it lies in (1 MiB each as most writers make them), however
    large the row groups are.

    `first_row` is where they start in the file, for the message about a damaged one. `digest` is that of the footer
    from which they were chosen: a file that has another one by now is refused.
    """
    with storing(where, "read"):
        stream = where.filesystem.open_input_file(where.path)
    with stream:
        with storing(where, "read"):
            # Buffered, each column is read page by page; else a row group's columns would be in memory as a whole.
            buffer = BUFFER_LOCAL if where.filesystem.type_name == "local" else BUFFER_FAR
            opened = parquet().ParquetFile(stream, buffer_size=buffer, pre_buffer=False)
            if digest is not None and _footer_digest(stream) != digest:
                raise StorageError(f"{where} was replaced after this run had begun; run again")
            names = None if columns is None else list(columns)
            chosen = list(range(*((0, opened.num_row_groups) if groups is None else groups)))
            batches = opened.iter_batches(batch_rows, row_groups=chosen, columns=names, use_threads=False)
        row = first_row
        while True:
            try:
                batch = next(batches, None)
            except (OSError, arrow().ArrowException) as error:
                raise StorageError(
                    f"{where} is damaged: its rows from {row:,} on cannot be read ({error}); replace the file and run "
                    "again, what is finished is kept"
                ) from error
            if batch is None:
                return
            row += len(batch)
            yield batch if names is None else batch.select(names)


class FrameSource:
    """A pandas, polars or Arrow frame; columns are converted when they are asked for."""

    def __init__(self, frame: Any, what: str = "the frame") -> None:
        import narwhals as nw

        try:
            self._frame = nw.from_native(_table_of(frame), eager_only=True)
            self.names = tuple(map(str, self._frame.columns))
        except nw.exceptions.DuplicateError as error:
            raise InputError(f"{what} has columns of the same name: {error}") from error
        except TypeError as error:
            raise InputError(
                f"{what} is a {type(frame).__module__}.{type(frame).__qualname__}; expected a Parquet file or folder, "
                "or a pandas, polars or Arrow frame"
            ) from error
        self.what = what

    @cached_property
    def schema(self) -> Any:
        return self.table().schema

    @property
    def n_rows(self) -> int:
        return len(self._frame)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """The named columns as an Arrow table."""
        pa = arrow()
        wanted = self.names if columns is None else columns
        missing = [name for name in wanted if name not in self.names]
        if missing:
            raise InputError(f"{self.what} lacks {', '.join(map(repr, missing))}; it has {', '.join(self.names)}")
        arrays = []
        for name in wanted:
            series = self._frame[:, self.names.index(name)]
            try:
                arrays.append(series.to_arrow())
            except (pa.ArrowException, TypeError) as error:
                raise InputError(
                    f"column {name!r} of {self.what} cannot be an Arrow column ({error}); give it one type of values"
                ) from error
        return pa.table(dict(zip(wanted, arrays, strict=True)))

    def batches(self, columns: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[Any]:
        yield from self.table(columns).to_batches(max_chunksize=batch_rows)


def _table_of(frame: Any) -> Any:
    """A record batch as a table: narwhals knows tables alone."""
    if type(frame).__module__.startswith("pyarrow") and hasattr(frame, "to_struct_array") and hasattr(frame, "slice"):
        pa = arrow()
        return pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else frame
    return frame


def open_source(data: Any) -> Source:
    """The source of what a user gives: a path or URI, a frame, or anything that has `batches` already."""
    if callable(getattr(data, "batches", None)):
        source: Source = data
        return source
    if isinstance(data, (str, os.PathLike, Place)):
        return ParquetSource(data)
    return FrameSource(data)
