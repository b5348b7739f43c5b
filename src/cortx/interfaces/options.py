"""Options that several commands have, and their values as the library takes them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.models import ArgumentInfo

from cortx.errors import InputError
from cortx.storage import is_address, local_path

if TYPE_CHECKING:
    from cortx.games.calls import Calls

OutputName = Literal["auto", "probability", "log-odds", "raw"]
Frame = Literal["numpy", "pandas", "polars", "pyarrow"]
EngineName = Literal["local", "ray", "spark"]

BackgroundOption = Annotated[
    Path | None,
    typer.Option(
        help="Instead of a reference: a FILE of rows to average over. Costs so many times more.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    OutputName, typer.Option(help="What is explained; auto is probability for classifiers, else raw.")
]
TargetOption = Annotated[
    str | None, typer.Option(help="The class to explain (its label or number), or 'all'.", show_default=False)
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(help="Columns explained as one: 'name=col1,col2'. Repeat for more groups.", show_default=False),
]
CategoricalOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A numeric column that holds categories. Repeat for more; 'none' says that there are none.",
        show_default=False,
    ),
]
DropOption = Annotated[
    list[str] | None,
    typer.Option(help="A column the model does not take, such as the label. Repeat for more.", show_default=False),
]
WorkersOption = Annotated[
    int | None, typer.Option(help="How many workers; by default all there are.", min=0, show_default=False)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="Threads to use; by default CORTX_THREADS, or what CPUs, quota and the kind of work suggest.",
        min=1,
        show_default=False,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="The Ray cluster ('auto', host:port) or the Spark master.", show_default=False),
]
GpusOption = Annotated[float, typer.Option(help="GPUs of each worker (local, ray), also a part of one.", min=0.0)]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="Where the explainer computes, as torch names it: 'cpu', 'cuda', 'cuda:1'.", show_default=False),
]


SLOW = "Slow and remote models"
"""The heading of their options in the help."""
CallsOption = Annotated[
    int | None,
    typer.Option(
        help="Calls of the model under way at a time, each from a thread of its own, of --rows-per-call rows. "
        "Without any of these options the model is called once at a time, with as many rows as suit it.",
        min=1,
        show_default=False,
        rich_help_panel=SLOW,
    ),
]
CallRowsOption = Annotated[
    int | None, typer.Option(help="Rows of a call, at most.", min=1, show_default="64", rich_help_panel=SLOW)
]
CallRateOption = Annotated[
    float | None,
    typer.Option(
        help="Calls begun a second, at most, repeated ones included.",
        min=0.0,
        show_default="no limit",
        rich_help_panel=SLOW,
    ),
]
RetriesOption = Annotated[
    int | None,
    typer.Option(
        help="How often a call that fails is repeated, after waits that double; Retry-After headers are obeyed. "
        "Its rows count once.",
        min=0,
        show_default="0",
        rich_help_panel=SLOW,
    ),
]
CallTimeoutOption = Annotated[
    float | None,
    typer.Option(
        help="Seconds after which a call counts as failed.", min=0.0, show_default="no limit", rich_help_panel=SLOW
    ),
]


class App(typer.Typer):
    """Commands that check their paths before anything else: file:// becomes a path, other addresses are refused."""

    def command(self, *args: Any, **settings: Any) -> Callable[[Any], Any]:
        register = super().command(*args, **settings)

        def registered(function: Any) -> Any:
            register(with_local_paths(function))
            return function

        return registered


def with_local_paths(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, given only paths of this machine wherever it takes a `Path`."""

    @functools.wraps(command)
    def checked(**given: Any) -> Any:
        return command(**{name: _local(command, name, value) for name, value in given.items()})

    return checked


def _local(command: Callable[..., Any], name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_local(command, name, item) for item in value]
    return local_path(value, option_name(command, name)) if isinstance(value, Path) and is_address(value) else value


def option_name(command: Callable[..., Any], name: str) -> str:
    """What a parameter of a command is called on the command line."""
    annotation = inspect.signature(command, eval_str=True).parameters[name].annotation
    told = next(iter(getattr(annotation, "__metadata__", ())), None)
    # In an annotation typer takes the first name of an option for its default, until it makes the command.
    names = (getattr(told, "default", None), *(getattr(told, "param_decls", None) or ()))
    if isinstance(told, ArgumentInfo):
        return told.metavar or name.upper()
    return next((word for word in names if str(word).startswith("--")), f"--{name.replace('_', '-')}")


def read_target(text: str | None) -> int | str | None:
    """--target: a whole number is a number."""
    if text is not None and text.lstrip("-").isdigit() and str(int(text)) == text:
        return int(text)
    return text


def read_device(name: str | None) -> str:
    """--device, checked before any work; by default the CPU."""
    if name is None:
        return "cpu"
    from cortx.explainer.explainer import usable_device

    return usable_device(name)


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


def read_calls(
    calls: int | None, rows: int | None, per_second: float | None, retries: int | None, timeout: float | None
) -> Calls | None:
    """--calls, --rows-per-call, --calls-per-second, --retries, --call-timeout; None if none of them is given."""
    for option, value in (("--calls-per-second", per_second), ("--call-timeout", timeout)):
        if value == 0:
            raise InputError(f"{option} must be more than 0, got 0")
    given = {"workers": calls, "batch": rows, "per_second": per_second, "retries": retries, "timeout": timeout}
    if all(value is None for value in given.values()):
        return None
    from cortx.games.calls import Calls

    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return Calls(**told)


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


def read_categorical(names: list[str] | None) -> list[str] | None:
    """What --categorical says: columns, none of them (an empty list), or nothing (None)."""
    return [] if names == ["none"] else names or None
