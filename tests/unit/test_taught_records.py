"""The scripts behind the records of fits with a budget: how parts become records, and what coverage is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks import taught, unseen
from benchmarks.coverage import Pool, study
from benchmarks.refined import Rounds
from benchmarks.refined import study as study_of_rounds
from benchmarks.slow_model import product_values
from benchmarks.taught_tables import render

import cortx
from cortx.explainer.noise import Seen


def part(seed: int, **scores: float) -> dict[str, Any]:
    return {
        "problem": "census-mean", "setting": taught.MEAN, "method": "default", "budget": 20_000, "seed": seed,
        "scores": {"seconds": 3.0, "l2": 0.1, "relative l2": 0.05, **scores}, "hardware": "a machine",
        "versions": "its versions", "device": "cpu", "test_rows": 10, "truth_error": 0.0, "evaluations": 19_000 + seed,
        "evaluations_by_stage": {"student": 10_000 + seed}, "seconds_by_stage": {"student": 1.0},
    }  # fmt: skip


def test_parts_become_means_over_seeds() -> None:
    records = taught.collect([part(2, l2=0.3), part(0, l2=0.1)])
    (l2,) = [record for record in records if record["metric"] == "l2"]
    assert (l2["value"], l2["seeds"], l2["evaluations"]) == (pytest.approx(0.2), [0, 2], 19_001)
    assert l2["hardware"] == "a machine"
    assert l2["evaluations_by_stage"] == {"student": 10_001}
    assert f"### {taught.MEAN}" in render(records)
    with pytest.raises(ValueError, match="twice"):
        taught.collect([part(0), part(0)])


def test_new_records_take_the_place_of_those_of_the_same_fits() -> None:
    older = taught.collect([part(0, l2=0.5), {**part(0, l2=0.7), "budget": 65_000}])
    records = taught.in_place(taught.collect([part(1, l2=0.1)]), older)
    assert [(r["budget"], r["value"]) for r in records if r["metric"] == "l2"] == [(20_000, 0.1), (65_000, 0.7)]


def test_every_job_is_one_that_can_be_run() -> None:
    for line in taught.jobs(list(taught.GROUPS), (0,)):
        _, problem, _, method, _, budget, _, seed = line.split()
        assert problem in taught.PROBLEMS
        assert method in (*taught.RECIPES, taught.RIVAL)
        assert int(budget) >= 20_000
        assert seed == "0"


def test_coverage_is_counted_on_all_rows_that_do_not_calibrate() -> None:
    """Errors are normal, of the sizes that the explainer states; labels of 400 rows have a fifth of that as noise."""
    generator = np.random.default_rng(0)
    count, labelled, players = 2_000, 400, 6
    typical = np.exp(generator.normal(size=(count, 1, 1))) * np.ones((count, players, 1))
    error = typical * generator.normal(size=typical.shape)
    noise = 0.2 * typical[:labelled] * generator.normal(size=(labelled, players, 1))
    typical_row = np.sqrt(np.square(typical).sum(axis=1))
    active = np.ones((count, players), dtype=bool)
    seen = Seen(error[:labelled] + noise, np.square(0.2 * typical[:labelled]), typical[:labelled], active[:labelled])
    pool = Pool(
        residual=seen.values, errors=np.sqrt(seen.variance), typical=typical, typical_row=typical_row, active=active,
        truth=error, predicted=np.zeros_like(error), known=np.zeros_like(seen.values), seen=seen,
    )  # fmt: skip
    found = study(pool, 200, splits=4)
    assert 0.86 <= found["coverage, rows"] <= 0.94
    assert 0.86 <= found["coverage, bands"] <= 0.94
    assert found["coverage of the hardest tenth, rows"] >= 0.8


def test_answers_and_rounds_have_factors_of_their_own() -> None:
    """Answers are ten times farther off than stated, rounds as far as stated: one factor for both would be too wide."""
    generator = np.random.default_rng(1)
    away = np.abs(generator.normal(size=(3, 3_000))) * np.array([[10.0], [1.0], [1.0]])
    found = study_of_rounds(Rounds(away, np.ones_like(away), away, np.ones_like(away)), 1_000, splits=4)
    assert 0.87 <= found["all rounds jointly, rows"] <= 0.93
    assert found["factor of rows"] > 5 * found["factor of rows, refined"]


def test_products_of_factors_have_the_values_of_enumeration() -> None:
    generator = np.random.default_rng(2)
    for players in (4, 5):
        present, absent = generator.uniform(0.2, 1, size=(2, 7, players))
        weights = generator.normal(size=7)

        def model(rows: np.ndarray, on: Any = present, off: Any = absent, by: Any = weights) -> np.ndarray:
            return (np.where(rows[:, None] > 0.5, on, off).prod(axis=2) * by).sum(axis=1)

        game = cortx.Game(model, reference=np.zeros(players), categorical=())
        labels = cortx.shapley(game, np.ones((1, players)), "exact", progress=False)
        np.testing.assert_allclose(product_values(present, absent, weights), labels.values[0], atol=1e-12)


def test_true_values_of_a_gaussian_process_add_up() -> None:
    table = unseen.cells()
    some = table.test[:3]
    difference = table.game.outputs_of(table.game.rows(some).table)[:, 0] - table.game.base_values[0]
    np.testing.assert_allclose(table.exact(some).sum(axis=1), difference, atol=1e-9)
    assert table.game.n_players >= 20
