"""The tables of docs/results.md that `benchmarks.taught` makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cortx.paper.tables import count_text, markdown, seconds_text, with_spread

METHODS = {
    "default": "CoRTX (default)",
    "quick": "CoRTX (quick)",
    "no-student": "quick, no student",
    "no-made-up-rows": "default, no made-up rows",
    "no-boosted-trees": "quick, no boosted trees as a student",
    "no-pre-training": "quick, no contrastive pre-training",
    "thorough": "CoRTX (thorough, on a GPU)",
    "fastshap-strong": "FastSHAP, strong",
}
SPLITS = "100 splits: "
Fit = dict[str, dict[str, Any]]
"""Metric -> record, of one problem, method and budget."""


def render(records: Sequence[dict[str, Any]]) -> str:
    """A section for each setting: what fits reach, then their bounds."""
    parts = []
    for setting in dict.fromkeys(record["setting"] for record in records):
        fits: dict[tuple[str, int], Fit] = {}
        for record in records:
            if record["setting"] == setting:
                fits.setdefault((record["method"], record["budget"]), {})[record["metric"]] = record
        order = sorted(fits, key=lambda key: (list(METHODS).index(key[0]), key[1]))
        parts += [f"### {setting}", _quality([(key, fits[key]) for key in order])]
        bounded = [(key, fits[key]) for key in order if f"{SPLITS}coverage, rows" in fits[key]]
        if bounded:
            parts.append(_bounds(bounded))
    versions, machines = ("; ".join(dict.fromkeys(r[fact] for r in records)) for fact in ("versions", "hardware"))
    parts.append(f"Measured with {versions} on {machines}; trainings on one thread.")
    return "\n\n".join(parts) + "\n"


def _quality(fits: Sequence[tuple[tuple[str, int], Fit]]) -> str:
    head = [
        "method", "budget", "evaluations", "mean l2 error", "over the mean norm", "Rank ACC", "seconds",
        "the student's own values",
    ]  # fmt: skip
    lines = []
    for (method, budget), fit in fits:
        of_student = fit.get("the student's own values: relative l2")
        lines.append([
            METHODS[method], count_text(budget), count_text(fit["l2"]["evaluations"]), _shown(fit, "l2"),
            _percent(fit["relative l2"]), _shown(fit, "rank accuracy"), seconds_text(fit["seconds"]["value"]),
            "" if of_student is None else _percent(of_student),
        ])  # fmt: skip
    return markdown(head, lines)


def _bounds(fits: Sequence[tuple[tuple[str, int], Fit]]) -> str:
    head = [
        "90% bounds", "budget", "calibration rows", "coverage, rows", "bands", "hardest tenth, rows", "bands ",
        "median bound of a row", "median half-width of a band",
    ]  # fmt: skip
    metrics = (
        "coverage, rows", "coverage, bands", "coverage of the hardest tenth, rows",
        "coverage of the hardest tenth, bands", "median bound, rows", "median half-width, bands",
    )  # fmt: skip
    lines = []
    for (method, budget), fit in fits:
        count = fit.get("calibration rows")
        lines.append([
            METHODS[method], count_text(budget), "" if count is None else f"{count['value']:.0f}",
            *(f"{fit[SPLITS + metric]['value']:.3f}" for metric in metrics[:4]),
            *(with_spread(fit[SPLITS + metric]["value"], None) for metric in metrics[4:]),
        ])  # fmt: skip
    return markdown(head, lines)


def _shown(fit: Fit, metric: str) -> str:
    record = fit.get(metric)
    return "" if record is None else with_spread(record["value"], record["spread"])


def _percent(record: dict[str, Any]) -> str:
    value = record["value"]
    return f"{100 * value:.{max(1, 1 - math.floor(math.log10(max(100 * value, 1e-9))))}f}%"
