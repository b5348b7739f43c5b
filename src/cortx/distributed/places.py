"""Places of files: paths and URIs (s3://, gs://, hdfs://) behind one face; files are written whole or not at all."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cortx.errors import InputError, StorageError
from cortx.storage import (
    SECONDS_UNFINISHED,
    TEMPORARY,
    arrow,
    disk_is_full,
    full_words,
    is_address,
    local_path,
    sync,
    sync_names,
)

ENDINGS = (".parquet", ".parq", ".pq")
HIDDEN = ("_", ".")
"""Names that start so are no data: Spark's _SUCCESS, and what is still being written."""


def parquet() -> Any:
    """The module pyarrow.parquet."""
    arrow()
    import pyarrow.parquet

    return pyarrow.parquet


@dataclass(frozen=True)
class Place:
    """A file or folder: what the user named, an absolute path or a URI, and a path from there on. It travels."""

    root: str
    below: str = ""

    @property
    def filesystem(self) -> Any:
        return _filesystem(self.root)[0]

    @property
    def path(self) -> str:
        """The path as the file system wants it."""
        path: str = _filesystem(self.root)[1]
        return f"{path.rstrip('/')}/{self.below}" if self.below else path

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> Place:
        if "/" in self.below:
            return Place(self.root, self.below.rpartition("/")[0])
        if self.below:
            return Place(self.root)
        address, query = _split(self.root)
        return Place((address.rstrip("/").rpartition("/")[0] or "/") + query)

    @property
    def address(self) -> str:
        """Where it lies, without a URI's options."""
        address = _split(self.root)[0].rstrip("/")
        return f"{address}/{self.below}" if self.below else address

    def __truediv__(self, relative: str) -> Place:
        return Place(self.root, f"{self.below}/{relative}" if self.below else relative)

    def __str__(self) -> str:
        return self.address + _split(self.root)[1] if self.below else self.root

    def exists(self) -> bool:
        arrow()
        from pyarrow.fs import FileType

        return bool(self._type() != FileType.NotFound)

    def is_folder(self) -> bool:
        arrow()
        from pyarrow.fs import FileType

        return bool(self._type() == FileType.Directory)

    def _type(self) -> Any:
        with storing(self, "looked at"):
            return self.filesystem.get_file_info(self.path).type

    def read_bytes(self) -> bytes:
        with storing(self, "read"), self.filesystem.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
            return content


def place(path: str | os.PathLike[str] | Place) -> Place:
    """The place of a path, which is made absolute, or of a URI."""
    if isinstance(path, Place):
        return path
    text = os.fspath(path)
    if not text:
        raise InputError("the path is empty; give a file, a folder or a URI")
    if text.startswith("file:/"):
        return Place(str(local_path(text)))
    if is_address(text):
        if "://" not in text:
            raise InputError(f"{text!r} was an address before it became a Path; give it as text, such as 's3://...'")
        return Place(text.rstrip("/"))
    return Place(os.path.abspath(os.path.expanduser(text)))


def _split(root: str) -> tuple[str, str]:
    """A URI and its options, which start with "?"; in a path, that is a letter like others."""
    address, question, query = root.partition("?") if "://" in root else (root, "", "")
    return address, question + query


@lru_cache(64)
def _filesystem(root: str) -> tuple[Any, str]:
    arrow()
    from pyarrow import fs

    if "://" not in root:
        return fs.LocalFileSystem(), root
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(root)
    except Exception as error:
        raise StorageError(f"{root} cannot be reached: {error}") from error
    return found


@contextmanager
def storing(where: Place, done: str) -> Iterator[None]:
    """Errors of file systems and of Parquet as `StorageError`s that name the place; `done` is "read" or "written"."""
    pa = arrow()
    try:
        yield
    except StorageError:
        raise
    except (OSError, pa.ArrowException) as error:
        if disk_is_full(error):
            raise StorageError(full_words(where, error)) from error
        raise StorageError(f"{where} could not be {done}: {error}") from error


def write_whole(where: Place, write: Callable[[Any], None]) -> None:
    """Lets `write` fill a stream under another name in the same folder, then renames: a file is whole or not there."""
    filesystem, path = where.filesystem, where.path
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(4)}-{name}"
    with storing(where, "written"):
        filesystem.create_dir(folder or "/", recursive=True)
        try:
            with filesystem.open_output_stream(temporary) as stream:
                write(stream)
            local = filesystem.type_name == "local"
            if local:
                sync(temporary)
            filesystem.move(temporary, path)
            if local:
                sync_names(folder or "/")
        except BaseException:
            _remove(filesystem, temporary)
            raise


def _remove(filesystem: Any, path: str) -> None:
    try:
        filesystem.delete_file(path)
    except OSError:
        return  # the reason for removing it is the error to tell


@dataclass(frozen=True)
class Found:
    """A file of a folder."""

    relative: str
    """Its path from the folder on, with "/"."""
    size: int
    changed: float | None = None
    """When, in seconds since 1970, where the file system knows."""

    @property
    def hidden(self) -> bool:
        return any(part.startswith(HIDDEN) for part in self.relative.split("/"))


def list_files(folder: Place, *, hidden: bool = False) -> list[Found]:
    """All files below a folder in the order of their paths, part by part; hidden ones only if asked for."""
    from pyarrow import fs

    filesystem, root = folder.filesystem, folder.path.rstrip("/")
    with storing(folder, "read"):
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    files = [
        Found(info.path[len(root) + 1 :], info.size or 0, None if info.mtime_ns is None else info.mtime_ns / 1e9)
        for info in infos
        if info.type == fs.FileType.File
    ]
    return sorted((file for file in files if hidden or not file.hidden), key=lambda file: file.relative.split("/"))


def parquet_files(where: Place) -> tuple[Place, list[Found]]:
    """The folder and its Parquet files in order; a single file is given as the only one of its folder."""
    if not where.exists():
        raise InputError(f"there is no file or folder {str(where)!r}")
    refuse_part_of_table(where)
    if not where.is_folder():
        return where.parent, [Found(where.name, int(where.filesystem.get_file_info(where.path).size))]
    every = list_files(where, hidden=True)
    refuse_tables_below(where, every)
    files = [file for file in every if file.relative.lower().endswith(ENDINGS) and not file.hidden]
    if not files:
        raise InputError(f"the folder {str(where)!r} has no Parquet file (names that end in {', '.join(ENDINGS)})")
    return where, files


# Tables with a log -----------------------------------------------------------------------------------------------

LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
"""Folders in which tables say which of their Parquet files, and which rows of them, count."""
ICEBERG_ENDING = ".metadata.json"


def refuse_part_of_table(where: Place) -> None:
    """Raises `InputError` if a file or folder is, or lies in, a Delta, Iceberg or Hudi table."""
    folder = where.path.rstrip("/")
    if where.filesystem.type_name == "local":
        folder = os.path.realpath(folder)  # a link may lead into a table
    root = "/" if folder.startswith("/") else ""
    parts = [part for part in folder.split("/") if part]
    for length in range(len(parts), 0, -1):
        above = root + "/".join(parts[:length])
        for log in _logs_in(where.filesystem, above):
            raise _logged(where, above, log)


def _logs_in(filesystem: Any, folder: str) -> list[str]:
    """The names of `LOGS` that a folder has; none where nobody may look."""
    from pyarrow import fs

    try:
        infos = filesystem.get_file_info([f"{folder}/{log}" for log in LOGS])
        found = [info.base_name for info in infos if info.type == fs.FileType.Directory]
        if "metadata" in found:  # a common name: only Iceberg's own files tell
            inside = filesystem.get_file_info(fs.FileSelector(f"{folder}/metadata"))
            if not any(info.base_name.endswith(ICEBERG_ENDING) for info in inside):
                found.remove("metadata")
    except OSError:
        return []
    return found


def refuse_tables_below(where: Place, files: list[Found]) -> None:
    """The same if such a table lies below a folder that has these files, hidden ones among them."""
    for file in files:
        above, _, name = file.relative.rpartition("/")
        parts = above.split("/")
        for depth, part in enumerate(parts):
            last = depth == len(parts) - 1
            if part in LOGS and (part != "metadata" or (last and name.endswith(ICEBERG_ENDING))):
                raise _logged(where, "/".join((str(where), *parts[:depth])), part)


def _logged(where: Place, table: str, log: str) -> InputError:
    kind = LOGS[log]
    return InputError(
        f"{str(where)!r} belongs to a {kind} table ({table} has {log}/): its Parquet files also hold rows that were "
        f"deleted or replaced since. Read the table with a library for {kind}, write the rows of now to a folder of "
        "Parquet files and give that; or give the rows as a frame (Spark's to cortx.spark)"
    )


def remove_unfinished(folder: Place) -> None:
    """Removes what killed writers left behind; what somebody may still be writing stays."""
    for file in list_files(folder, hidden=True):
        old = file.changed is not None and time.time() - file.changed > SECONDS_UNFINISHED
        if old and file.relative.rsplit("/", 1)[-1].startswith(TEMPORARY):
            _remove(folder.filesystem, f"{folder.path.rstrip('/')}/{file.relative}")
