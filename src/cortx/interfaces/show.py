"""What the command line shows of a fit and of an evaluation: tables, and a verdict nobody overlooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortx.explainer.explainer import CoRTX
    from cortx.explainer.report import QualityReport

ROWS_FOR_BOUND = 1_000
MOST_COLUMNS = 10


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    return table


def show_fit(explainer: CoRTX, out: Path, rows: Any, n_rows: int | None = None) -> None:
    """What a fit cost, how the error fell, how close it came and what its bounds promise.

    `rows` are all of the table, or some of its `n_rows`.
    """
    from rich.console import Console

    costs, quality = explainer.costs_, explainer.quality_
    table = _table("What the fit cost", "stage", "rows", "model evaluations", "seconds")
    for stage, cost in costs.items():
        if isinstance(cost, dict):
            name = f"labels ({cost['source']})" if stage == "labels" else stage
            table.add_row(name, f"{cost['rows']:,}", f"{cost['evaluations']:,}", f"{cost['seconds']:.1f}")
    seconds = sum(cost["seconds"] for cost in costs.values() if isinstance(cost, dict))
    table.add_row(
        "total",
        f"{len(rows) if n_rows is None else n_rows:,}",
        f"{costs['total_evaluations']:,}",
        f"{seconds:.1f}",
        style="bold",
    )
    console = Console()
    console.print(table)
    if len(explainer.learning_curve_) > 1:
        curve = _table("How the error fell", "training labels", "model evaluations", "validation l2", "of the norm")
        for point in explainer.learning_curve_:
            share = f"{point['l2'] / quality['label_norm']:.1%}" if quality["label_norm"] else "-"
            curve.add_row(f"{point['labels']:,}", f"{point['evaluations']:,}", f"{point['l2']:.4g}", share)
        console.print(curve)
    norm = quality["label_norm"]
    share = f"{quality['l2'] / norm:.1%} of the labels' norm" if norm else "the labels are zero"
    console.print(
        f"On {quality['rows']:,.0f} labels kept aside: mean l2 distance {quality['l2']:.3g} "
        f"({share}), Rank ACC {quality['rank_accuracy']:.3f}.",
        highlight=False,
    )
    console.print(_calibration_words(explainer, rows), highlight=False)
    console.print(f"Saved to {out}.", highlight=False, soft_wrap=True)


def _calibration_words(explainer: CoRTX, rows: Any) -> str:
    calibration = explainer.fitted.calibration
    if calibration is None:
        return "Not calibrated: explain --confidence needs a fit with --budget, or a --calibration-share above 0."
    import numpy as np

    from cortx.explainer.evaluation import usual_bound
    from cortx.explanation import take_rows

    most = np.floor(1000 * calibration.most_confident) / 1000
    words = f"Calibrated on {len(calibration):,} rows, up to a confidence of {most:.3f}"
    norm = explainer.quality_["label_norm"]
    if calibration.most_confident < 0.9 or not norm:
        return words + "."
    bound = usual_bound(explainer, take_rows(rows, np.arange(min(len(rows), ROWS_FOR_BOUND))), 0.9)
    return f"{words}; the median 90% bound on a row's error is {bound:.3g} ({bound / norm:.1%} of the labels' norm)."


EVALUATION_WORDS = {
    "l2": "mean l2 distance to the labels",
    "relative_l2": "the same over the labels' norm",
    "squared_l2": "mean squared distance",
    "rank_accuracy": "Rank ACC",
    "kendall_tau": "Kendall's tau",
    "top_1_agreement": "agreement on the strongest",
    "top_3_agreement": "agreement on the 3 strongest",
    "label_standard_error": "standard error of the labels (l2)",
}


def show_evaluation(report: QualityReport, explainer: Path) -> None:
    """The quality report as tables, the verdict last."""
    from rich.console import Console
    from rich.markup import escape

    console, result = Console(), report.measures
    table = _table(
        f"{escape(str(explainer))} on {result['rows']:,} rows, labels: {result['method']}", "measure", "value"
    )
    for key, words in EVALUATION_WORDS.items():
        table.add_row(words, f"{result[key]:.4g}")
    console.print(table)
    rows = result["rows"]
    cost = _table("What a row costs", "way", "model evaluations", "microseconds")
    for way, key in ((f"labels ({result['method']})", "label"), ("explainer", "explain")):
        seconds = result[f"{key}_seconds_per_row"]
        cost.add_row(way, f"{result[f'{key}_evaluations'] / rows:,.4g}", f"{1e6 * seconds:,.0f}")
    console.print(cost)
    for part in (_bounds_table, _worst_table, _slices_table, _drift_table):
        shown = part(report)
        if shown is not None:
            console.print(shown)
    if result["label_standard_error"] > 0.5 * result["l2"]:
        console.print("The labels' own error is a large part of the distance; raise --row-budget for a sharper look.")
    for words in report.notes:
        console.print(f"Note: {words}.", highlight=False, markup=False)
    console.print(_verdict_panel(report))


def _bounds_table(report: QualityReport) -> Any:
    from rich.markup import escape

    found = report.coverage
    if found is None:
        return None
    table = _table(f"Bounds at {100 * report.confidence:.4g}% confidence", "measure", "value")
    level = next(level for level in report.levels if level.confidence == report.confidence)
    table.add_row("error bounds held for", f"{found.bound:.1%}")
    table.add_row("bands held for", f"{found.bands:.1%}")
    table.add_row("what chance allows (95%)", f"{level.low:.1%} to {level.high:.1%}")
    table.add_row(f"bounds of the {found.hardest_rows:,} rows expected to be hardest", f"{found.hardest_bound:.1%}")
    if found.worst_output is not None:
        table.add_row(f"bounds of the worst output, {escape(found.worst_output)}", f"{found.worst_bound:.1%}")
    norm = report.measures["label_norm"]
    share = f" ({found.median_bound / norm:.1%} of the labels' norm)" if norm else ""
    table.add_row("median error bound", f"{found.median_bound:.4g}{share}")
    table.add_row("median width of a band", f"{found.median_width:.4g}")
    table.add_row("ranks that the bands make certain", f"{found.stable_ranks:.1%}")
    table.add_row("of these wrong", "none there" if found.stable_wrong is None else f"{found.stable_wrong:.1%}")
    return table


def _worst_table(report: QualityReport) -> Any:
    from rich.markup import escape

    several = any(row.output is not None for row in report.worst)
    table = _table(
        "The rows farthest from their labels", "row", "l2 distance", "bound", "feature that differs most",
        "explained as", "label", *(["output"] if several else []),
    )  # fmt: skip
    for row in report.worst:
        bound = "" if row.bound is None else f"{row.bound:.3g}{'' if row.covered else ' missed'}"
        values = (f"{row.predicted:.3g}", f"{row.label:.3g}")
        output = [escape(str(row.output))] if several else []
        table.add_row(f"{row.row:,}", f"{row.l2:.3g}", bound, escape(row.feature), *values, *output)
    return table


def _slices_table(report: QualityReport) -> Any:
    from rich.markup import escape

    if not report.slices:
        return None
    table = _table("By part of a column", "column", "part", "rows", "mean l2", "bounds held for", "median bound")
    for part in report.slices:
        held = "" if part.coverage is None else f"{part.coverage:.1%}"
        bound = "" if part.median_bound is None else f"{part.median_bound:.3g}"
        table.add_row(escape(part.column), escape(part.part), f"{part.rows:,}", f"{part.l2:.3g}", held, bound)
    return table


def _drift_table(report: QualityReport) -> Any:
    """Columns that drifted, and the others that differ most."""
    from rich.markup import escape

    columns = sorted(report.drift, key=lambda column: (not column.drifted, -column.distance))
    table = _table(
        "Columns against the training table", "column", "distance", "chance allows", "missing then", "now", "drifted"
    )
    for column in columns[:MOST_COLUMNS]:
        missing = (f"{share:.1%}" for share in (column.missing_before, column.missing))
        verdict = "yes" if column.drifted else "no"
        table.add_row(escape(column.column), f"{column.distance:.2f}", f"{column.allowed:.2f}", *missing, verdict)
    if len(columns) > MOST_COLUMNS:
        table.caption = f"and {len(columns) - MOST_COLUMNS:,} more that differ less"
    return table


def _verdict_panel(report: QualityReport) -> Any:
    from rich import box
    from rich.panel import Panel
    from rich.text import Text

    from cortx.explainer.report import UNJUDGED

    colour = "green" if report.fits else "yellow" if report.verdict in UNJUDGED else "red"
    lines = [f"- {words}" for words in report.reasons]
    also = f" (also: {', '.join(report.problems[1:])})" if len(report.problems) > 1 else ""
    head = f"VERDICT: {report.verdict}"
    text = Text.assemble((head, f"bold {colour}"), (also, colour), *(f"\n{line}" for line in lines))
    return Panel(text, border_style=colour, box=box.HEAVY)
