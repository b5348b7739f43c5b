"""Options of the command line as the library takes them."""

from __future__ import annotations

import sys
from typing import Literal

from cortx.errors import InputError

OutputName = Literal["auto", "probability", "log-odds", "raw"]
Frame = Literal["numpy", "pandas", "polars", "pyarrow"]


def read_target(text: str | None) -> int | str | None:
    """--target: a whole number is a number."""
    if text is not None and text.lstrip("-").isdigit() and str(int(text)) == text:
        return int(text)
    return text


def read_groups(texts: list[str]) -> dict[str, list[str]] | None:
    """--group name=col1,col2, any number of times."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, equals, columns = text.partition("=")
        members = [column.strip() for column in columns.split(",") if column.strip()]
        if not (name.strip() and equals and members):
            raise InputError(f"--group must look like 'name=col1,col2', got {text!r}")
        if name.strip() in groups:
            raise InputError(f"--group {name.strip()!r} is given twice; list all its columns in one")
        groups[name.strip()] = members
    return groups or None


def log_to_stderr() -> None:
    """Where no progress bar is shown, the steps of long work are written as lines."""
    if sys.stderr.isatty():
        return
    import logging

    logger = logging.getLogger("cortx")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
