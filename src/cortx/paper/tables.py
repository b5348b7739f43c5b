"""The study's tables in Markdown, from result records, with the paper's printed numbers beside ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cortx.errors import InputError
from cortx.paper.grid import (
    ABLATION,
    AMORTIZED,
    AUTHORS,
    L2X,
    LABELLED,
    METHODS,
    OF_VALUES,
    ONE_PASS,
    PEERS,
    SAMPLING,
    THEOREM_METRICS,
    THEOREMS,
    VARIANTS,
    Grid,
    Record,
    by_evaluations,
    grid,
    missing_cells,
    number,
    same_place,
    select,
)
from cortx.paper.records import write_text

__all__ = [
    "PAPER",
    "Printed",
    "ablation_table",
    "costs_table",
    "equal_error_table",
    "evaluations_table",
    "l2x_table",
    "labels_table",
    "missing_cells",
    "permutations_table",
    "render",
    "theorems_table",
    "throughput_table",
    "update",
]

MISSING = "**missing**"
BETTER: dict[str, Callable[[Iterable[float]], float]] = {
    "l2": min, "squared_l2": min, "seconds_per_row": min,
    "rank_accuracy": max, "faithfulness": max, "rows_per_second": max,
}  # fmt: skip
TITLES = {
    "l2": "mean l2 error",
    "squared_l2": "mean squared l2 error",
    "rank_accuracy": "Rank ACC",
    "faithfulness": "faithfulness",
    "rows_per_second": "rows per second",
    "seconds_per_row": "seconds per row",
    "left_median": "left side, median",
    "left_max": "left side, largest",
    "right_median": "right side, median",
    "holds": "inequality holds",
    "tightness": "right / left, median",
    "assumption_holds": "assumption holds",
    "lipschitz_model": "K_f, from below",
}


class Printed(NamedTuple):
    """A number of the paper, as it is printed."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text.split(" ± ")[0])


def _printed() -> dict[tuple[str, str, str, float | None], Printed]:
    """Every number that the paper prints about tables, by experiment, method, metric and place.

    The paper's "l2-error" is a mean of SQUARED distances (its published checkpoint and labels show it), so it stands
    under "squared_l2".
    """
    found: dict[tuple[str, str, str, float | None], Printed] = {
        ("l2x", "l2x", "rank_accuracy", None): Printed("0.0847 ± 0.0011"),
        ("l2x", "l2x", "faithfulness", None): Printed("0.542"),
        ("l2x", "cortx-paper-mse", "rank_accuracy", None): Printed("0.6368 ± 0.0067"),
        ("l2x", "cortx-paper-mse", "faithfulness", None): Printed("0.835"),
        ("l2x", "cortx-paper-ce", "rank_accuracy", None): Printed("0.7680 ± 0.0031"),
        # The same numbers again, where they belong by share: the text says 25% of the labels.
        ("labels", "cortx-paper-mse", "rank_accuracy", 0.25): Printed("0.6368 ± 0.0067"),
        ("labels", "cortx-paper-mse", "faithfulness", 0.25): Printed("0.835"),
        ("labels", "cortx-paper-ce", "rank_accuracy", 0.25): Printed("0.7680 ± 0.0031"),
        ("labels", "cortx-paper-mse", "squared_l2", 0.25): Printed("0.007"),
        ("permutations", "cortx-paper-mse", "squared_l2", None): Printed("0.007"),
        ("permutations", "cortx-paper-mse", "seconds_per_row", None): Printed("0.00015"),
    }
    budgets = (300, 2000, 4000, 6000, 8000)
    columns = {
        ("kernel", "squared_l2"): ("0.0189", "0.0038", "0.0027", "0.0021", "0.0018"),
        ("kernel", "seconds_per_row"): ("0.1477", "0.3351", "0.6816", "0.9869", "1.3089"),
        ("permutation", "squared_l2"): ("0.0171", "0.00031", "0.00025", "0.00020", "0.00017"),
        ("permutation", "seconds_per_row"): ("0.0380", "0.0621", "0.1164", "0.1705", "0.2222"),
    }
    for (method, metric), values in columns.items():
        for at, text in zip(budgets, values, strict=True):
            found["permutations", method, metric, at] = Printed(text)
    return found


PAPER = _printed()
"""tab:l2xcomp, and tab:exp_ps2 with tab:exp_ps1, which is a part of it; all on Census."""


# One function for each table ---------------------------------------------------------------------------------------


def labels_table(records: Sequence[Record], data: str, setting: str, metric: str, *, quick: bool = False) -> str:
    """One metric by the share of labels (paper fig:ann_ratio): a row for each method, the best of a column in bold."""
    shares = _shares(data, setting, quick)
    here = select(records, experiment="labels", data=data, setting=setting, metric=metric)
    return _by_place(here, _methods(data, setting, quick), metric, shares, "no labels", beside_paper=setting == AUTHORS)


def costs_table(records: Sequence[Record], data: str, setting: str, *, quick: bool = False) -> str:
    """What each point of `labels_table` cost: model evaluations in all, and seconds."""
    shares = _shares(data, setting, quick)
    here = select(records, experiment="labels", data=data, setting=setting, metric="rank_accuracy")
    lines = []
    for method in _methods(data, setting, quick):
        places: Sequence[float | None] = shares if method in LABELLED else (None,)
        costs = [_cost(_find(select(here, method=method), at)) for at in places]
        blank = [""] * (len(shares) if method not in LABELLED else 0)
        lines.append([METHODS[method].name, *blank, *costs, *([""] if method in LABELLED else [])])
    return markdown(["method", *(f"{100 * share:.3g}%" for share in shares), "no labels"], lines)


def throughput_table(records: Sequence[Record], data: str, setting: str, *, quick: bool = False) -> str:
    """Speed and quality (paper fig:intep_time): a row for each method and budget, a speed for each device."""
    study = grid(data, quick=quick)
    here = select(records, experiment="throughput", data=data, setting=setting)
    speeds = select(here, metric="rows_per_second")
    devices = sorted({str(record["device"]) for record in speeds if record.get("device")}) or [""]
    metrics = ("l2", "rank_accuracy")
    notes, lines = _Notes(), []
    budgets: dict[str, Sequence[float | None]] = {"kernel": study.kernel, "permutation": study.permutation}
    for method in (*AMORTIZED, *SAMPLING):
        for at in budgets.get(method, (None,)):
            line = [METHODS[method].name, "" if at is None else f"{at:,}"]
            for device in devices:
                timed = select(speeds, method=method)
                here_timed = _find([r for r in timed if r.get("device") in (None, device)], at)
                elsewhere = here_timed is None and _find(timed, at) is not None
                line.append("" if elsewhere else _cell(here_timed, method, "rows_per_second", notes))
            found = (_find(select(here, method=method, metric=metric), at) for metric in metrics)
            lines.append([*line, *(_cell(r, method, m, notes) for r, m in zip(found, metrics, strict=True))])
    where = [f"rows per second{f' ({device})' if device else ''}" for device in devices]
    head = ["method", "evaluations per row", *where, *(TITLES[metric] for metric in metrics)]
    return markdown(head, lines) + notes.text()


def ablation_table(records: Sequence[Record], data: str, setting: str, *, quick: bool = False) -> str:
    """Which positive (paper fig:ablpos), by the share of labels: l2 with the MSE head, Rank ACC with the CE head."""
    shares = grid(data, quick=quick).ablation
    here = select(records, experiment="ablation", data=data, setting=setting)
    parts = []
    for head, metric in (("-mse", "l2"), ("-ce", "rank_accuracy")):
        methods = [method for method in ABLATION if method.endswith(head)]
        table = _by_place(select(here, metric=metric), methods, metric, shares, None)
        parts.append(f"{TITLES[metric][0].upper()}{TITLES[metric][1:]}:\n\n{table}")
    return "\n\n".join(parts)


def l2x_table(records: Sequence[Record], data: str, setting: str) -> str:
    """Comparison with L2X (paper tab:l2xcomp): the paper's number beside ours."""
    here = select(records, experiment="l2x", data=data, setting=setting)
    metrics = ("rank_accuracy", "faithfulness")
    notes, lines = _Notes(), []
    for method in L2X:
        line = [METHODS[method].name]
        for metric in metrics:
            ours = _find(select(here, method=method, metric=metric), None)
            line += [_paper("l2x", method, metric, None), _cell(ours, method, metric, notes)]
        line.append(_cost(_find(select(here, method=method, metric="rank_accuracy"), None)))
        lines.append(line)
    head = ["method", *(f"{TITLES[m]}, {who}" for m in metrics for who in ("paper", "ours")), "cost"]
    return markdown(head, lines) + notes.text()


WHOSE_ERRORS = (
    "Explainers' errors are those of all test rows, our estimators' of 1,000, the peers', which are slow, of the 10 on "
    "which all are timed. Rows whose coalitions a budget covers are enumerated by ours, and by shap's and shapiq's "
    "KernelSHAP."
)


def permutations_table(records: Sequence[Record], data: str, setting: str, *, quick: bool = False) -> str:
    """Sampling with many evaluations (paper tab:exp_ps1, tab:exp_ps2): squared error and seconds per row."""
    study = grid(data, quick=quick)
    here = select(records, experiment="permutations", data=data, setting=setting)
    notes, parts = _Notes(), []
    for metric in ("squared_l2", "l2", "seconds_per_row"):
        lines = []
        for method in (*SAMPLING, *(PEERS if study.peers else ())):
            points = select(here, method=method, metric=metric)
            if any(("permutations", method, metric, at) in PAPER for at in study.permutations):
                printed = [_paper("permutations", method, metric, at) for at in study.permutations]
                lines.append([f"{METHODS[method].name}, paper", *printed, ""])
            cells = [_cell(_find(points, at), method, metric, notes) for at in study.permutations]
            lines.append([METHODS[method].name, *cells, ""])
        if ("permutations", "cortx-paper-mse", metric, None) in PAPER:
            printed_one = _paper("permutations", "cortx-paper-mse", metric, None)
            lines.append(["CoRTX-MSE, paper", *[""] * len(study.permutations), printed_one])
        for method in ONE_PASS:
            ours = _cell(_find(select(here, method=method, metric=metric), None), method, metric, notes)
            lines.append([METHODS[method].name, *[""] * len(study.permutations), ours])
        head = [TITLES[metric], *(f"{at:,}" for at in study.permutations), "one pass"]
        parts.append(markdown(head, lines))
    parts.append("Errors are those of few rows." if quick else WHOSE_ERRORS)
    return "\n\n".join(parts) + notes.text()


def equal_error_table(records: Sequence[Record], data: str, setting: str) -> str:
    """How many times more rows a second our explainer explains than a sampling method that errs as little."""
    lines = []
    for record in select(records, experiment="equal-error", data=data, setting=setting):
        other = {"at least": "at most ", "at most": "at least "}.get(record["bound"], "")
        slower = f"{other}{count_text(number(record, 'rows_per_second'))}"
        faster = f"{record['bound']} {count_text(number(record))} x".strip()
        lines.append([METHODS[record["method"]].name, record["device"], slower, faster])
    return markdown(["method", "device", "rows per second at our error", "ours is faster by"], lines)


def evaluations_table(records: Sequence[Record], data: str, setting: str) -> str:
    """Quality by all evaluations spent: a row for each point of a method, in the order of what it cost."""
    metrics = ("l2", "rank_accuracy")
    notes, lines = _Notes(), []
    for method in AMORTIZED:
        points: dict[float, dict[str, Record]] = {}
        for metric in metrics:
            for record in by_evaluations(records, data=data, setting=setting, method=method, metric=metric):
                points.setdefault(number(record, "evaluations"), {})[metric] = record
        if not points:
            lines.append([METHODS[method].name, MISSING, MISSING, MISSING, ""])
        for spent in sorted(points):
            cells = [_cell(points[spent].get(metric), method, metric, notes) for metric in metrics]
            seconds = next((number(r, "seconds") for r in points[spent].values()), math.nan)
            lines.append([METHODS[method].name, count_text(spent), *cells, seconds_text(seconds)])
    return markdown(["method", "evaluations", *(TITLES[m] for m in metrics), "seconds"], lines) + notes.text()


def theorems_table(records: Sequence[Record], data: str, *, quick: bool = False) -> str:
    """Theorems 1 and 2, measured: a row for each inequality and setting."""
    lines, notes = [], _Notes()
    shares = ("holds", "assumption_holds")
    for setting in grid(data, quick=quick).settings:
        for method in THEOREMS:
            here = select(records, experiment="theorems", data=data, setting=setting, method=method)
            line = [METHODS[method].name, setting]
            for metric in THEOREM_METRICS:
                record = _find(select(here, metric=metric), None)
                if record is not None and metric in shares and math.isfinite(number(record)):
                    line.append(f"{number(record):.1%}")
                else:
                    line.append(_cell(record, method, metric, notes))
            lines.append(line)
    return markdown(["inequality", "setting", *(TITLES[m] for m in THEOREM_METRICS)], lines) + notes.text()


# The whole section ---------------------------------------------------------------------------------------------------


def render(records: Sequence[Record], data: str | None = None, *, quick: bool = False) -> str:
    """The whole Markdown section of a data set: every table, what ran it, and how many cells are missing."""
    if data is None:
        found = sorted({str(record.get("data")) for record in records})
        if len(found) != 1:
            raise InputError(f"the records are of {', '.join(found) or 'no data set'}; say which with data=")
        [data] = found
    study = grid(data, quick=quick)
    parts = []
    for setting in study.settings:
        parts += _setting_section(records, data, setting, study, quick)
    first = study.settings[0]
    if study.ablation:
        parts += ["### Which positive (fig:ablpos)", ablation_table(records, data, first, quick=quick)]
    if study.l2x:
        parts += ["### L2X (tab:l2xcomp)", l2x_table(records, data, first)]
    if study.permutations:
        parts += ["### Sampling with many evaluations (tab:exp_ps1, tab:exp_ps2)"]
        parts += [permutations_table(records, data, first, quick=quick)]
    if study.theorems:
        parts += ["### Theorems 1 and 2, measured", theorems_table(records, data, quick=quick)]
    parts.append(_footer([record for record in records if record.get("data") == data]))
    absent = missing_cells(records, data, quick=quick)
    if absent:
        parts.append(f"**{len(absent)} of {len(list(study.cells()))} cells are missing.**")
    return "\n\n".join(parts) + "\n"


def _setting_section(records: Sequence[Record], data: str, setting: str, study: Grid, quick: bool) -> list[str]:
    of = f" — {setting}" if len(study.settings) > 1 else f" ({setting})"
    parts = [f"### Quality by share of labels{of}"]
    for metric in ("l2", "squared_l2", "rank_accuracy", "faithfulness"):
        title = TITLES[metric][0].upper() + TITLES[metric][1:]
        parts += [f"{title}:", labels_table(records, data, setting, metric, quick=quick)]
    parts += [_noise(records, data, setting)] if select(records, experiment="noise", data=data) else []
    parts += [
        "Cost (model evaluations in all; seconds of the fit, many at a time, labels read from disk not included):",
        costs_table(records, data, setting, quick=quick),
    ]
    parts += [f"### Quality and throughput{of}", throughput_table(records, data, setting, quick=quick)]
    parts += ["At equal error:", equal_error_table(records, data, setting)]
    parts += [f"### Quality by total model evaluations{of}", evaluations_table(records, data, setting)]
    return parts


def _noise(records: Sequence[Record], data: str, setting: str) -> str:
    """How precise the labels are that everything is measured with."""
    here = select(records, experiment="noise", data=data, setting=setting)
    known = {record["metric"]: number(record) for record in here}
    return (
        f"The labels' mean relative standard error is {known['relative_standard_error']:.2%}: two sets of such labels "
        f"differ by an l2 of {known['l2']:.3g} and agree to a Rank ACC of {known['rank_accuracy']:.3f}."
    )


def _footer(records: Sequence[Record]) -> str:
    """Where the numbers come from: seeds, hardware, versions."""
    if not records:
        return "No records yet."
    counts = sorted({len(record.get("seeds") or ()) for record in records if not record.get("reason")})
    lines = [
        f"Mean ± standard deviation over seeds (seeds per number: {', '.join(map(str, counts))}); "
        "the best of a column in bold; M and G are millions and thousands of millions."
    ]
    for target in {str(record["target"]): record["target"] for record in records if record.get("target")}.values():
        lines.append(f"Target: {target['model']}, weights {target['weights']}, test AUC {target['auc_test']:.3f}.")
    for key in ("hardware", "versions"):
        lines += [f"{key.capitalize()}: {value}." for value in sorted({str(r[key]) for r in records if r.get(key)})]
    return "  \n".join(lines)


def update(path: str | Path, name: str, text: str) -> Path:
    """Puts `text` between ``<!-- begin: name -->`` and ``<!-- end: name -->`` of a file; all else stays as it is."""
    path = Path(path)
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    old = path.read_text(encoding="utf-8")
    start, stop = old.find(begin), old.find(end)
    if old.count(begin) != 1 or old.count(end) != 1 or stop < start:
        raise InputError(f"{path} must have one line {begin!r} and after it one line {end!r}; add them where it goes")
    new = f"{old[: start + len(begin)]}\n\n{text.strip()}\n\n{old[stop:]}"
    return write_text(path, new)


# Cells -------------------------------------------------------------------------------------------------------------


@dataclass
class _Notes:
    """Reasons why a cell has no number, as lettered notes under a table."""

    reasons: list[str] = field(default_factory=list)

    def mark(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"- ({self._letter(self.reasons.index(reason))})"

    @staticmethod
    def _letter(index: int) -> str:
        return chr(ord("a") + index % 26) * (1 + index // 26)

    def text(self) -> str:
        lines = [f"({self._letter(i)}) {reason}" for i, reason in enumerate(self.reasons)]
        return "".join(f"\n\n{line}" for line in lines)


def _by_place(
    records: Sequence[Record],
    methods: Sequence[str],
    metric: str,
    places: Sequence[float],
    without: str | None,
    beside_paper: bool = False,
) -> str:
    """Methods down, shares across; then methods without labels, and the paper's numbers where it has some."""
    columns: list[float | None] = [*places, *([None] if without else [])]
    notes, lines = _Notes(), []
    best = {at: _best(records, methods, metric, at) for at in columns}
    for method in methods:
        if METHODS[method].gives == "ranks" and metric in OF_VALUES:
            continue
        mine = select(records, method=method)
        line = [METHODS[method].name]
        for at in columns:
            belongs = (at is None) == (method not in LABELLED and method not in ABLATION)
            record = _find(mine, at)
            text = _cell(record, method, metric, notes) if belongs or record is not None else ""
            line.append(f"**{text}**" if record is not None and number(record) == best[at] else text)
        lines.append([*line, _paper("labels", method, metric, 0.25)])
    head = ["method", *(f"{100 * share:.3g}%" for share in places), *([without] if without else []), "paper, 25%"]
    if not (beside_paper and any(line[-1] for line in lines)):
        head, lines = head[:-1], [line[:-1] for line in lines]
    return markdown(head, lines) + notes.text()


def _best(records: Sequence[Record], methods: Sequence[str], metric: str, at: float | None) -> float:
    found = [_find(select(records, method=method), at) for method in methods]
    values = [number(record) for record in found if record is not None and math.isfinite(number(record))]
    return BETTER[metric](values) if len(values) > 1 else math.nan


def _find(records: Sequence[Record], at: float | None) -> Record | None:
    return next((record for record in records if same_place(record.get("at"), at)), None)


def _cell(record: Record | None, method: str, metric: str, notes: _Notes) -> str:
    if record is None:
        return "" if METHODS[method].gives == "ranks" and metric in OF_VALUES else MISSING
    if not math.isfinite(number(record)):
        return notes.mark(str(record["reason"])) if record.get("reason") else MISSING
    return with_spread(number(record), record.get("spread"))


def with_spread(value: float, spread: float | None) -> str:
    """A mean and its spread, to the second digit of the spread and at most the third of the mean."""
    scale = _power(value)
    small = value != 0 and not -4 <= scale < 9
    factor, suffix = (10.0**scale, f"e{scale}") if small else (1.0, "")
    places = 2 - _power(value / factor)
    if spread is None or not math.isfinite(spread) or spread <= 0:
        return f"{_rounded(value / factor, places)}{suffix}"
    last = -_power(spread / factor)  # the place of the spread's first digit, which is always shown
    places = min(places, last + 1)
    text = f"{_rounded(value / factor, places)} ± {_rounded(spread / factor, max(places, last))}"
    return f"({text}){suffix}" if small else text


def _rounded(value: float, places: int) -> str:
    return f"{round(value, places):,.{max(0, places)}f}"


def _power(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _paper(experiment: str, method: str, metric: str, at: float | None) -> str:
    """The paper's number as it is printed, or nothing."""
    printed = PAPER.get((experiment, method, metric, at))
    return "" if printed is None else printed.text


def _cost(record: Record | None) -> str:
    if record is None:
        return MISSING
    return f"{count_text(number(record, 'evaluations'))}, {seconds_text(number(record, 'seconds'))}"


def count_text(value: float) -> str:
    if not math.isfinite(value):
        return MISSING
    for unit, name in ((1e9, " G"), (1e6, " M")):
        if value >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:,.0f}"


def seconds_text(value: float) -> str:
    if not math.isfinite(value):
        return MISSING
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"


def _methods(data: str, setting: str, quick: bool) -> tuple[str, ...]:
    return (*AMORTIZED, *VARIANTS) if setting == grid(data, quick=quick).settings[0] else AMORTIZED


def _shares(data: str, setting: str, quick: bool) -> tuple[float, ...]:
    shares = grid(data, quick=quick).shares
    if setting not in shares:
        raise InputError(f"setting must be one of {', '.join(map(repr, shares))}, got {setting!r}")
    return shares[setting]


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [list(head), ["---", *["---:"] * (len(head) - 1)], *map(list, lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
