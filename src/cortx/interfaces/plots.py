"""Pictures of explanations. Each function returns a matplotlib ``Figure`` and, given a `path`, saves it as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cortx.drawing import INK, NEUTRAL, finished, log_axis, new_figure, one_line, tidy
from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.interfaces.image_plots import compare_images, image, masking_curves
from cortx.metrics import l2_distance, rank_accuracy
from cortx.metrics.inputs import Attributions, as_pair, finite_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cortx.explainer.report import QualityReport

__all__ = [
    "agreement",
    "compare_images",
    "comparison",
    "image",
    "learning_curve",
    "masking_curves",
    "quality",
    "summary",
    "waterfall",
]

Array = npt.NDArray[np.float64]

UP, DOWN = "#c8373f", "#2a6fb0"
LOW_TO_HIGH = (DOWN, "#b9a7c9", UP)
MOST_DOTS = 2_000
WATERFALL_WIDTH, LETTER_WIDTH = 8.0, 0.08  # inches; a letter of 9 points


def waterfall(
    explanation: Explanation,
    row: int = 0,
    output: int | str = 0,
    max_players: int = 10,
    path: str | Path | None = None,
) -> Figure:
    """One row's way from the base value (bottom) to the output (top), the strongest player last.

    Players beyond `max_players` are one bar of their sum. Labels carry the standard error where it is known and
    not zero, and thin whiskers the bands of the players shown; a dotted line marks the model's own output where the
    attributions do not add up to it.
    """
    _check_count("max_players", max_players)
    if not -len(explanation) <= row < len(explanation):
        raise InputError(f"row {row} is out of range; there are {len(explanation)} rows")
    chosen = explanation[row]
    values, base_values, k = _one_output(chosen, output)
    names, errors = _named_with_values(chosen), _errors(chosen, k)
    order = np.argsort(-np.abs(values[0]), kind="stable")
    n_shown = len(order) if len(order) <= max_players else max_players - 1
    shown, rest = order[:n_shown], order[n_shown:]

    labels = [names[j] for j in shown[::-1]]
    steps = [float(values[0, j]) for j in shown[::-1]]
    texts = [_signed(values[0, j], errors[j]) for j in shown[::-1]]
    bands = _first_bands(chosen, k)[shown[::-1]]
    if len(rest):
        total = float(values[0, rest].sum())
        labels.insert(0, f"{len(rest)} others" if n_shown else f"all {len(rest)} players")
        steps.insert(0, total)
        texts.insert(0, _signed(total))
        bands = np.concatenate([np.full((1, 2), np.nan), bands])

    base = float(base_values[0])
    ends = base + np.cumsum(steps)
    starts = np.concatenate([[base], ends[:-1]])
    figure = new_figure("waterfall()", (WATERFALL_WIDTH, 1.9 + 0.42 * len(steps)))
    axes = figure.add_subplot()
    positions = np.arange(len(steps))
    axes.barh(positions, steps, left=starts, height=0.62, color=[UP if s >= 0 else DOWN for s in steps], zorder=3)
    for position in positions[:-1]:
        x = ends[position]
        axes.plot([x, x], [position - 0.31, position + 1.31], color=NEUTRAL, linewidth=0.8, zorder=2)
    whiskers = starts[:, None] + bands  # (steps, 2)
    upwards = np.array(steps) >= 0
    outer = np.where(upwards, np.fmax(ends, whiskers[:, 1]), np.fmin(ends, whiskers[:, 0]))
    _draw_whiskers(axes, whiskers)
    for position, step, text in zip(positions, steps, texts, strict=True):
        upward = step >= 0
        axes.annotate(
            text,
            (outer[position], position),
            xytext=(5 if upward else -5, 0),
            textcoords="offset points",
            ha="left" if upward else "right",
            va="center",
            fontsize=9,
            color=INK if step == 0 else UP if upward else DOWN,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
            zorder=4,
        )
    axes.set_yticks(positions, labels=labels)
    axes.set_ylim(-0.75, len(steps) - 0.25)
    reached = [base, *ends.tolist(), *whiskers[np.isfinite(whiskers)].tolist()]
    end_label = f"output = {_number(ends[-1])}"
    if chosen.outputs is not None:
        own = float(chosen.outputs.reshape(1, -1)[0, k])
        if abs(own - ends[-1]) > 0.005 * (max(reached) - min(reached)):
            axes.axvline(own, color=INK, linewidth=1.0, linestyle=":", zorder=1)
            end_label = f"base + attributions = {_number(ends[-1])}, model output = {_number(own)} (dotted)"
            reached.append(own)
    axes_width = WATERFALL_WIDTH - 0.3 - LETTER_WIDTH * max(map(len, labels))
    shares = np.array([LETTER_WIDTH * len(text) + 0.15 for text in texts]) / axes_width
    axes.set_xlim(_limits_with_room(reached, outer, np.where(upwards, shares, -shares)))
    axes.axvline(base, color=NEUTRAL, linewidth=1.0, linestyle="--", zorder=1)
    axes.set_xlabel(f"model output{_output_suffix(chosen, k)}{_whisker_note(chosen, whiskers)}")
    axes.set_title(f"base value = {_number(base)} (dashed)   →   {end_label}", fontsize=10, color=INK)
    tidy(axes, grid="x")
    return finished(figure, path)


def summary(
    explanation: Explanation,
    max_players: int = 12,
    output: int | str = 0,
    path: str | Path | None = None,
) -> Figure:
    """The players with the largest mean |value|: that mean as a bar, and one dot a row for the values behind it.

    Dots are coloured by the feature's value, from its 5th to its 95th percentile; grey where it is missing or
    not a number. At most 2,000 evenly spaced rows become dots; the bars use all.
    """
    _check_count("max_players", max_players)
    if len(explanation) == 0:
        raise InputError("the explanation has no rows; give at least one")
    values, _, k = _one_output(explanation, output)
    strength = np.abs(values).mean(axis=0)
    shown = np.argsort(-strength, kind="stable")[:max_players]
    dots = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_DOTS)).astype(np.int64))

    figure = new_figure("summary()", (9.5, 1.7 + 0.42 * len(shown)))
    bars, strip = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.7))
    positions = np.arange(len(shown))
    bars.barh(positions, strength[shown], height=0.62, color=INK, alpha=0.75, zorder=3)
    for position, j in zip(positions, shown, strict=True):
        _bar_text(bars, float(strength[j]), float(position), _number(float(strength[j])))
    bars.set_xlim(0, (strength.max() or 1.0) * 1.25)
    bars.locator_params(axis="x", nbins=4)
    bars.set_xlabel("mean |attribution|")
    bars.set_yticks(positions, labels=[one_line(explanation.feature_names[j]) for j in shown])
    bars.set_ylim(len(shown) - 0.4, -0.6)

    # Multiples of the golden ratio fill the band evenly and are the same in every run.
    jitter = ((np.arange(len(dots)) * 0.6180339887498949) % 1 - 0.5) * 0.56
    size = float(np.clip(3_000 / len(dots), 4, 22))
    colours = _colour_map()
    coloured, some_grey = None, False
    for position, j in zip(positions, shown, strict=True):
        scale = _low_to_high(_feature_column(explanation, int(j)), len(values))
        known = np.zeros(len(dots), dtype=bool) if scale is None else np.isfinite(scale[dots])
        some_grey |= not known.all()
        x, y = values[dots, j], position + jitter
        style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.75, "zorder": 3}
        strip.scatter(x[~known], y[~known], color=NEUTRAL, **style)
        if scale is not None and known.any():
            coloured = strip.scatter(x[known], y[known], c=scale[dots][known], cmap=colours, vmin=0, vmax=1, **style)
    strip.axvline(0, color=INK, linewidth=0.8, zorder=2)
    strip.tick_params(axis="y", length=0, labelleft=False)
    rows = f"{len(values):,} rows" if len(dots) == len(values) else f"{len(dots):,} of {len(values):,} rows"
    grey = ", grey: text or missing" if some_grey and coloured is not None else ""
    strip.set_xlabel(f"attribution{_output_suffix(explanation, k)} ({rows}{grey})")
    if coloured is not None:
        bar = figure.colorbar(coloured, ax=strip, ticks=[0, 1], aspect=30, pad=0.02)
        bar.ax.set_yticklabels(["low", "high"])
        bar.set_label("feature value", labelpad=-12)
        bar.outline.set_visible(False)
        if bar.solids is not None:
            bar.solids.set_alpha(1)
        bar.ax.tick_params(length=0, colors=INK, labelsize=9)
        bar.ax.yaxis.label.set_color(INK)
    tidy(bars, grid="x")
    tidy(strip, grid="x")
    return finished(figure, path)


def agreement(
    predicted: Attributions,
    truth: Attributions,
    output: int | str = 0,
    path: str | Path | None = None,
) -> Figure:
    """Predicted against true attributions, one dot a row and player (at most 20,000), with the diagonal of equality."""
    first, second = as_pair(predicted, truth)
    if len(first) == 0:
        raise InputError("predicted and truth have no rows; give at least one")
    finite_values(first, "predicted")
    finite_values(second, "truth")
    names = second if isinstance(truth, Explanation) else first
    _, _, k = _one_output(names, output)
    y, x = _one_output(first, k)[0].ravel(), _one_output(second, k)[0].ravel()
    distance = l2_distance(predicted, truth).reshape(len(first), -1)[:, k].mean()
    accuracy = rank_accuracy(predicted, truth).reshape(len(first), -1)[:, k].mean()
    dots = np.unique(np.linspace(0, len(x) - 1, min(len(x), 10 * MOST_DOTS)).astype(np.int64))

    figure = new_figure("agreement()", (5.6, 5.6))
    axes = figure.add_subplot()
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.05 * (high - low) or 0.5
    limits = (low - margin, high + margin)
    axes.plot(limits, limits, color=INK, linewidth=1.0, linestyle="--", zorder=4, label="equal")
    size = float(np.clip(20_000 / len(dots), 4, 26))
    axes.scatter(x[dots], y[dots], s=size, color=DOWN, alpha=0.35 if len(dots) > 500 else 0.6, linewidths=0, zorder=3)
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_aspect("equal")
    axes.set_xlabel(f"true attribution{_output_suffix(names, k)}")
    axes.set_ylabel("predicted attribution")
    axes.set_title(
        f"mean l2 = {_number(distance)}, Rank ACC = {accuracy:.3f}\n{len(first):,} rows, {first.shape[1]} players",
        fontsize=10,
        color=INK,
    )
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    tidy(axes, grid="both")
    return finished(figure, path)


def comparison(
    records: Sequence[Mapping[str, Any]],
    highlight: str | None = None,
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """Named methods side by side, in the order given: their error, and their microseconds a row, on log scales.

    Each record holds ``method``, ``l2`` and ``microseconds``; an error of exactly 0 is written, not drawn.
    `highlight` names the method to colour.
    """
    methods, errors, microseconds = _read_records(records)
    if highlight is not None and highlight not in methods:
        raise InputError(f"highlight must be one of {', '.join(methods)}, got {highlight!r}")
    figure = new_figure("comparison()", (9.5, 1.6 + 0.42 * len(methods)))
    left, right = figure.subplots(1, 2, sharey=True)
    colours = [UP if method == highlight else DOWN for method in methods]
    _log_bars(left, errors, colours)
    _log_bars(right, microseconds, colours)
    left.set_yticks(np.arange(len(methods)), labels=[one_line(method) for method in methods])
    left.set_ylim(len(methods) - 0.4, -0.6)
    left.set_xlabel("mean l2 error (log scale, less is better)")
    right.set_xlabel("microseconds per row (log scale, less is better)")
    right.tick_params(axis="y", length=0, labelleft=False)
    if title is not None:
        figure.suptitle(one_line(title, longest=90), fontsize=11, color=INK)
    return finished(figure, path)


def learning_curve(
    curve: Sequence[Mapping[str, Any]],
    target: float | None = None,
    title: str | None = None,
    path: str | Path | None = None,
) -> Figure:
    """How the error fell while model evaluations were spent, on log scales, with the number of labels at each point.

    Each point holds ``labels``, ``evaluations`` and ``l2``, all above zero; `target` is a line at the error asked for.
    """
    labels, evaluations, errors = _read_curve(curve)
    if target is not None and not (np.isfinite(target) and target > 0):
        raise InputError(f"target must be a number above 0, got {target}")
    figure = new_figure("learning_curve()", (6.8, 4.2))
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(evaluations, errors, color=DOWN, linewidth=1.6, marker="o", markersize=5, zorder=3)
    for i in _spread(np.log(evaluations), share=0.11):
        axes.annotate(
            f"{labels[i]:,}" if i else f"{labels[i]:,} labels",
            (evaluations[i], errors[i]),
            xytext=(3, 5),
            textcoords="offset points",
            fontsize=8.5,
            color=INK,
            zorder=4,
        )
    seen = errors if target is None else np.append(errors, target)
    log_axis(axes.xaxis, evaluations, room=(0.06, 0.12), written=_number)
    log_axis(axes.yaxis, seen, room=(0.08, 0.12), written=_number)
    if target is not None:
        axes.axhline(target, color=UP, linewidth=1.0, linestyle="--", zorder=2)
        axes.annotate(
            f"target {_number(target)}",
            (1, target),
            xycoords=("axes fraction", "data"),
            xytext=(-3, 4),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=UP,
        )
    axes.set_xlabel("model evaluations (log scale)")
    axes.set_ylabel("mean l2 error (log scale, less is better)")
    first, last = _number(float(errors[0])), _number(float(errors[-1]))
    fell = f"l2 = {last}" if len(errors) == 1 else f"l2 from {first} to {last}"
    spent = f"{fell} with {int(evaluations[-1]):,} evaluations"
    axes.set_title(spent if title is None else f"{one_line(title, longest=70)}\n{spent}", fontsize=10, color=INK)
    tidy(axes, grid="both")
    return finished(figure, path)


def quality(report: QualityReport, title: str | None = None, path: str | Path | None = None) -> Figure:
    """What `CoRTX.evaluate` found: how often bounds held at each confidence, and each row's error against its bound.

    Dots above the line are rows that the bound missed; those whose label is only noisy keep the colour of the others.
    An explainer without bounds has one panel: errors against what it expected them to be.
    """
    rows = f"{report.measures['rows']:,} fresh rows"
    if report.coverage is None or report.bounds is None:
        figure = new_figure("quality()", (5.4, 4.6))
        _draw_errors(figure.add_subplot(), report, report.difficulty, None)
    else:
        figure = new_figure("quality()", (10.2, 4.6))
        left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
        _draw_coverage(left, report)
        _draw_errors(right, report, report.bounds, report.confidence)
    head = f"verdict: {report.verdict} ({rows})"
    head = head if title is None else f"{one_line(title, longest=70)}   {head}"
    figure.suptitle(head, fontsize=11, color=INK if report.fits else UP)
    return finished(figure, path)


def _draw_coverage(axes: Axes, report: QualityReport) -> None:
    """Coverage against confidence, with the diagonal and the range of chance."""
    asked = np.array([level.confidence for level in report.levels])
    low, high = (np.array([getattr(level, end) for level in report.levels]) for end in ("low", "high"))
    axes.fill_between(
        asked, low, high, color=NEUTRAL, alpha=0.25, linewidth=0, zorder=1, label="what chance allows (95%)"
    )
    axes.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle="--", zorder=2, label="as promised")
    for key, colour, marker, label in (
        ("bound", DOWN, "o", "error bounds"),
        ("bands", UP, "s", "bands of all values"),
    ):
        held = [getattr(level, key) for level in report.levels]
        axes.plot(asked, held, color=colour, linewidth=1.6, marker=marker, markersize=5, zorder=3, label=label)
        low = np.minimum(low, held)
    margin = 0.04 * (1 - asked.min())
    axes.set_xlim(asked.min() - margin, 1 + margin)
    axes.set_ylim(min(asked.min(), float(low.min())) - margin, 1 + margin)
    axes.set_xlabel("confidence")
    axes.set_ylabel("share of rows for which it held")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
    axes.legend(loc="upper left", fontsize=9, facecolor="white", edgecolor="none", framealpha=0.8)
    assert report.coverage is not None
    axes.set_title(
        f"at {100 * report.confidence:.4g}%: bounds held for {report.coverage.bound:.1%}, "
        f"bands for {report.coverage.bands:.1%}",
        fontsize=10,
        color=INK,
    )
    tidy(axes, grid="both")


def _draw_errors(axes: Axes, report: QualityReport, expected: Array, confidence: float | None) -> None:
    """Errors against what was expected of them, (rows, outputs), on log scales; an error of zero has no place there."""
    x, y = expected.ravel(), report.errors.ravel()
    seen = (x > 0) & (y > 0)
    missed = np.zeros(len(x), dtype=bool) if report.missed is None else report.missed.ravel()
    axes.set_xscale("log")
    axes.set_yscale("log")
    size = float(np.clip(6_000 / max(1, len(x)), 5, 24))
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.6, "zorder": 3}
    axes.scatter(x[seen & ~missed], y[seen & ~missed], color=DOWN, **style)
    if missed.any():
        axes.scatter(x[seen & missed], y[seen & missed], color=UP, label=f"missed ({missed.sum():,})", **style)
    if seen.any():
        log_axis(axes.xaxis, x[seen], room=(0.06, 0.06), written=_number)
        log_axis(axes.yaxis, y[seen], room=(0.06, 0.1), written=_number)
    limits = axes.get_xlim()
    line = "error = expected" if confidence is None else f"the {100 * confidence:.4g}% bound"
    axes.plot(limits, limits, color=INK, linewidth=1.0, linestyle="--", zorder=2, label=line, scaley=False)
    axes.set_xlim(limits)
    what = (
        "error that the explainer expects" if confidence is None else "bound of the row, from its predicted difficulty"
    )
    axes.set_xlabel(f"{what} (log scale)")
    axes.set_ylabel("l2 distance to the label (log scale)")
    axes.legend(loc="lower right", fontsize=9, facecolor="white", edgecolor="none", framealpha=0.8)
    middle = f"median error {_number(float(np.median(y)))}, median "
    axes.set_title(
        middle + ("expected " if confidence is None else "bound ") + _number(float(np.median(x))),
        fontsize=10,
        color=INK,
    )
    tidy(axes, grid="both")


# What the pictures read from an explanation --------------------------------------------------------------


def _one_output(explanation: Explanation, output: int | str) -> tuple[Array, Array, int]:
    """The values (rows, players) and base values (rows,) of one output, and its number."""
    values = np.asarray(explanation.values, dtype=np.float64)
    values = values.reshape(*values.shape[:2], -1)
    base_values = np.asarray(explanation.base_values, dtype=np.float64).reshape(len(values), -1)
    n_outputs = values.shape[2]
    names = explanation.output_names or tuple(str(k) for k in range(n_outputs))
    if isinstance(output, str):
        if output not in names:
            raise InputError(f"unknown output {output!r}; expected one of {', '.join(names)}")
        output = names.index(output)
    if not -n_outputs <= output < n_outputs:
        raise InputError(f"output {output} is out of range; there are {n_outputs} outputs")
    k = int(output) % n_outputs
    if not (np.isfinite(values[:, :, k]).all() and np.isfinite(base_values[:, k]).all()):
        raise InputError("the explanation has values that are NaN or infinite; leave their rows out")
    return values[:, :, k], base_values[:, k], k


def _output_suffix(explanation: Explanation, k: int) -> str:
    if explanation.output_names is not None:
        return f" for {one_line(explanation.output_names[k])}"
    return f" for output {k}" if explanation.values.ndim == 3 else ""


def _errors(explanation: Explanation, k: int) -> Array:
    """The standard errors of the first row, (players,); NaN where they are not known."""
    n_players = explanation.shape[1]
    if explanation.error_std is None:
        return np.full(n_players, np.nan)
    return np.asarray(explanation.error_std[0], dtype=np.float64).reshape(n_players, -1)[:, k]


def _first_bands(explanation: Explanation, k: int) -> Array:
    """The bands of the first row, (players, 2); NaN where they are not known or have no end."""
    n_players = explanation.shape[1]
    if explanation.lower_bounds is None or explanation.upper_bounds is None:
        return np.full((n_players, 2), np.nan)
    ends = [np.reshape(b[0], (n_players, -1))[:, k] for b in (explanation.lower_bounds, explanation.upper_bounds)]
    bands = np.stack(ends, axis=1).astype(np.float64)
    bands[~np.isfinite(bands).all(axis=1)] = np.nan
    return bands


def _whisker_note(explanation: Explanation, whiskers: Array) -> str:
    if not np.isfinite(whiskers).any():
        return ""
    if explanation.confidence is None:
        return "   (whiskers: bands of the true values)"
    return f"   (whiskers hold the true values, all at once, with {100 * explanation.confidence:.4g}% confidence)"


def _feature_column(explanation: Explanation, j: int) -> Any:
    """What the rows hold for player j, or None where it is not one column: a group of columns, or a picture."""
    data = explanation.data
    if data is None:
        return None
    n_players = len(explanation.feature_names)
    if isinstance(data, np.ndarray):
        return data[:, j] if data.ndim == 2 and data.shape[1] == n_players else None
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True)
    columns = [str(column) for column in frame.columns]
    name = explanation.feature_names[j]
    if name in columns:
        position = columns.index(name)
    elif len(columns) == n_players and not set(columns) & set(explanation.feature_names):
        position = j
    else:
        return None
    return frame.get_column(frame.columns[position]).to_numpy()


def _named_with_values(explanation: Explanation) -> list[str]:
    """The players' names, with the first row's values where they are known."""
    labels = []
    for j, name in enumerate(explanation.feature_names):
        column = _feature_column(explanation, j)
        labels.append(one_line(name) if column is None else f"{one_line(name)} = {_feature_text(column[0])}")
    return labels


def _feature_text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)) and np.isnan(value):
        return "missing"
    if isinstance(value, (int, float, np.integer, np.floating)):
        number = float(value)
        whole = number.is_integer() and abs(number) < 10**9
        return f"{int(number):,}".replace("-", "−") if whole else _number(number)
    return "missing" if value is None else one_line(value, longest=16)


def _low_to_high(column: Any, n_rows: int) -> Array | None:
    """A feature's values from 0 (5th percentile) to 1 (95th), (rows,); None unless they are numbers."""
    if column is None:
        return None
    try:
        numbers = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    known = numbers[np.isfinite(numbers)]
    if numbers.shape != (n_rows,) or known.size == 0:
        return None
    low, high = np.percentile(known, [5, 95])
    if low == high:
        low, high = known.min(), known.max()
    if low == high:
        return np.where(np.isfinite(numbers), 0.5, np.nan)
    return np.asarray(np.clip((numbers - low) / (high - low), 0, 1))


def _read_records(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], Array, Array]:
    if len(records) == 0:
        raise InputError("records is empty; give at least one {'method': ..., 'l2': ..., 'microseconds': ...}")
    _check_keys(records, "record", ("method", "l2", "microseconds"))
    methods = [str(record["method"]) for record in records]
    columns = []
    for key in ("l2", "microseconds"):
        numbers = _read_numbers(records, "record", key)
        bad = ~(np.isfinite(numbers) & (numbers >= 0))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(f"{key} must be finite and not negative; {methods[i]!r} has {numbers[i]}")
        columns.append(numbers)
    return methods, columns[0], columns[1]


def _read_curve(curve: Sequence[Mapping[str, Any]]) -> tuple[list[int], Array, Array]:
    """The labels, evaluations and errors of the points, in the order of their evaluations."""
    if len(curve) == 0:
        raise InputError("curve is empty; give at least one {'labels': ..., 'evaluations': ..., 'l2': ...}")
    keys = ("labels", "evaluations", "l2")
    _check_keys(curve, "point", keys)
    columns = [_read_numbers(curve, "point", key) for key in keys]
    for key, numbers in zip(keys, columns, strict=True):
        bad = ~(np.isfinite(numbers) & (numbers > 0))
        if bad.any():
            i = int(np.argmax(bad))
            raise InputError(f"{key} must be above 0 on a log scale; point {i} has {numbers[i]}, leave it out")
    order = np.argsort(columns[1], kind="stable")
    labels, evaluations, errors = (numbers[order] for numbers in columns)
    return [round(count) for count in labels], evaluations, errors


def _check_keys(records: Sequence[Mapping[str, Any]], what: str, keys: tuple[str, ...]) -> None:
    for i, record in enumerate(records):
        missing = [key for key in keys if key not in record]
        if missing:
            raise InputError(f"{what} {i} lacks {', '.join(missing)}; it has {', '.join(map(str, record))}")


def _read_numbers(records: Sequence[Mapping[str, Any]], what: str, key: str) -> Array:
    try:
        return np.array([float(record[key]) for record in records])
    except (TypeError, ValueError) as error:
        raise InputError(f"{key} must be a number in every {what}") from error


def _check_count(name: str, count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {count!r}")


# How the pictures look -----------------------------------------------------------------------------------


def _colour_map() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("low_to_high", LOW_TO_HIGH)


def _limits_with_room(reached: list[float], ends: Array, shares: Array) -> tuple[float, float]:
    """Limits of an axis on which a text beside each end, as wide as its signed share of the axis, still fits."""
    span = max(reached) - min(reached) or 1.0
    low, high = min(reached) - 0.03 * span, max(reached) + 0.03 * span
    for _ in range(30):  # every text's room widens the axis, and with it the other texts
        beyond = ends + shares * (high - low)
        low, high = min(low, float(beyond.min())), max(high, float(beyond.max()))
    return low, high


def _draw_whiskers(axes: Axes, whiskers: Array) -> None:
    """A thin line with caps over each bar, from one end of its band to the other, (bars, 2)."""
    for position, (low, high) in enumerate(whiskers):
        if high > low:
            axes.plot([low, high], [position, position], color=INK, linewidth=0.9, zorder=5)
            for x in (low, high):
                axes.plot([x, x], [position - 0.1, position + 0.1], color=INK, linewidth=0.9, zorder=5)


def _spread(places: Array, share: float) -> list[int]:
    """Some of ascending places, both ends among them, no two nearer than a share of the whole length."""
    least = share * (places[-1] - places[0])
    kept = [0]
    for i in range(1, len(places) - 1):
        if min(places[i] - places[kept[-1]], places[-1] - places[i]) >= least:
            kept.append(i)
    return kept if len(places) == 1 else [*kept, len(places) - 1]


def _log_bars(axes: Axes, numbers: Array, colours: list[str]) -> None:
    """Bars from a power of ten below the smallest positive number; zeros are only written."""
    positive = numbers[numbers > 0]
    floor, top = (10 ** np.floor(np.log10(positive.min()) - 0.3), positive.max()) if positive.size else (0.1, 1.0)
    axes.set_xscale("log")
    axes.minorticks_off()
    for position, (number, colour) in enumerate(zip(numbers, colours, strict=True)):
        if number > 0:
            axes.barh(position, number - floor, left=floor, height=0.62, color=colour, zorder=3)
        _bar_text(axes, number if number > 0 else floor, position, _number(number))
    axes.set_xlim(floor, top * (top / floor) ** 0.25)
    tidy(axes, grid="x")


def _bar_text(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)


def _number(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return (f"{rounded:,.0f}" if 1_000 <= abs(rounded) < 10**8 else f"{rounded:.3g}").replace("-", "−")


def _signed(value: float, error: float = float("nan")) -> str:
    text = _number(value) if value <= 0 else f"+{_number(value)}"
    return f"{text} ± {_number(error)}" if error > 0 else text
