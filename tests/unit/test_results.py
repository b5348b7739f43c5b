"""The committed results keep what the project promises; a benchmark that is run again must keep it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
CENSUS = "sigmoid output, zero reference, all test rows"
BUDGETS = (700_000, 2_700_000, 11_000_000)
every_budget = pytest.mark.parametrize("budget", BUDGETS)


def load(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return records


def census(budget: int) -> dict[str, float]:
    """Metric -> mean over seeds, of the explainers that such a budget bought."""
    records = [r for r in load("budgets") if r["setting"] == CENSUS and r["budget"] == budget]
    assert all(len(r["seeds"]) >= 3 and r["evaluations"] <= budget for r in records)
    return {record["metric"]: record["value"] for record in records}


@pytest.mark.parametrize(
    ("budget", "most", "fastshap"),
    [(700_000, 0.0038, 0.0055), (2_700_000, 0.0016, 0.0034), (11_000_000, 0.0008, 0.0015)],
)
def test_what_a_budget_buys(budget: int, most: float, fastshap: float) -> None:
    l2 = census(budget)["l2"]
    assert l2 <= most
    assert l2 <= fastshap / 2


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
        pytest.param(
            BUDGETS[2], marks=pytest.mark.xfail(strict=True, reason="0.56 and 0.54: docs/decisions/0006-bounds.md")
        ),
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
