"""The paper's tabular study in one place: which cells its tables and figures have, and how each method is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cortx.errors import InputError

AUTHORS = "sigmoid output, zero reference"
WORDS = "linear output, mean reference"
LOG_ODDS = "log-odds, mean reference"

Record = Mapping[str, Any]


class Method(NamedTuple):
    """A method's readable name, and its one look in all figures."""

    name: str
    colour: str
    marker: str
    line: str = "-"
    gives: str = "values"
    """ "values", or "ranks" where there are no attributions to measure a distance from."""


# Hues of Okabe and Ito, safe for colour-blind readers, one for each family; its members differ in marker and darkness.
METHODS: dict[str, Method] = {
    "cortx": Method("CoRTX (ours)", "#d55e00", "o"),
    "cortx-paper-mse": Method("CoRTX-MSE (paper's recipe)", "#e69f00", "s"),
    "cortx-paper-ce": Method("CoRTX-CE (paper's recipe)", "#9c6b00", "D", "--", "ranks"),
    "supervised-mse": Method("Supervised RTX, MSE", "#56b4e9", "^"),
    "supervised-ce": Method("Supervised RTX, CE", "#0072b2", "v", "--", "ranks"),
    "supervised-strong": Method("Supervised, strong", "#15305b", "P"),
    "fastshap": Method("FastSHAP", "#4dbd9a", "X", ":"),
    "fastshap-strong": Method("FastSHAP, strong", "#00664b", "*", "-."),
    "fastshap-unnormalized": Method("FastSHAP, not normalized", "#a8dccb", "x", ":"),
    "l2x": Method("L2X", "#000000", "p"),
    "kernel": Method("KernelSHAP", "#cc79a7", "h"),
    "permutation": Method("Antithetic permutation sampling", "#7b3294", "d"),
    "captum-kernel": Method("captum KernelShap", "#8a8a8a", "h", "--"),
    "captum-sampling": Method("captum ShapleyValueSampling", "#8a8a8a", "d", ":"),
    "shap-kernel": Method("shap Kernel", "#4d4d4d", "h", "--"),
    "shap-permutation": Method("shap Permutation", "#4d4d4d", "d", ":"),
    "shapiq-kernel": Method("shapiq KernelSHAP", "#b39c7d", "h", "--"),
    "compact-mse": Method("compact positive (paper), MSE", "#e69f00", "s"),
    "random-mse": Method("random positive (w/o CA), MSE", "#7f7f7f", "o", "--"),
    "farthest-mse": Method("farthest positive (w/ MA), MSE", "#1a1a1a", "^", ":"),
    "compact-ce": Method("compact positive (paper), CE", "#9c6b00", "D", "-", "ranks"),
    "random-ce": Method("random positive (w/o CA), CE", "#7f7f7f", "o", "--", "ranks"),
    "farthest-ce": Method("farthest positive (w/ MA), CE", "#1a1a1a", "^", ":", "ranks"),
    "theorem-1-shapley": Method("Theorem 1, Shapley values", "#0072b2", "o"),
    "theorem-1-banzhaf": Method("Theorem 1, Banzhaf (Eq. 1 as written)", "#56b4e9", "s"),
    "theorem-2": Method("Theorem 2", "#d55e00", "^"),
}

LABELLED = ("cortx", "cortx-paper-mse", "cortx-paper-ce", "supervised-mse", "supervised-ce", "supervised-strong")
"""Amortized methods that learn from a share of labels."""
UNLABELLED = ("fastshap", "fastshap-strong")
"""Amortized methods that need none: `at` is None."""
AMORTIZED = (*LABELLED, *UNLABELLED)
VARIANTS = ("fastshap-unnormalized",)
"""In the tables of the first setting alone."""
SAMPLING = ("kernel", "permutation")
PEERS = ("captum-kernel", "captum-sampling", "shap-kernel", "shap-permutation", "shapiq-kernel")
ABLATION = tuple(f"{how}-{head}" for head in ("mse", "ce") for how in ("compact", "random", "farthest"))
ONE_PASS = ("cortx", "cortx-paper-mse")
"""Explainers beside tab:exp_ps2."""
L2X = ("l2x", "cortx-paper-mse", "cortx-paper-ce", "cortx")
THEOREMS = ("theorem-1-shapley", "theorem-1-banzhaf", "theorem-2")

OF_VALUES = ("l2", "squared_l2", "faithfulness")
"""Metrics that a mere ranking does not have."""
THEOREM_METRICS = (
    "left_median", "left_max", "right_median", "holds", "tightness", "assumption_holds", "lipschitz_model",
)  # fmt: skip


class Cell(NamedTuple):
    """One number that a table or figure needs."""

    experiment: str
    setting: str
    method: str
    metric: str
    at: float | None = None


@dataclass(frozen=True)
class Grid:
    """The study of one data set."""

    shares: Mapping[str, tuple[float, ...]]
    """Shares of labels for each setting; the first setting is the one of all other experiments."""
    kernel: tuple[int, ...]
    """Evaluations per row in the experiment "throughput"."""
    permutation: tuple[int, ...]
    ablation: tuple[float, ...] = ()
    """Shares of labels; empty: the paper has no ablation on these data."""
    permutations: tuple[int, ...] = ()
    """Evaluations per row of tab:exp_ps2; empty: the paper has no such table on these data."""
    l2x: bool = False
    theorems: bool = False
    peers: bool = True
    least_seeds: int = 1

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(self.shares)

    def cells(self) -> Iterator[Cell]:
        """Every cell that a finished study has, in the order of the tables."""
        for setting, shares in self.shares.items():
            at_shares: dict[str, tuple[float | None, ...]] = dict.fromkeys(LABELLED, shares)
            at_shares |= dict.fromkeys(UNLABELLED, (None,))
            yield from _cells("labels", setting, at_shares, ("l2", "squared_l2", "rank_accuracy", "faithfulness"))
            budgets: dict[str, tuple[float | None, ...]] = dict.fromkeys(AMORTIZED, (None,))
            budgets |= {"kernel": self.kernel, "permutation": self.permutation}
            yield from _cells("throughput", setting, budgets, ("rows_per_second", "l2", "rank_accuracy"))
            yield from _cells("evaluations", setting, dict.fromkeys(AMORTIZED, (None,)), ("l2", "rank_accuracy"))
            if self.theorems:
                yield from _cells("theorems", setting, dict.fromkeys(THEOREMS, (None,)), THEOREM_METRICS)
        first = self.settings[0]
        for method in VARIANTS:
            yield from _cells("labels", first, {method: (None,)}, ("l2", "squared_l2", "rank_accuracy", "faithfulness"))
        for method in ABLATION:
            metric = "l2" if method.endswith("-mse") else "rank_accuracy"
            yield from _cells("ablation", first, {method: self.ablation}, (metric,))
        if self.l2x:
            yield from _cells("l2x", first, dict.fromkeys(L2X, (None,)), ("rank_accuracy", "faithfulness"))
        if self.permutations:
            samplers = (*SAMPLING, *(PEERS if self.peers else ()))
            points: dict[str, tuple[float | None, ...]] = dict.fromkeys(samplers, self.permutations)
            points |= dict.fromkeys(ONE_PASS, (None,))
            yield from _cells("permutations", first, points, ("l2", "squared_l2", "seconds_per_row"))


def _cells(
    experiment: str, setting: str, points: Mapping[str, Sequence[float | None]], metrics: Sequence[str]
) -> Iterator[Cell]:
    for method, places in points.items():
        for metric in metrics:
            if METHODS[method].gives == "values" or metric not in OF_VALUES:
                yield from (Cell(experiment, setting, method, metric, at) for at in places)


def powers(low: int, high: int) -> tuple[int, ...]:
    """2^low .. 2^high."""
    return tuple(2**k for k in range(low, high + 1))


SHARES = (0.01, 0.05, 0.10, 0.25, 0.50, 1.0)
FEW_SHARES = (0.01, 0.05, 0.25, 1.0)

GRID: dict[str, Grid] = {
    "census": Grid(
        {AUTHORS: SHARES, WORDS: FEW_SHARES},
        kernel=powers(5, 10),
        permutation=powers(4, 10),
        ablation=FEW_SHARES,
        permutations=(300, 2000, 4000, 6000, 8000),
        l2x=True,
        theorems=True,
        least_seeds=3,
    ),
    "bankruptcy": Grid({LOG_ODDS: SHARES}, kernel=powers(3, 11), permutation=powers(3, 10)),
}
QUICK: dict[str, Grid] = {
    "census": Grid(
        {AUTHORS: (0.05, 0.25)},
        kernel=(32, 128, 512),
        permutation=(32, 128, 512),
        ablation=(0.25,),
        permutations=(300, 2000),
        l2x=True,
        theorems=True,
        peers=False,
    ),
    "bankruptcy": Grid({LOG_ODDS: (0.05, 0.25)}, kernel=(32, 512, 2048), permutation=(32, 512)),
}
"""A few minutes on two cores: one seed, the first setting, no peers' packages."""


def grid(data: str, *, quick: bool = False) -> Grid:
    """The study of a data set, "census" or "bankruptcy"."""
    grids = QUICK if quick else GRID
    if data not in grids:
        raise InputError(f"data must be one of {', '.join(map(repr, grids))}, got {data!r}")
    return grids[data]


# Reading records -----------------------------------------------------------------------------------------------


def select(records: Iterable[Record], **facts: Any) -> list[Record]:
    """The records that have all these facts, by ascending `at`, those without it first."""
    found = [record for record in records if all(record.get(key) == value for key, value in facts.items())]
    return sorted(found, key=lambda record: -math.inf if record.get("at") is None else float(record["at"]))


def number(record: Record, key: str = "value") -> float:
    """A record's number; NaN where there is none."""
    value = record.get(key)
    return math.nan if value is None else float(value)


def by_evaluations(records: Sequence[Record], **facts: Any) -> list[Record]:
    """The points that say what they cost, cheapest first, each cost once: those of "evaluations" and of "labels"."""
    found: dict[float, Record] = {}
    for experiment in ("labels", "evaluations"):
        for record in select(records, experiment=experiment, **facts):
            if record.get("evaluations") is not None:
                found[number(record, "evaluations")] = record
    return [found[cost] for cost in sorted(found)]


def same_place(at: float | None, wanted: float | None) -> bool:
    """Whether a record's share or budget is the one of a cell."""
    return at is wanted if at is None or wanted is None else math.isclose(float(at), float(wanted), rel_tol=1e-6)


def missing_cells(records: Sequence[Record], data: str, *, quick: bool = False) -> list[Cell]:
    """The cells that no record fills: none at all, one without a number or a `reason`, or one of too few seeds.

    A cell of "evaluations" is any point of the method that says what it cost, also one of "labels".
    """
    study = grid(data, quick=quick)
    filled: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        measured = math.isfinite(number(record)) and len(record.get("seeds") or ()) >= study.least_seeds
        if record.get("data") == data and (measured or record.get("reason")):
            key = (record["experiment"], record["setting"], record["method"], record["metric"])
            filled.setdefault(key, []).append(record)
    return [cell for cell in study.cells() if not _is_filled(cell, filled)]


def _is_filled(cell: Cell, filled: Mapping[tuple[str, ...], Sequence[Record]]) -> bool:
    if cell.experiment == "evaluations":
        return any(
            record.get("evaluations") is not None
            for experiment in ("evaluations", "labels")
            for record in filled.get((experiment, *cell[1:4]), ())
        )
    return any(same_place(record.get("at"), cell.at) for record in filled.get(cell[:4], ()))
