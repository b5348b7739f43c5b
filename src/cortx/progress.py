"""Progress bars for long work: shown on a terminal, silent everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[float, str], None]


def _silent(amount: float, note: str = "") -> None:
    return None


@contextmanager
def progress_bar(description: str, total: float, *, show: bool | None = None) -> Iterator[Advance]:
    """Yields ``advance(amount, note)``. ``show=None`` shows the bar only when stderr is a terminal."""
    if not (sys.stderr.isatty() if show is None else show):
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(amount: float, note: str = "") -> None:
            bar.update(task, advance=amount, note=note)

        yield advance
