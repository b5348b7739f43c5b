"""The paper's tabular figures from result records. Each function returns a matplotlib ``Figure``.

A method has one colour, marker and line everywhere: `cortx.paper.grid.METHODS`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.drawing import INK, log_axis, new_figure, tidy
from cortx.errors import InputError
from cortx.paper.grid import (
    ABLATION,
    AMORTIZED,
    GRID,
    LABELLED,
    METHODS,
    PEERS,
    SAMPLING,
    THEOREMS,
    UNLABELLED,
    Record,
    by_evaluations,
    number,
    select,
)
from cortx.paper.tables import PAPER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "METHODS",
    "ablation",
    "draw_all",
    "evaluations",
    "labels",
    "permutations",
    "save",
    "supervised",
    "theorems",
    "throughput",
]

Array = npt.NDArray[np.float64]
Place = tuple[str, str]
"""A data set and a setting."""

TITLES = {"census": "Census", "bankruptcy": "Bankruptcy"}
AXES = {
    "l2": "mean l2 error (log scale, less is better)",
    "squared_l2": "mean squared l2 error (log scale)",
    "rank_accuracy": "Rank ACC (more is better)",
    "faithfulness": "faithfulness (more is better)",
    "rows_per_second": "throughput, rows per second (log scale)",
    "seconds_per_row": "seconds per row (log scale)",
    "evaluations": "total model evaluations (log scale)",
}
LOGARITHMIC = ("l2", "squared_l2", "rows_per_second", "seconds_per_row", "evaluations")
PANEL = (4.75, 3.45)  # inches
DPI = 150


class Curve(NamedTuple):
    """Points of one method, (points,) each."""

    x: Array
    y: Array
    spread: Array
    """Standard deviations over seeds; NaN where there is one seed."""
    at: Array


# The figures -----------------------------------------------------------------------------------------------------


def throughput(records: Sequence[Record], places: Sequence[Place] | None = None, device: str | None = None) -> Figure:
    """Quality against explanations per second (paper fig:intep_time): Rank ACC above, l2 below.

    Sampling methods are curves over their budgets, amortized ones single points. `device` ("cpu" or "cuda") is by
    default the faster one that was measured.
    """
    records = _of("throughput", records)
    devices = sorted({str(r["device"]) for r in select(records, metric="rows_per_second") if r.get("device")})
    if device is None:
        device = "cuda" if "cuda" in devices else next(iter(devices), None)
    places = _places(records, places)
    figure, panels = _panels("throughput()", places, ("rank_accuracy", "l2"))
    for (data, setting), metric, axes in panels:
        here = select(records, data=data, setting=setting)
        for method in (*AMORTIZED, *SAMPLING):
            # Quality is the same wherever it was measured; only speeds belong to a device.
            timed = select(here, method=method, metric="rows_per_second")
            speeds = {_at(r): number(r) for r in timed if r.get("device") in (None, device)}
            points = [r for r in select(here, method=method, metric=metric) if _at(r) in speeds]
            curve = _curve(points, [speeds[_at(r)] for r in points])
            _draw(axes, method, curve)
            if method in SAMPLING:
                _name_ends(axes, method, curve)
        _finish_panel(axes, "rows_per_second", metric)
    _finish_columns(panels, places)
    where = {"cuda": "one GPU", "cpu": "CPU"}.get(device or "", device or "")
    where = f"{where}; " if where else ""
    return _with_legend(figure, panels, rf"Quality against throughput ({where}$2^k$: evaluations per row)")


def labels(records: Sequence[Record], places: Sequence[Place] | None = None) -> Figure:
    """Quality against the share of rows that have labels (paper fig:ann_ratio): Rank ACC above, l2 below."""
    records = _of("labels", records)
    places = _places(records, places)
    figure, panels = _panels("labels()", places, ("rank_accuracy", "l2"))
    for (data, setting), metric, axes in panels:
        _draw_shares(axes, select(records, data=data, setting=setting), AMORTIZED, metric)
    _finish_columns(panels, places)
    return _with_legend(figure, panels, "Quality against the share of labelled rows")


def supervised(records: Sequence[Record], place: Place | None = None) -> Figure:
    """Rank ACC of supervised explainers against the share of labels (paper fig:interpret_error_annoatation)."""
    records = _of("labels", records)
    places = _places(records, None if place is None else [place])[:1]
    figure, panels = _panels("supervised()", places, ("rank_accuracy",))
    for (data, setting), metric, axes in panels:
        here = select(records, data=data, setting=setting)
        _draw_shares(axes, here, ("supervised-ce", "supervised-mse", "supervised-strong", *UNLABELLED), metric)
    _finish_columns(panels, places)
    return _with_legend(figure, panels, "Supervised explainers need labels")


def ablation(records: Sequence[Record], place: Place | None = None) -> Figure:
    """Which masked copy is the positive (paper fig:ablpos): l2 with the MSE head, Rank ACC with the CE head."""
    records = _of("ablation", records)
    places = _places(records, None if place is None else [place])[:1]
    [(data, setting)] = places
    here = select(records, data=data, setting=setting)
    figure = new_figure("ablation()", (2 * PANEL[0], PANEL[1] + 0.7))
    pair = figure.subplots(1, 2)
    for axes, head, metric, title in zip(
        pair, ("-mse", "-ce"), ("l2", "rank_accuracy"), ("attribution (MSE head)", "ranking (CE head)"), strict=True
    ):
        _draw_shares(axes, here, [method for method in ABLATION if method.endswith(head)], metric)
        axes.set_title(title, fontsize=11, color=INK)
    for axes in pair:  # both panels compare the same three rules
        for line in axes.get_lines():
            line.set_label(str(line.get_label()).rsplit(", ", 1)[0])
    _legend_of_panel(pair[0])
    _legend_of_panel(pair[1])
    figure.suptitle(f"Which positive? {_title((data, setting))}", fontsize=12, color=INK)
    return figure


def evaluations(records: Sequence[Record], places: Sequence[Place] | None = None) -> Figure:
    """Quality against all model evaluations that an explainer cost, pre-training and labels included.

    A method that was given total budgets is a curve over them, and what it made of shares of labels is hollow.
    """
    known = [r for r in records if r.get("experiment") in ("evaluations", "labels") and math.isfinite(number(r))]
    known = [record for record in known if record.get("evaluations")]
    if not known:
        raise InputError("no record of the experiments 'labels' and 'evaluations' says what it cost; run them first")
    places = _places(known, places)
    figure, panels = _panels("evaluations()", places, ("rank_accuracy", "l2"))
    for (data, setting), metric, axes in panels:
        for method in AMORTIZED:
            points = by_evaluations(known, data=data, setting=setting, method=method, metric=metric)
            planned = [record for record in points if record["experiment"] == "evaluations"]
            curve = planned if len(planned) > 1 else points
            _draw(axes, method, _curve(curve, [number(r, "evaluations") for r in curve]))
            if curve is planned and method in LABELLED:
                others = [record for record in points if record["experiment"] == "labels"]
                costs = [number(record, "evaluations") for record in others]
                _hollow(axes, method, costs, [number(r) for r in others], "shares of labels")
        _finish_panel(axes, "evaluations", metric)
    _finish_columns(panels, places)
    return _with_legend(figure, panels, "What evaluations of the model buy", columns=3)


def permutations(records: Sequence[Record], place: Place | None = None) -> Figure:
    """Sampling with many evaluations (paper tab:exp_ps2): squared error against evaluations and against time.

    The paper's printed numbers are hollow.
    """
    records = _of("permutations", records)
    [(data, setting)] = _places(records, None if place is None else [place])[:1]
    here = select(records, data=data, setting=setting)
    figure = new_figure("permutations()", (2 * PANEL[0], PANEL[1] + 1.4))
    left, right = figure.subplots(1, 2, sharey=True)
    for method in (*SAMPLING, *PEERS, "cortx"):
        errors = select(here, method=method, metric="squared_l2")
        seconds = {_at(r): number(r) for r in select(here, method=method, metric="seconds_per_row")}
        timed = [record for record in errors if _at(record) in seconds]
        if method == "cortx":
            for record in errors:
                _level(left, method, number(record), number(record, "spread"))
        else:
            _draw(left, method, _curve(errors, [_at(r) for r in errors]))
        _draw(right, method, _curve(timed, [seconds[_at(r)] for r in timed]))
    for method in SAMPLING:
        printed = [key for key in PAPER if key[:2] == ("permutations", method) and key[2] == "squared_l2"]
        budgets = [float(key[3] or math.nan) for key in printed]
        errors_printed = [PAPER[key].value for key in printed]
        times = [PAPER["permutations", method, "seconds_per_row", key[3]].value for key in printed]
        for axes, x in ((left, budgets), (right, times)):
            _hollow(axes, method, x, errors_printed, "as printed")
    _finish_panel(left, "evaluations", "squared_l2")
    _finish_panel(right, "seconds_per_row", "squared_l2")
    left.set_xlabel("evaluations per row (log scale)")
    right.set_ylabel("")
    right.tick_params(labelleft=False)
    title = f"Sampling until it converges: {_title((data, setting))}"
    return _with_legend(figure, [((data, setting), "", left), ((data, setting), "", right)], title, columns=3)


def theorems(records: Sequence[Record], places: Sequence[Place] | None = None) -> Figure:
    """Both sides of each inequality, median over rows, joined by a line, with how often it and its assumption hold."""
    records = _of("theorems", records)
    places = _places(records, places, everything=True)
    found = [
        (method, place)
        for method in THEOREMS
        for place in places
        if select(records, data=place[0], setting=place[1], method=method, metric="left_median")
    ]
    figure = new_figure("theorems()", (9.5, 1.6 + 0.68 * len(found)))
    axes = figure.add_subplot()
    reached: list[float] = []
    for height, (method, (data, setting)) in enumerate(found):
        of = {r["metric"]: number(r) for r in select(records, data=data, setting=setting, method=method)}
        low, high = of["left_median"], of.get("right_median", math.nan)
        reached += [low, high]
        colour = METHODS[method].colour
        axes.plot([low, high], [height, height], color=colour, linewidth=2.0, alpha=0.5, zorder=2)
        axes.scatter([low], [height], s=60, color=colour, zorder=3)
        axes.scatter([high], [height], s=60, facecolor="white", edgecolor=colour, linewidths=1.8, zorder=3)
        middle = math.sqrt(low * high) if low > 0 and high > 0 else high
        text = f"{_short(of.get('tightness', math.nan))} times apart, holds for {of.get('holds', math.nan):.0%} of rows"
        assumed = of.get("assumption_holds", math.nan)
        text += f"; its assumption for {assumed:.1%}" if math.isfinite(assumed) else ""
        axes.annotate(
            text,
            (middle, height),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )
    axes.set_xscale("log")
    names = [f"{METHODS[method].name.replace(', ', chr(10), 1)}\n{place[1]}" for method, place in found]
    axes.set_yticks(range(len(found)), labels=names)
    axes.set_ylim(len(found) - 0.5, -0.6)
    known = np.array([value for value in reached if value > 0])
    if known.size:
        log_axis(axes.xaxis, known, room=(0.08, 0.08), written=_short)
    axes.set_xlabel("median over rows (log scale): filled, left side (what is bounded); hollow, right side (the bound)")
    axes.set_title("The theorems' inequalities, measured", fontsize=12, color=INK)
    tidy(axes)
    axes.grid(visible=False, axis="y")
    return figure


def draw_all(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Every figure that the records allow, as PNG files in `folder`; each appears whole or not at all.

    The first setting of each data set shares a figure; a further setting gets its own, named after it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    first = [(data, study.settings[0]) for data, study in GRID.items()]
    further = [(data, setting) for data, study in GRID.items() for setting in study.settings[1:]]
    one = {"ablation": ablation, "permutations": permutations, "supervised": supervised}
    many: dict[str, Callable[..., Figure]] = {"throughput": throughput, "labels": labels, "evaluations": evaluations}
    written = []

    def draw(name: str, experiment: str, figure: Callable[..., Figure], places: Sequence[Place], single: bool) -> None:
        experiments = ("labels", "evaluations") if experiment == "evaluations" else (experiment,)
        there = {_place(r) for r in records if r.get("experiment") in experiments and math.isfinite(number(r))}
        known = [place for place in places if place in there]
        if known:
            written.append(save(figure(records, known[0] if single else known), folder / f"{name}.png"))

    for name, picture in many.items():
        draw(name, name, picture, first, single=False)
        for place in further:
            draw(f"{name}-{_slug(place)}", name, picture, [place], single=False)
    for name, picture in one.items():
        draw(name, "labels" if name == "supervised" else name, picture, first, single=True)
    draw("theorems", "theorems", theorems, [*first, *further], single=False)
    return written


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a PNG beside its place and renames it, so that no half-written picture is ever seen."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise InputError(f"path must end in .png, got {str(path)!r}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Without the library's version in it, the same records give the same file.
        figure.savefig(temporary, dpi=DPI, format="png", metadata={"Software": None})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


# What the pictures read from records ------------------------------------------------------------------------------


def _of(experiment: str, records: Iterable[Record]) -> list[Record]:
    """The records of an experiment that hold a number."""
    found = [r for r in records if r.get("experiment") == experiment and math.isfinite(number(r))]
    if not found:
        raise InputError(f"there are no records of the experiment {experiment!r}; run it first")
    return found


def _place(record: Record) -> Place:
    return str(record.get("data")), str(record.get("setting"))


def _places(records: Sequence[Record], wanted: Sequence[Place] | None, everything: bool = False) -> list[Place]:
    """The data sets and settings to draw: those asked for, or the first setting of each data set that is there."""
    there = {_place(record) for record in records}
    if wanted is not None:
        unknown = [place for place in wanted if tuple(place) not in there]
        if unknown:
            raise InputError(f"no records for {unknown}; there are {sorted(there)}")
        return [(str(data), str(setting)) for data, setting in wanted]
    known = [(data, setting) for data, study in GRID.items() for setting in study.settings]
    ordered = [place for place in known if place in there] + sorted(there - set(known))
    if everything:
        return ordered
    return [place for i, place in enumerate(ordered) if place[0] not in {data for data, _ in ordered[:i]}]


def _at(record: Record) -> float:
    """Where a record stands on its axis; -1 where it has no place of its own (NaN is unequal to itself)."""
    return -1.0 if record.get("at") is None else float(record["at"])


def _curve(points: Sequence[Record], x: Sequence[float]) -> Curve:
    columns = (x, map(number, points), (number(r, "spread") for r in points), map(_at, points))
    return Curve(*(np.array(list(column), dtype=np.float64) for column in columns))


def _title(place: Place) -> str:
    return f"{TITLES.get(place[0], place[0])}, {place[1]}"


def _slug(place: Place) -> str:
    return f"{place[0]}-{place[1]}".replace(",", "").replace(" ", "-")


# How the pictures look --------------------------------------------------------------------------------------------


Panels = list[tuple[Place, str, "Axes"]]


def _panels(why: str, places: Sequence[Place], metrics: Sequence[str]) -> tuple[Figure, Panels]:
    """A column for each place and a row for each metric; one place has its metrics side by side."""
    across = len(places) == 1
    rows, columns = (1, len(metrics)) if across else (len(metrics), len(places))
    width = PANEL[0] * columns if columns > 1 else 7.0
    figure = new_figure(why, (width, PANEL[1] * rows + 1.3))
    grid = figure.subplots(rows, columns, squeeze=False)
    panels: Panels = []
    for i, metric in enumerate(metrics):
        for j, place in enumerate(places):
            panels.append((place, metric, grid[0, i] if across else grid[i, j]))
    return figure, panels


def _draw(axes: Axes, method: str, curve: Curve) -> None:
    """A method's points in its own look, their spread as a band; a single point has bars and no line."""
    if not len(curve.x):
        return
    look = METHODS[method]
    ours = method == "cortx"
    low, high = curve.y - curve.spread, curve.y + curve.spread
    order = 5 if ours else 4
    size = {"*": 11, "P": 9, "X": 9}.get(look.marker, 7)
    if len(curve.x) == 1:
        if np.isfinite(curve.spread[0]):
            axes.plot(curve.x[[0, 0]], [low[0], high[0]], color=look.colour, linewidth=1.2, zorder=order)
        axes.plot(
            curve.x, curve.y, linestyle="none", marker=look.marker, markersize=size + 2.5, color=look.colour,
            markeredgecolor="white", markeredgewidth=0.7, label=look.name, zorder=order,
        )  # fmt: skip
        return
    axes.fill_between(curve.x, low, high, color=look.colour, alpha=0.18, linewidth=0, zorder=order - 2)
    axes.plot(
        curve.x, curve.y, color=look.colour, linestyle=look.line, linewidth=2.4 if ours else 1.6, marker=look.marker,
        markersize=size, markeredgecolor="white", markeredgewidth=0.7, label=look.name, zorder=order,
    )  # fmt: skip


def _level(axes: Axes, method: str, value: float, spread: float) -> None:
    """A method that has no place on the x axis: a line across, its spread as a band."""
    look = METHODS[method]
    axes.axhline(value, color=look.colour, linestyle=look.line, linewidth=1.8, label=look.name, zorder=3)
    if math.isfinite(spread):
        axes.axhspan(value - spread, value + spread, color=look.colour, alpha=0.15, linewidth=0, zorder=1)


def _hollow(axes: Axes, method: str, x: Sequence[float], y: Sequence[float], what: str) -> None:
    if not len(x):
        return
    look = METHODS[method]
    axes.plot(
        x, y, linestyle="none", marker=look.marker, markersize=8, markerfacecolor="white",
        markeredgecolor=look.colour, markeredgewidth=1.5, label=f"{look.name}, {what}", zorder=3,
    )  # fmt: skip


def _draw_shares(axes: Axes, records: Sequence[Record], methods: Sequence[str], metric: str) -> None:
    shares: set[float] = set()
    for method in methods:
        points = select(records, method=method, metric=metric)
        without = [record for record in points if record.get("at") is None]
        points = [record for record in points if record.get("at") is not None]
        for record in without:
            _level(axes, method, number(record), number(record, "spread"))
        _draw(axes, method, _curve(points, [_at(r) for r in points]))
        shares |= {_at(r) for r in points}
    _finish_panel(axes, "at", metric)
    from matplotlib.ticker import NullLocator

    if shares:
        ticks = sorted(shares)
        axes.set_xscale("log")
        axes.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
        axes.set_xticks(ticks, labels=[f"{100 * share:.3g}%" for share in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("share of training rows with labels (log scale)")


def _name_ends(axes: Axes, method: str, curve: Curve) -> None:
    """The smallest and the largest budget of a curve, as powers of two where they are."""
    if len(curve.x) < 2:
        return
    from matplotlib.patheffects import withStroke

    # Two curves often run side by side: one is named above its ends, the other below.
    lift = 5 if method == "permutation" else -12
    for i, side, align in ((0, 5, "left"), (len(curve.x) - 1, -5, "right")):
        power = math.log2(curve.at[i])
        text = rf"$2^{{{power:.0f}}}$" if power.is_integer() else f"{curve.at[i]:,.0f}"
        axes.annotate(
            text,
            (curve.x[i], curve.y[i]),
            xytext=(side, lift),
            textcoords="offset points",
            ha=align,
            fontsize=9.5,
            color=METHODS[method].colour,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=6,
        )


def _finish_panel(axes: Axes, across: str, metric: str) -> None:
    """Scales, limits with room, ticks in plain numbers, labels."""
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    for name, axis, values, set_scale in (
        (across, axes.xaxis, _seen(lines, 0, axes), axes.set_xscale),
        (metric, axes.yaxis, _seen(lines, 1, axes), axes.set_yscale),
    ):
        positive = values[values > 0]
        if name in LOGARITHMIC and positive.size:
            set_scale("log")
            log_axis(axis, positive, room=(0.08, 0.1), written=_short)
    axes.set_xlabel(AXES.get(across, across))
    axes.set_ylabel(AXES[metric])
    tidy(axes)


def _seen(lines: Sequence[Any], which: int, axes: Axes) -> Array:
    """Every coordinate drawn, but for the two ends of lines across the whole panel."""
    parts = []
    for line in lines:
        data = np.asarray(line.get_data()[which], dtype=np.float64)
        if which == 0 and line.get_transform() != axes.transData:
            continue
        parts.append(data[np.isfinite(data)])
    return np.concatenate([np.empty(0), *parts])


def _finish_columns(panels: Panels, places: Sequence[Place]) -> None:
    """Each column is named once; inner panels do not repeat what their neighbours say."""
    if len(places) == 1:
        return
    first = panels[0][1]
    for place, metric, axes in panels:
        if metric == first:
            axes.set_title(_title(place), fontsize=11, color=INK)
            axes.set_xlabel("")
        if place != places[0]:
            axes.set_ylabel("")


def _with_legend(figure: Figure, panels: Panels, title: str, columns: int = 4) -> Figure:
    """One legend under all panels, each method once, and a title."""
    handles: dict[str, Any] = {}
    for _, _, axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    places = {place for place, _, _ in panels}
    if len(places) == 1 and ":" not in title:
        title = f"{title}: {_title(next(iter(places)))}"
    figure.suptitle(title, fontsize=12, color=INK)
    columns = min(columns, len(handles), 4 if figure.get_figwidth() > 8 else 2)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=max(1, columns), frameon=False,
        fontsize=9.5, labelcolor=INK, handlelength=2.6, columnspacing=1.6,
    )  # fmt: skip
    return figure


def _legend_of_panel(axes: Axes) -> None:
    axes.legend(fontsize=9, facecolor="white", edgecolor="none", framealpha=0.85, labelcolor=INK, handlelength=2.6)


def _short(value: float) -> str:
    """A number as people say it: 0.002, 350, 20,000, 3 M; powers of ten where that is too long."""
    if not math.isfinite(value):
        return "?"
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        power = f"10^{{{int(exponent)}}}"
        return f"${power}$" if float(mantissa) == 1 else rf"${float(mantissa):g}\cdot{power}$"
    for unit, name in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if size >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}" if size >= 100 else f"{value:.2g}" if size >= 10 else f"{value:.3g}"
