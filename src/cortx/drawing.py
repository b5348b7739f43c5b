"""What all pictures share: colours, an empty figure, tidy axes, readable logarithms. matplotlib is imported on use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, need
from cortx.storage import local_path, replace_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_NAME = 28
INK, NEUTRAL, PALE = "#30363d", "#9aa3ad", "#e6e9ec"


def new_figure(why: str, size: tuple[float, float]) -> Figure:
    """An empty white figure of a size in inches; `why` is what needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise need("matplotlib", why, "plots") from error
    return Figure(figsize=size, layout="constrained", facecolor="white")


def log_axis(
    axis: Any, numbers: npt.NDArray[np.float64], room: tuple[float, float], written: Callable[[float], str]
) -> None:
    """Limits around numbers with room at both ends, and ticks as `written`, more of them over fewer decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = np.log10(numbers.min()), np.log10(numbers.max())
    narrow = max(0.0, 0.3 - (high - low)) / 2
    low, high = low - narrow, high + narrow
    span = high - low
    axis.set_view_interval(10 ** (low - room[0] * span), 10 ** (high + room[1] * span), ignore=True)
    subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if span < 0.8 else (1.0, 2.0, 5.0) if span < 2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda number, _: written(number)))
    axis.set_minor_locator(NullLocator())


def tidy(axes: Axes, grid: Literal["both", "x"] = "both") -> None:
    """Only the bottom spine, quiet ticks, a pale grid behind."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(NEUTRAL)
    axes.tick_params(colors=INK, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis=grid, color=PALE, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)


def finished(figure: Figure, path: str | Path | None) -> Figure:
    """The figure, written to a PNG file if there is a path: whole or not at all."""
    if path is not None:
        path = local_path(path, "path")
        if path.suffix.lower() != ".png":
            raise InputError(f"path must end in .png, got {str(path)!r}; for other formats call .savefig on the figure")
        replace_whole(path, lambda temporary: figure.savefig(temporary, dpi=150, format="png"))
    return figure


def one_line(text: Any, longest: int = LONGEST_NAME) -> str:
    """A short single line in which matplotlib sees no formula."""
    line = " ".join(str(text).split())
    short = line if len(line) <= longest else line[: longest - 1] + "…"
    return short.replace("$", r"\$")
