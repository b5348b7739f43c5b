"""What all writers of files share: names while they are unfinished, renames that last, words for a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from cortx.errors import need

TEMPORARY = ".tmp-"
"""What the name of an unfinished file starts with."""
SECONDS_UNFINISHED = 3_600
"""What is unfinished for so long was left behind by a kill."""


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
