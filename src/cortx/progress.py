"""Progress bars for long work: shown on a terminal, silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Advance = Callable[[float, str], None]

SPEED_SECONDS = 3600.0
"""How far back the estimate of the time left looks: tasks of large jobs may take many minutes each."""


def _silent(amount: float, note: str = "") -> None:
    return None


@contextmanager
def progress_bar(description: str, total: float, *, show: bool | None = None) -> Iterator[Advance]:
    """Yields ``advance(amount, note)``. ``show=None`` shows the bar only when stderr is a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield _silent
        return
    from rich.console import Console

    with make_bar(Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float, note: str = "") -> None:
            bar.update(task, advance=amount, note=note)

        yield advance


def make_bar(console: Console, clock: Callable[[], float] | None = None) -> Progress:
    """A bar of rich's with our columns; its tasks have a `note`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    return Progress(*columns, console=console, transient=False, speed_estimate_period=SPEED_SECONDS, get_time=clock)
