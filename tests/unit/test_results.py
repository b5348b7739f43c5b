"""The committed results keep what the project promises; a benchmark that is run again must keep it too."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from cortx.paper.grid import AUTHORS, LOG_ODDS, PEERS, WORDS, missing_cells
from cortx.paper.tables import PAPER, render

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CENSUS = "sigmoid output, zero reference, all test rows"
BUDGETS = (700_000, 2_700_000, 11_000_000)
GOOD = (0, 2_000, 20_000)
every_budget = pytest.mark.parametrize("budget", BUDGETS)


def missed(why: str) -> pytest.MarkDecorator:
    """A goal that was not reached, and must not be claimed."""
    return pytest.mark.xfail(strict=True, reason=why)


def load(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return records


@pytest.mark.parametrize("module", sorted(path.stem for path in RESULTS.parent.glob("*.py")))
def test_every_benchmark_can_still_be_run(module: str) -> None:
    importlib.import_module(f"benchmarks.{module}")


def load_or_skip(name: str) -> list[dict[str, Any]]:
    """The records of a benchmark; skips where it has not been run yet."""
    if not (RESULTS / f"{name}.json").exists():
        pytest.skip(f"benchmarks/results/{name}.json is not there yet: python -m benchmarks.{name}")
    return load(name)


def census(budget: int) -> dict[str, float]:
    """Metric -> mean over seeds, of the explainers that such a budget bought."""
    records = [r for r in load("budgets") if r["setting"] == CENSUS and r["budget"] == budget]
    assert all(len(r["seeds"]) >= 3 and r["evaluations"] <= budget for r in records)
    return {record["metric"]: record["value"] for record in records}


@pytest.mark.parametrize(("budget", "most"), [(700_000, 0.0038), (2_700_000, 0.0016), (11_000_000, 0.0008)])
def test_what_a_budget_buys(budget: int, most: float) -> None:
    assert census(budget)["l2"] <= most


@every_budget
def test_bounds_on_census(budget: int) -> None:
    found = census(budget)
    for kind in ("rows", "bands"):
        assert 0.89 <= found[f"100 splits: coverage, {kind}"] <= 0.92
        assert found[f"100 splits: coverage of the hardest tenth, {kind}"] >= 0.80


@pytest.mark.parametrize(
    "budget",
    [
        *BUDGETS[:2],
        pytest.param(BUDGETS[2], marks=missed("0.56 and 0.54: docs/decisions/0006-bounds.md")),
    ],
)
def test_weighted_bounds_are_half_as_wide(budget: int) -> None:
    found = census(budget)
    assert found["100 splits: median bound, rows, over the unweighted"] <= 0.5
    assert found["100 splits: median half-width, bands, over the unweighted"] <= 0.5


@pytest.mark.parametrize("kind", ["rows", "bands"])
@pytest.mark.parametrize("start", ["regression", "four classes", "groups"])
def test_bounds_on_other_data(start: str, kind: str) -> None:
    (found,) = [r for r in load("coverage") if r["setting"].startswith(start) and r["metric"] == f"coverage, {kind}"]
    assert len(found["seeds"]) >= 3
    assert 0.89 <= found["value"] <= 0.92


@pytest.mark.parametrize("kind", ["rows", "bands"])
def test_noisy_labels_never_make_bounds_too_narrow(kind: str) -> None:
    (found,) = [
        r for r in load("coverage") if r["setting"].startswith("sampled") and r["metric"] == f"coverage, {kind}"
    ]
    assert found["value"] >= 0.9


@every_budget
def test_refinement(budget: int) -> None:
    found = census(budget)
    at = "squared error at {} evaluations, {}".format
    assert found[at(65, "no prior")] >= 3 * found[at(65, "amortized")]
    assert found[at(65, "kernel")] >= 3 * found[at(65, "amortized")]
    assert found[at(1300, "amortized")] <= found[at(1300, "no prior")]
    assert found[at(1300, "amortized")] <= found[at(1300, "kernel")]


@every_budget
@pytest.mark.parametrize("share", ["50%", "10%", "1%"])
def test_tolerance(budget: int, share: str) -> None:
    found = census(budget)
    name = f"tolerance that {share} of the rows exceed"
    assert found[f"{name}: share of rows that meet it"] >= 0.9
    assert found[f"{name}: evaluations per row"] < found[f"{name}: evaluations per row if every row is refined"]


@every_budget
@pytest.mark.parametrize("by", ["value", "magnitude"])
def test_stable_ranks(budget: int, by: str) -> None:
    assert census(budget)[f"rows where a stable rank is wrong, by {by}"] <= 0.1


# The paper's tabular experiments (docs/results.md) ------------------------------------------------------------------

STUDIES = ("census", "bankruptcy")
RIVALS = ("cortx-paper-mse", "cortx-paper-ce", "supervised-mse", "supervised-ce", "supervised-strong")
STRONG = ("supervised-strong", "fastshap-strong")
SETTINGS = (("census", AUTHORS), ("census", WORDS), ("bankruptcy", LOG_ODDS))


def paper(data: str, experiment: str, setting: str, method: str, metric: str, at: float | None = None) -> Any:
    """The value of one cell; None where the method has no such metric."""
    found = [
        record["value"]
        for record in load(f"paper-{data}")
        if (record["experiment"], record["setting"], record["method"], record["metric"], record["at"])
        == (experiment, setting, method, metric, at)
    ]
    return found[0] if found else None


@pytest.mark.parametrize("data", STUDIES)
def test_no_cell_of_the_study_is_missing(data: str) -> None:
    records = load(f"paper-{data}")
    assert missing_cells(records, data) == []
    for record in records:
        assert record["hardware"]
        assert record["versions"]
        assert record["seconds"] is not None
        if record["experiment"] in ("labels", "evaluations", "ablation", "l2x"):
            assert record["evaluations"] > 0
            assert len(record["seeds"]) >= 3


@pytest.mark.parametrize("data", STUDIES)
def test_the_tables_are_those_of_the_records(data: str) -> None:
    text = (RESULTS.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert render(load(f"paper-{data}"), data).strip() in text


def behind(data: str, setting: str, rival: str) -> list[str]:
    """Metrics in which ours with 5% of the labels is not ahead of a rival with 25% (or without any)."""
    at = 0.25 if rival in RIVALS else None
    lost = []
    for metric, better in (("l2", -1), ("rank_accuracy", 1)):
        ours = paper(data, "labels", setting, "cortx", metric, 0.05)
        other = paper(data, "labels", setting, rival, metric, at)
        if other is not None and better * ours <= better * other:
            lost.append(metric)
    return lost


@pytest.mark.parametrize(("data", "setting"), SETTINGS)
@pytest.mark.parametrize("rival", [*RIVALS[:-1], "fastshap"])
def test_five_percent_beat_the_rivals_of_the_paper(data: str, setting: str, rival: str) -> None:
    assert behind(data, setting, rival) == []


def test_where_strong_rivals_are_ahead_of_five_percent() -> None:
    """Missed, and said so in docs/results.md: rivals with our inputs, network, axioms and schedule."""
    assert {(data, setting, rival): behind(data, setting, rival) for data, setting in SETTINGS for rival in STRONG} == {
        ("census", AUTHORS, "supervised-strong"): ["l2", "rank_accuracy"],
        ("census", AUTHORS, "fastshap-strong"): ["l2"],
        ("census", WORDS, "supervised-strong"): ["l2", "rank_accuracy"],
        ("census", WORDS, "fastshap-strong"): ["l2"],
        ("bankruptcy", LOG_ODDS, "supervised-strong"): [],
        ("bankruptcy", LOG_ODDS, "fastshap-strong"): ["l2", "rank_accuracy"],
    }


@every_budget
@pytest.mark.parametrize(
    ("data", "setting", "times"),
    [
        ("census", AUTHORS, 1.4),
        ("bankruptcy", LOG_ODDS, 1.0),
        pytest.param("census", AUTHORS, 2.0, marks=missed("1.4 to 1.7 times: docs/results.md")),
        pytest.param("census", WORDS, 1.0, marks=missed("FastSHAP is ahead: docs/results.md")),
    ],
)
def test_against_strong_fastshap_at_equal_evaluations(budget: int, data: str, setting: str, times: float) -> None:
    ours, other = (paper(data, "evaluations", setting, method, "l2", budget) for method in ("cortx", "fastshap-strong"))
    assert other >= times * ours


def test_speed_at_equal_error() -> None:
    faster = {r["method"]: r["value"] for r in load("paper-census") if r["experiment"] == "equal-error"
              and r["setting"] == AUTHORS}  # fmt: skip
    assert all(faster[method] >= 1_000 for method in PEERS)
    # Our own estimators are that much faster than the peers' that the factor is smaller, and said so.
    assert all(faster[method] >= 100 for method in ("kernel", "permutation"))


@pytest.mark.parametrize("method", ["kernel", "permutation"])
@pytest.mark.parametrize("budget", [300, 2_000, 4_000, 6_000, 8_000])
def test_sampling_reaches_the_printed_errors_in_less_time_than_the_peers(method: str, budget: int) -> None:
    def measured(name: str, metric: str) -> float:
        value: float = paper("census", "permutations", AUTHORS, name, metric, budget)
        return value

    assert measured(method, "squared_l2") <= PAPER["permutations", method, "squared_l2", budget].value
    rivals = {"kernel": ("captum-kernel", "shap-kernel"), "permutation": ("captum-sampling", "shap-permutation")}
    for rival in rivals[method]:
        assert measured(method, "seconds_per_row") < measured(rival, "seconds_per_row")


@pytest.mark.parametrize("metric", ["l2", "squared_l2", "rank_accuracy"])
def test_our_fastshap_is_that_of_its_authors(metric: str) -> None:
    found = {r["method"]: r for r in load("fastshap_public") if r["metric"] == metric}
    public, ours = found["public implementation"], found["ours, published form"]
    noise = (public["spread"] ** 2 / len(public["seeds"]) + ours["spread"] ** 2 / len(ours["seeds"])) ** 0.5
    assert abs(public["value"] - ours["value"]) <= 2 * noise


# Runtime ---------------------------------------------------------------------------------------------------------


def runtime(method: str, metric: str) -> list[float]:
    """A benchmark's numbers, for every number of threads or rows that it was run with."""
    found = [r["value"] for r in load("runtime") if (r["method"], r["metric"]) == (method, metric)]
    assert found
    return found


def test_explaining_many_rows_is_near_what_the_processor_can_do() -> None:
    shares = runtime("explain", "share of the GEMM rate")
    assert len(shares) == 2  # on one thread and on two
    assert min(shares) >= 0.7


def test_explaining_one_row_costs_little_more_than_its_graph() -> None:
    assert max(runtime("explain's core, encoded row", "seconds / seconds of a bare onnxruntime call")) <= 1.5


@pytest.mark.parametrize(
    "ours",
    [
        pytest.param("default recipe", marks=missed("two cores give its network at most some 125,000 rows a second")),
        "default recipe in int8",
        "quick recipe",
    ],
)
def test_a_thousand_times_faster_than_kernelshap(ours: str) -> None:
    method = f"cortx explain, {ours} / shap kernel"
    assert max(runtime(method, "mean l2 error / mean l2 error")) < 1
    assert min(runtime(method, "explanations per second / explanations per second")) >= 1_000


# Serving ---------------------------------------------------------------------------------------------------------


def serving(method: str, metric: str, setting: str) -> dict[str, Any]:
    (found,) = [
        r for r in load("serving") if (r["method"], r["metric"]) == (method, metric) and r["setting"].endswith(setting)
    ]
    return found


@pytest.mark.parametrize(
    "route",
    [
        pytest.param("/explain", marks=missed("0.24: docs/serving.md")),
        pytest.param("/explain with neither", marks=missed("0.34: docs/serving.md")),
        "V1 :predict",
    ],
)
def test_half_the_rate_of_a_bare_echo(route: str) -> None:
    assert serving(route, "requests per second / of the bare echo", "64 connections, closed loop")["median"] >= 0.5


@missed("15 unloaded medians: docs/serving.md")
def test_a_loaded_server_is_not_ten_times_slower() -> None:
    loaded = serving("/explain", "seconds, 99th percentile", "open loop, independent clients")
    alone = serving("/explain", "seconds, median", "1 connection, closed loop")
    assert loaded["median"] <= 10 * alone["median"]


def test_a_minute_at_full_load_has_no_error_and_takes_no_memory() -> None:
    errors = serving("/explain", "errors other than 429", "closed loop, 60 s")
    assert errors["value"] == 0
    assert sum(errors["statuses"].values()) > 10_000
    grown = serving("/explain", "bytes of memory, last - first (after 10 s)", "closed loop, 60 s")
    assert grown["value"] < 2**20


FAST, SLOW = "13-128-128-1", "13-512-512-1"


def ratio(name: str, method: str, metric: str, setting: str = "") -> float:
    """The median over rounds, in each of which the engines took turns."""
    (found,) = [r for r in load(name) if (r["method"], r["metric"]) == (method, metric) and setting in r["setting"]]
    assert len(found["rounds"]) >= 3
    return float(found["median"])


@pytest.mark.parametrize("network", [FAST, SLOW])
def test_two_workers_label_nearly_twice_as_fast_as_one(network: str) -> None:
    assert ratio("distributed-labels", "local, 2 workers", "rate / rate of one worker", network) >= 1.7


def test_two_workers_explain_nearly_twice_as_fast_as_one() -> None:
    assert ratio("distributed-explain", "local, 2 workers", "rate / rate of one worker") >= 1.7


@pytest.mark.parametrize("network", [FAST, SLOW])
@pytest.mark.parametrize(
    "engine",
    ["ray", pytest.param("spark", marks=missed("0.61 and 0.74 in runs of some ten seconds: docs/scaling.md"))],
)
def test_engines_cost_little_when_labelling(engine: str, network: str) -> None:
    assert ratio("distributed-labels", f"{engine}, 2 workers", "rate / rate of the local pool", network) >= 0.85


@pytest.mark.parametrize("engine", ["ray", "spark"])
def test_what_engines_cost_when_explaining_is_stated(engine: str) -> None:
    assert ratio("distributed-explain", f"{engine}, 2 workers", "rate / rate of the local pool") > 0
    method = {"ray": "ray.data, 2 workers", "spark": "spark frame, 2 workers"}[engine]
    assert ratio("distributed-explain", method, "rows per second, start of workers included") > 0


def test_twenty_million_rows_need_little_memory() -> None:
    records = {record["metric"]: record for record in load("distributed-stream")}
    assert records["rows per second"]["setting"].startswith("20,000,000 ")
    assert len(records["GiB of the largest worker"]["workers"]) >= 2  # processes, a small helper of Python's among them
    assert records["GiB of the largest worker"]["value"] < 2


BOOSTED = ("XGBoost, 100 trees of depth 6", "XGBoost, 300 trees of depth 5", "LightGBM, 100 trees of 31 leaves",
           "random forest, 100 trees of depth 6")  # fmt: skip
DEEPER, ANY_DEPTH = "XGBoost, 100 trees of depth 8", "random forest, 20 trees of any depth"
too_deep = missed("leaves with many players on their path are visited one by one: docs/decisions/0011-trees.md")


def trees(model: str) -> dict[str, float]:
    """Metric -> mean over seeds, of exact values of trees."""
    records = [r for r in load("trees") if r["setting"].startswith(f"{model}, ")]
    assert all(len(r["seeds"]) >= 3 for r in records)
    return {record["metric"]: record["value"] for record in records}


@pytest.mark.parametrize("model", [*BOOSTED, DEEPER, ANY_DEPTH])
def test_exact_values_of_trees_are_those_of_shap(model: str) -> None:
    assert max(trees(model)[f"largest difference, {kind}"] for kind in ("one reference", "background")) <= 1e-5


@pytest.mark.parametrize(
    "model",
    [
        *BOOSTED,
        pytest.param(DEEPER, marks=missed("tables grow with the leaves: docs/decisions/0011-trees.md")),
        pytest.param(ANY_DEPTH, marks=too_deep),
    ],
)
def test_exact_values_of_trees_take_little_longer_than_shap(model: str) -> None:
    assert trees(model)["time over shap's, one reference"] <= 1.5


@pytest.mark.parametrize("model", [*BOOSTED, DEEPER, pytest.param(ANY_DEPTH, marks=too_deep)])
def test_backgrounds_of_trees_are_ten_times_faster_than_shap(model: str) -> None:
    assert trees(model)["times as fast as shap, background"] >= 10


def taught_by_trees(setting: str, method: str) -> dict[str, float]:
    """Metric -> mean over seeds, of explainers that trees teach or not."""
    records = [r for r in load("tree_teacher") if r["setting"] == setting and r["method"] == method]
    assert all(len(r["seeds"]) >= 3 for r in records)
    return {record["metric"]: record["value"] for record in records}


@pytest.mark.parametrize("setting", ["boosted regression, 12 columns", "XGBoost log-odds, 23 columns"])
def test_explainers_of_trees_have_half_the_error_for_checks_alone(setting: str) -> None:
    now, before = (taught_by_trees(setting, method) for method in ("trees teach", "before (78d1d41)"))
    assert now["relative l2"] <= 0.5 * before["relative l2"]
    assert now["evaluations"] < 100 < before["evaluations"]


def test_trees_teach_functions_with_steps_and_networks_smooth_ones() -> None:
    for setting, trees_teach in (
        ("a forest's probability as a function, 12 columns", 1.0),
        ("a network as a function, 12 columns", 0.0),
    ):
        chosen, network = (taught_by_trees(setting, method) for method in ("trees teach", "network student"))
        assert chosen["trees teach"] == trees_teach
        assert chosen["relative l2"] <= (0.85 if trees_teach else 1.001) * network["relative l2"]
        assert chosen["evaluations"] <= 65_000


def test_the_plan_of_an_installation_is_that_of_the_results() -> None:
    from benchmarks.planning import render as render_plan

    text = (RESULTS.parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert render_plan().strip() in text


def test_the_audit_keeps_its_promise() -> None:
    """Of every kind of traffic, size of calibration and confidence; docs/serving.md says the same."""
    records = load("audit")
    honest = [r for r in records if r["metric"] == "share of honest streams that alarm"]
    assert len(honest) == 54
    assert all(r["streams"] >= 1_000 and r["value"] <= r["expected_at_most"] for r in honest)
    text = " ".join((RESULTS.parents[1] / "docs" / "serving.md").read_text(encoding="utf-8").split())
    alarms, streams = sum(round(r["value"] * r["streams"]) for r in honest), sum(r["streams"] for r in honest)
    assert f"{alarms} of the {streams:,} honest streams alarmed" in text
    delays = {r["setting"]: r["value"] for r in records if "until the alarm" in r["metric"]}
    for n in (100, 200, 1_000):
        parts = [
            [delays[f"after {good} good rows 90% bounds fail for {share}%; {n} calibration rows"] for good in GOOD]
            for share in (40, 50, 70, 90)
        ]
        assert f"| {n:,} | {' | '.join(' / '.join(f'{rows:.0f}' for rows in part) for part in parts)} |" in text
        assert max(parts[1]) <= 200


def test_two_fits_side_by_side_take_little_longer_than_their_share() -> None:
    found = {(r["method"], r["metric"]): r for r in load("side_by_side")}
    ratio = found["2 fits side by side", "ratio to one alone, median"]
    assert ratio["value"] <= 2.5
    assert "default threads" in ratio["setting"]


@pytest.mark.parametrize("kind", ["rows", "bands"])
@pytest.mark.parametrize("start", ["tanh network", "boosted trees", "Census target (13 features)"])
def test_bounds_of_refined_rows(start: str, kind: str) -> None:
    """All rounds jointly over re-drawn calibration splits, and wherever a tolerance makes rows stop."""
    found = {r["metric"]: r for r in load("refined") if r["setting"].startswith(start)}
    jointly = found[f"all rounds jointly, {kind}"]
    assert len(jointly["seeds"]) >= 3
    assert 0.88 <= jointly["value"] <= 0.93
    stops = [r for name, r in found.items() if name.startswith("at the stop") and name.endswith(kind)]
    assert len(stops) == 3
    assert min(r["value"] for r in stops) >= 0.88


@pytest.mark.parametrize(
    ("table", "coalitions", "most"),
    [("breast", 1_000, 1e-4), ("breast", 3_000, 1e-5), ("friedman1", 1_000, 3e-6), ("friedman1", 3_000, 3e-7)],
)
def test_sampling_reaches_its_goal_in_time(table: str, coalitions: int, most: float) -> None:
    found = {
        r["metric"]: r
        for r in load("sampling")
        if r["setting"].startswith(table)
        and r["setting"].endswith(f" {coalitions} coalitions")
        and r["method"] == "odd"
    }
    assert len(found["nMSE"]["seeds"]) >= 3
    assert found["nMSE"]["value"] <= most
    assert found["time over kernel's"]["value"] <= 5


def test_sampling_is_honest_and_nowhere_worse() -> None:
    found = {(r["setting"], r["method"], r["metric"]): r["value"] for r in load("sampling")}
    settings = {setting for setting, _, _ in found}
    assert len(settings) >= 8
    for setting in settings:
        assert found[setting, "odd", "nMSE"] <= found[setting, "kernel", "nMSE"]
        assert found[setting, "odd", "share within two standard errors"] >= 0.94


# Fits with a budget (benchmarks/taught.py) -----------------------------------------------------------------------

TODAY = {"median bound, rows": 0.000396, "median half-width, bands": 0.000248}
"""Bounds on Census, zero reference, with 2.7 million evaluations, before fits learned a student."""
RIVAL = "fastshap-strong"
THREE_BUDGETS = {
    "census-zero": (20_000, 65_000, 700_000),
    "census-mean": (20_000, 65_000, 660_000),
    "bankruptcy": (20_000, 65_000, 700_000),
    "hours": (20_000, 65_000, 700_000),
    "occupation": (20_000, 65_000, 700_000),
}


def taught(problem: str, method: str, budget: int) -> dict[str, float]:
    """Metric -> mean over seeds of such fits."""
    records = [r for r in load("taught") if (r["problem"], r["method"], r["budget"]) == (problem, method, budget)]
    assert records
    assert all(len(r["seeds"]) >= 3 and r["evaluations"] <= budget for r in records)
    return {record["metric"]: record["value"] for record in records}


def test_every_fit_with_a_budget_is_recorded() -> None:
    from benchmarks.taught import GROUPS

    found = {(r["problem"], r["method"], r["budget"]) for r in load("taught")}
    assert {job for group in GROUPS.values() for job in group} == found


STUDIED = {
    "census-zero": ("paper-census", "sigmoid output, zero reference"),
    "census-mean": ("paper-census", "linear output, mean reference"),
}


def fastshap(problem: str, budget: int) -> float:
    """The l2 of FastSHAP (strong): here, or in the study of the paper with 0 to 6% more evaluations."""
    found = [r for r in load("taught") if (r["problem"], r["method"], r["budget"]) == (problem, RIVAL, budget)]
    if not found:
        name, setting = STUDIED[problem]
        about = (setting, RIVAL, "evaluations")
        found = [
            r
            for r in load(name)
            if (r["setting"], r["method"], r["experiment"]) == about and budget <= r["at"] <= 1.07 * budget
        ]
    (record,) = [r for r in found if r["metric"] == "l2"]
    assert len(record["seeds"]) >= 3
    return float(record["value"])


def test_fits_with_a_budget_are_scored_on_all_test_rows() -> None:
    rows = {r["problem"]: r["test_rows"] for r in load("taught")}
    every = {"census-zero": 6_513, "census-mean": 6_513, "bankruptcy": 1_364}
    assert {problem: rows[problem] for problem in every if problem in rows}.items() <= every.items()


def test_the_tables_of_budgets_are_those_of_the_records() -> None:
    from benchmarks.taught_tables import render as render_taught

    text = (RESULTS.parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
    assert render_taught(load("taught")).strip() in text


@pytest.mark.parametrize(
    ("problem", "method", "budget", "most"),
    [
        ("census-zero", "default", 20_000, 0.0010),
        ("census-zero", "default", 65_000, 0.0006),
        ("census-zero", "default", 700_000, 0.00042),
        ("census-zero", "default", 2_700_000, 0.00036),
        ("census-mean", "default", 20_000, 0.008),
        ("census-mean", "default", 65_000, 0.0050),
        ("census-mean", "default", 660_000, 0.0040),
        ("census-mean", "default", 2_600_000, 0.0036),
        ("bankruptcy", "default", 100_000, 0.26),
        ("bankruptcy", "default", 700_000, 0.19),
        ("census-zero", "thorough", 700_000, 0.00030),
        ("census-mean", "thorough", 660_000, 0.0016),
    ],
)
def test_what_a_budget_buys_with_a_student(problem: str, method: str, budget: int, most: float) -> None:
    assert taught(problem, method, budget)["l2"] <= most


@pytest.mark.parametrize(("budget", "least"), [(20_000, 0.90), (65_000, 0.935)])
def test_ranks_of_small_budgets(budget: int, least: float) -> None:
    assert taught("census-zero", "default", budget)["rank accuracy"] >= least


@pytest.mark.parametrize(
    ("problem", "budget"),
    [
        *(("census-zero", budget) for budget in (20_000, 65_000, 700_000, 2_700_000)),
        *(("census-mean", budget) for budget in (20_000, 65_000, 660_000, 2_600_000)),
        *(("bankruptcy", budget) for budget in (100_000, 700_000)),
    ],
)
def test_the_default_recipe_is_ahead_of_fastshap(problem: str, budget: int) -> None:
    assert taught(problem, "default", budget)["l2"] < fastshap(problem, budget)


@pytest.mark.parametrize(
    ("problem", "budget", "times"),
    [
        *(("census-zero", budget, 2) for budget in (65_000, 700_000, 2_700_000)),
        *(("census-mean", budget, 2) for budget in (65_000, 660_000, 2_600_000)),
        ("bankruptcy", 700_000, 2),
        ("census-zero", 11_000_000, 1),
        ("census-mean", 11_000_000, 1),
    ],
)
def test_the_thorough_recipe_against_fastshap(problem: str, budget: int, times: float) -> None:
    assert times * taught(problem, "thorough", budget)["l2"] < fastshap(problem, budget)


OUTSIDE = {
    ("census-zero", 20_000, "bands"): "they hold for 0.932 of the rows",
    ("census-mean", 20_000, "bands"): "they hold for 0.935 of the rows",
    ("bankruptcy", 20_000, "bands"): "they hold for 0.849 of the rows",
    ("bankruptcy", 700_000, "rows"): "they hold for 0.935 of the rows",
}
"""Bounds that hold for too few rows, or too many."""


@pytest.mark.parametrize(
    ("problem", "budget", "kind"),
    [
        pytest.param(*job, marks=missed(OUTSIDE[job])) if job in OUTSIDE else job
        for problem, some in THREE_BUDGETS.items()
        for budget in some
        for job in ((problem, budget, "rows"), (problem, budget, "bands"))
    ],
)
def test_bounds_of_budgets(problem: str, budget: int, kind: str) -> None:
    found = taught(problem, "quick" if problem in ("hours", "occupation") else "default", budget)
    assert 0.88 <= found[f"100 splits: coverage, {kind}"] <= 0.93
    assert found[f"100 splits: coverage of the hardest tenth, {kind}"] >= 0.80


@pytest.mark.parametrize("width", TODAY)
def test_bounds_of_a_small_budget_are_narrow(width: str) -> None:
    assert taught("census-zero", "default", 65_000)[f"100 splits: {width}"] <= 1.3 * TODAY[width]


@pytest.mark.parametrize(("budget", "most"), [(100_000, 0.08), (700_000, 0.05)])
@pytest.mark.parametrize("table", ["meters", "cells", "orders"])
def test_tables_that_nobody_tuned_for(table: str, budget: int, most: float) -> None:
    assert taught(table, "default", budget)["relative l2"] <= most


@pytest.mark.parametrize(
    ("problem", "part", "whole"),
    [
        ("census-mean", "no-student", "quick"),
        ("census-mean", "no-made-up-rows", "default"),
        ("hours", "no-boosted-trees", "quick"),
    ],
)
def test_every_part_of_the_student_earns_its_place(problem: str, part: str, whole: str) -> None:
    assert taught(problem, part, 65_000)["l2"] > taught(problem, whole, 65_000)["l2"]


@pytest.mark.parametrize(("method", "most"), [("default", 240), ("quick", 40)])
def test_fits_with_a_budget_take_minutes(method: str, most: float) -> None:
    """Seconds of one core, the model's included; records say how fast it multiplies matrices."""
    found = [r for r in load("taught") if r["method"] == method and r["budget"] <= 1_000_000]
    seconds = {(r["problem"], r["budget"]): r["value"] for r in found if r["metric"] == "processor seconds"}
    assert {about: took for about, took in seconds.items() if took > most} == {}


def test_fits_with_a_budget_need_little_memory() -> None:
    found = [r for r in load("taught") if r["method"] == "default" and r["metric"].startswith("MiB above")]
    assert all(len(r["seeds"]) == 3 for r in found)
    # No number of three is further from their mean than 2 / sqrt(3) of their standard deviation.
    used = {(r["problem"], r["budget"]): r["value"] + 2 / 3**0.5 * r["spread"] for r in found}
    assert {about: most for about, most in used.items() if most >= 1_024} == {}


@pytest.mark.parametrize("budget", [65_000, 660_000])
def test_a_student_makes_refinement_ten_times_better(budget: int) -> None:
    found = taught("census-mean", "default", budget)
    assert found["squared error without the student over that with it"] >= 10


def test_the_unbiased_mode_is_unbiased() -> None:
    found = taught("census-mean", "default", 65_000)
    name = "unbiased mode, mean of 1,000 repeats: difference to exact values in standard errors"
    assert found[f"{name}, root mean square"] <= 1.25
    assert found[f"{name}, largest"] <= 4.5


def test_a_slow_model_is_explained_in_minutes() -> None:
    records = {r["metric"]: r for r in load_or_skip("slow_model")}
    about = records["relative l2"]
    assert (len(about["seeds"]) >= 3, about["test_rows"], about["workers"]) == (True, 50, 2)
    assert about["seconds_a_row"] >= 0.018
    assert about["value"] <= 0.10
    assert records["seconds"]["value"] < 600


# A student that learns little -------------------------------------------------------------------------------------


def poor_student(setting: str, method: str) -> dict[str, float]:
    records = [r for r in load("poor_student") if (r["setting"], r["method"]) == (setting, method)]
    assert all(len(r["seeds"]) >= 2 for r in records)
    return {record["metric"]: record["value"] for record in records}


@pytest.mark.parametrize("setting", ["waves", "nearest neighbour, diabetes", "noise"])
def test_a_poor_student_teaches_more_than_labels_from_the_model(setting: str) -> None:
    student, alone = poor_student(setting, "student"), poor_student(setting, "labels alone")
    assert student["unexplained by the student"] > 0.5
    assert student["relative l2"] < alone["relative l2"]


def test_rough_labels_earn_their_place_beside_counted_ones() -> None:
    setting = "a small network, 12 columns"
    both, alone = (poor_student(setting, f"counted labels{kind}") for kind in (", rough ones too", " alone"))
    assert both["relative l2"] < 0.9 * alone["relative l2"]


# Images -------------------------------------------------------------------------------------------------------


def test_digits_on_two_cores() -> None:
    """The whole path in two minutes of processor time, and nearer to exact values than before decision 17."""
    now, before = (
        {record["metric"]: record for record in load(name)} for name in ("digits_images", "digits_images-before")
    )
    assert all(len(record["seeds"]) >= 3 for record in now.values())
    assert now["processor_seconds"]["value"] < 120
    assert now["evaluations"]["value"] <= 150_000
    for metric, sign in (("cosine", 1), ("rank_correlation", 1), ("relative_l2", -1)):
        gain = sign * (now[metric]["value"] - before[metric]["value"])
        assert gain > 3 * (now[metric]["spread"] + before[metric]["spread"])
