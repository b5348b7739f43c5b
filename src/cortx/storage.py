"""What all writers of files share: local paths, files that are replaced whole, words for a full disk."""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

from cortx.errors import InputError, StorageError, need

TEMPORARY = ".tmp-"
"""What the name of an unfinished file starts with."""
SECONDS_UNFINISHED = 3_600
"""What is unfinished for so long was left behind by a kill."""
MOST_JSON = 2**28
"""Bytes of a JSON document that is read: 256 MiB."""
MOST_BYTES = 2**36
"""Bytes of any file that is read as a whole: 64 GiB."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def is_address(value: str | os.PathLike[str]) -> bool:
    """Whether it names a place by a scheme (s3://, gs://, https://): a `Path` has made s3:// into s3:/ already.

    One letter before the colon is a drive.
    """
    return _SCHEME.match(os.fspath(value)) is not None


def local_path(value: str | os.PathLike[str], what: str = "the path") -> Path:
    """A path on this machine's file systems; file:// is understood, any other address is refused with `InputError`.

    Called before any work: ``Path("s3://bucket/x")`` would be a local folder that is called "s3:".
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str) or not text:
        raise InputError(f"{what} must be the path of a file or folder, got {text!r}")
    found = _SCHEME.match(text)
    if found is None:
        return Path(value)
    if found[1].lower() == "file":
        host, _, path = text[len("file:") :].removeprefix("//").partition("/")
        if host in ("", "localhost"):
            return Path(url2pathname(f"/{path}"))
    text = re.sub(r"^(\w[\w+.-]*):/+", r"\1://", text)  # pathlib makes one slash of two
    raise InputError(
        f"{what} is {text!r}, an address; give a local path (also as file:///...), and copy what lies there, or mount "
        "it"
    )


def arrow(what: str = "reading and writing Parquet files") -> Any:
    """The module pyarrow; `what` it is needed for."""
    try:
        import pyarrow
    except ImportError as error:
        raise need("pyarrow", what, "tables") from error
    return pyarrow


def disk_is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def full_words(where: Any, error: BaseException) -> str:
    return (
        f"{where} could not be written: the disk is full ({error}); free some space and run again, what is finished is "
        "kept"
    )


def sync(path: str | Path, how: int = os.O_RDWR) -> None:
    """Waits until the file is on the disk."""
    opened = os.open(path, how)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def sync_names(folder: str | Path) -> None:
    """A rename survives a power cut only once its folder is written too."""
    if os.name == "nt":
        return
    try:
        sync(folder, os.O_RDONLY)
    except OSError:
        return  # not every shared file system can


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that nobody else has, for what will be renamed to `path`."""
    return path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}-{path.name}")


def replace_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Lets `write` write a file under another name in the same folder, then renames it: a file is whole or not there.

    The file gets the mode of any new file (that of the umask).
    """
    temporary = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync_names(path.parent)
    except StorageError:
        raise
    except OSError as error:
        if disk_is_full(error):
            raise StorageError(full_words(path, error)) from error
        raise StorageError(f"{path} could not be written: {error}; what is finished is kept") from error
    finally:
        with suppress(OSError):  # the reason why it is there is the error to tell
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: Any) -> None:
    """The same for bytes, or any buffer of them."""

    def write(temporary: Path) -> None:
        with temporary.open("xb") as file:
            file.write(content)

    replace_whole(path, write)


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file in one read; one of more than `most` bytes is refused before it is read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(min(most, size + 1) + 1)
        size = max(size, len(content))
    if size > most:
        raise StorageError(f"{path} has {size:,} bytes; at most {most:,} are read, so it is not what it should be")
    return content


def is_old(path: Path, seconds: float = SECONDS_UNFINISHED) -> bool:
    """Whether a file was written so long ago; one that somebody else removed counts as new."""
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


def remove_unfinished(folder: Path) -> None:
    """Removes the files that killed writers left in a folder of ours; what somebody may still be writing stays."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if is_old(path):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # somebody else's
