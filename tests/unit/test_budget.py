"""Budgets: a plan before anything is spent, labels that are never paid for twice, and a stop when more is useless."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx.errors import ArtifactError, BudgetError, InputError, ModelError
from cortx.explainer import fit as fit_module
from cortx.explainer.budget import LEAST_CALIBRATION, make_plan
from cortx.explainer.fit import _worth_more
from cortx.explainer.learn import trial
from cortx.explainer.material import Material, PlannedLabels
from cortx.explainer.store import LabelStore

N_COLUMNS = 6


def rows_of(count: int, seed: int = 0, n_columns: int = N_COLUMNS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, n_columns)).astype(np.float32)


def game_of(table: np.ndarray, **options: object) -> cortx.Game:
    return cortx.Game(make_model(table.shape[1], **options), reference=table, output="probability")  # type: ignore[arg-type]


# Plans ------------------------------------------------------------------------------------------------------------


@given(budget=st.integers(8_000, 200_000), n_rows=st.integers(120, 900))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_plan_stays_within_its_budget_and_gives_every_row_one_role(budget: int, n_rows: int) -> None:
    table = rows_of(n_rows)
    game = game_of(table)
    plan = make_plan(game, game.rows(table), budget, make_tiny_recipe(), 0)
    assert plan.total <= budget
    roles = np.concatenate([plan.train, plan.validation, plan.calibration])
    assert len(np.unique(roles)) == len(roles)
    assert np.isin(plan.pretraining, plan.calibration).sum() == 0
    assert np.isin(plan.pretraining, plan.validation).sum() == 0
    assert len(plan.calibration) >= LEAST_CALIBRATION
    assert game.evaluations == 1  # the base value


def test_a_larger_budget_keeps_the_roles_of_rows() -> None:
    table = rows_of(2_000)
    game = game_of(table)
    plans = [make_plan(game, game.rows(table), b, make_tiny_recipe(), 0) for b in (20_000, 40_000, 80_000)]
    for small, large in pairwise(plans):
        assert len(small.train) < len(large.train)
        np.testing.assert_array_equal(large.train[: len(small.train)], small.train)
        assert np.isin(small.validation, large.validation).all()
        assert np.isin(small.calibration, large.calibration).all()
    other = make_plan(game, game.rows(table), 20_000, make_tiny_recipe(), 1)
    assert not np.array_equal(other.train, plans[0].train)


def test_a_plan_says_why_something_is_left() -> None:
    table = rows_of(1_000)
    explainer, game = cortx.CoRTX(make_tiny_recipe()), game_of(table)
    assert "every row is labelled" in str(explainer.plan(game, table, 500_000))
    assert "every row is labelled" not in str(explainer.plan(game, table, 60_000))  # about half of them
    wide = rows_of(300, n_columns=15)
    assert "too little for another round" in str(explainer.plan(game_of(wide), wide, 20_000))


def test_the_plan_reads_well_and_is_logged_before_spending(caplog: pytest.LogCaptureFixture) -> None:
    table = rows_of(400)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=10))
    text = str(explainer.plan(game, table, 20_000))
    assert "plan for 20,000 model evaluations" in text
    for words in ("pre-training on", "to learn from (all coalitions)", "to choose the best moment", "for the bounds"):
        assert words in text
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer.fit(game, table, budget=20_000)
    assert caplog.messages[0] == text
    assert "evaluations/s" in caplog.messages[1]


@pytest.mark.parametrize("budget", [0, -5, 2.5, True, "many"])
def test_a_budget_is_a_positive_whole_number(budget: object) -> None:
    table = rows_of(200)
    with pytest.raises(InputError, match="budget must be a positive whole number"):
        cortx.CoRTX(make_tiny_recipe()).fit(game_of(table), table, budget=budget)  # type: ignore[arg-type]


def test_too_small_a_budget_says_how_much_is_needed() -> None:
    table = rows_of(500)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=10))
    with pytest.raises(
        BudgetError, match=r"budget=1,500 is too small: .* calibration .*give at least ([\d,]+)"
    ) as info:
        explainer.fit(game, table, budget=1_500)
    assert game.evaluations == 1
    enough = int(str(info.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    explainer.fit(game, table, budget=enough)
    assert len(explainer.calibration) >= LEAST_CALIBRATION


def test_too_few_rows_for_calibration_or_classes() -> None:
    table = rows_of(40)
    with pytest.raises(InputError, match="the table has 40 rows and the model 1 outputs"):
        cortx.CoRTX(make_tiny_recipe()).fit(game_of(table), table, budget=10_000)
    table = rows_of(110)
    game = game_of(table, n_outputs=120)
    with pytest.raises(InputError, match=r"110 rows and the model 120 outputs; .* at least 120 rows"):
        cortx.CoRTX(make_tiny_recipe()).fit(game, table, budget=10_000)


def test_one_way_to_say_what_to_learn_from() -> None:
    table = rows_of(200)
    with pytest.raises(InputError, match="give one of them"):
        cortx.CoRTX(make_tiny_recipe()).fit(game_of(table), table, budget=10_000, n_labels=20)


# Spending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_columns", [N_COLUMNS, 15])
def test_the_budget_is_kept_and_every_evaluation_counted(n_columns: int) -> None:
    """Six columns are enumerated; fifteen would cost 32,767 a row, so many rows are sampled."""
    table = rows_of(600, n_columns=n_columns)
    game = game_of(table)
    budget = 30_000 if n_columns == N_COLUMNS else 60_000
    explainer = cortx.CoRTX(make_tiny_recipe(steps=800)).fit(game, table, budget=budget)
    total = explainer.costs_["total_evaluations"]
    assert total <= budget
    assert game.evaluations == total
    fresh = rows_of(200, 1, n_columns)
    truth = cortx.shapley(game, fresh, row_budget=3_000, views=0).values
    values = explainer.explain(fresh).values
    even = np.repeat(truth.sum(axis=1, keepdims=True) / n_columns, n_columns, axis=1)
    assert np.linalg.norm(values - truth, axis=1).mean() < 0.5 * np.linalg.norm(even - truth, axis=1).mean()
    assert explainer.explain(fresh, confidence=0.8).error_bound.min() > 0


def test_the_default_budget_labels_small_tables_whole() -> None:
    table = rows_of(150)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=10)).fit(game, table)
    assert explainer.costs_["labels"]["rows"] + explainer.costs_["calibration"]["rows"] == 150
    assert "not needed: every row is labelled" in str(explainer.plan(game, table))


def test_a_larger_budget_goes_on_from_a_smaller_one() -> None:
    table = rows_of(800)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=50)).fit(game, table, budget=20_000)
    first = game.evaluations
    explainer.fit(game, table, budget=40_000)
    second = game.evaluations - first
    total = explainer.costs_["total_evaluations"]
    assert second < total - 0.6 * first
    fresh_game = game_of(table)
    straight = cortx.CoRTX(make_tiny_recipe(steps=50)).fit(fresh_game, table, budget=40_000)
    # The same up to the model's own rounding, which depends on how rows are batched.
    np.testing.assert_allclose(straight.explain(table).values, explainer.explain(table).values, atol=1e-5)
    np.testing.assert_allclose(straight.calibration.bands, explainer.calibration.bands, rtol=1e-3)
    # The outputs of kept labels' rows were looked at again, and that is counted.
    assert straight.costs_["total_evaluations"] == total - _checks(explainer) + _checks(straight)


def _checks(explainer: cortx.CoRTX) -> int:
    return int(explainer.costs_["checks"]["evaluations"])


def test_kept_labels_are_not_used_for_another_model_or_seed() -> None:
    """Both models are zero at the reference, so only their outputs tell them apart."""
    table = rows_of(300)
    weights = np.random.default_rng(0).normal(size=(2, N_COLUMNS))
    explainer = cortx.CoRTX(make_tiny_recipe(steps=300))
    explainer.fit(cortx.Game(lambda rows: rows @ weights[0], reference="zero"), table, budget=15_000)
    game = cortx.Game(lambda rows: rows @ weights[1], reference="zero")
    explainer.fit(game, table, budget=15_000)
    assert game.evaluations == pytest.approx(explainer.costs_["total_evaluations"], abs=2)
    truth = table * weights[1]
    assert (
        np.linalg.norm(explainer.explain(table).values - truth, axis=1).mean()
        < 0.3 * np.linalg.norm(truth, axis=1).mean()
    )
    again = cortx.Game(lambda rows: rows @ weights[1], reference="zero")
    explainer.set_params(seed=5).fit(again, table, budget=15_000)
    assert again.evaluations == pytest.approx(explainer.costs_["total_evaluations"], abs=2)


def test_labels_of_a_folder_survive_and_are_refused_to_another_model(tmp_path: Path) -> None:
    table = rows_of(400)
    game = game_of(table)
    settings_ = {"budget": 20_000, "checkpoint": tmp_path / "work"}
    first = cortx.CoRTX(make_tiny_recipe(steps=30)).fit(game, table, **settings_)  # type: ignore[arg-type]
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"labels"}
    again = game_of(table)
    second = cortx.CoRTX(make_tiny_recipe(steps=30)).fit(again, table, **settings_)  # type: ignore[arg-type]
    np.testing.assert_array_equal(first.explain(table).values, second.explain(table).values)
    assert second.costs_["total_evaluations"] == first.costs_["total_evaluations"] - _checks(first) + _checks(second)
    assert again.evaluations < 0.5 * first.costs_["total_evaluations"]  # positives and nothing else
    weights = np.random.default_rng(0).normal(size=(2, N_COLUMNS))
    for row, expected in ((0, None), (1, "belong to another model")):
        linear = cortx.Game(lambda rows, row=row: rows @ weights[row], reference="zero")
        explainer = cortx.CoRTX(make_tiny_recipe(steps=10))
        if expected is None:
            explainer.fit(linear, table, budget=15_000, checkpoint=tmp_path / "linear")
        else:
            with pytest.raises(ArtifactError, match=expected):
                explainer.fit(linear, table, budget=15_000, checkpoint=tmp_path / "linear")


@pytest.mark.parametrize("folder", [True, False])
def test_a_model_that_goes_away_leaves_its_labels(
    tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.explainer.store.MOST_AT_RISK", 2_000)
    table = rows_of(800)
    good = make_model()
    state = {"asked": 0, "limit": 20_000}

    def flaky(rows: np.ndarray) -> np.ndarray:
        state["asked"] += len(rows)
        if state["asked"] > state["limit"]:
            raise ConnectionError("the model server is gone")
        with torch.inference_mode():
            return good(torch.from_numpy(rows.astype(np.float32)))[:, 0].numpy()

    game = cortx.Game(flaky, reference=table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=30))
    where = tmp_path / "work" if folder else None
    with pytest.raises(ModelError, match=r"server is gone.*labels \(.* evaluations\) are kept.*call fit again"):
        explainer.fit(game, table, budget=40_000, checkpoint=where)
    state.update(asked=0, limit=10**9)
    if folder:
        explainer = cortx.CoRTX(make_tiny_recipe(steps=30))
    explainer.fit(game, table, budget=40_000, checkpoint=where)
    assert state["asked"] < explainer.costs_["total_evaluations"] - 0.8 * 20_000
    straight = cortx.CoRTX(make_tiny_recipe(steps=30)).fit(cortx.Game(flaky, reference=table), table, budget=40_000)
    np.testing.assert_allclose(straight.explain(table).values, explainer.explain(table).values, atol=1e-5)


# Hard tables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_columns", "copies", "budget", "mode"), [
    (3, 4, 20_000, "enumerate"), (5, 3, 40_000, "enumerate"), (15, 2, 150_000, "sample"),
])  # fmt: skip
def test_a_background_is_paid_for_as_planned(n_columns: int, copies: int, budget: int, mode: str) -> None:
    table = rows_of(400, n_columns=n_columns)
    model = make_model(n_columns)
    game = cortx.Game(model, background=table[:copies], output="probability")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=20))
    assert explainer.plan(game, table, budget).mode == mode
    explainer.fit(game, table, budget=budget)
    assert game.evaluations <= budget + copies
    assert (explainer.calibration.noise_risk == 0) == (mode == "enumerate")  # enumerated labels are exact


@pytest.mark.parametrize("n_columns", [4, 15])
@pytest.mark.parametrize("distinct", [1, 3])
def test_tables_of_few_different_rows(n_columns: int, distinct: int) -> None:
    table = rows_of(distinct, n_columns=n_columns)[np.random.default_rng(0).integers(0, distinct, 400)]
    game = cortx.Game(make_model(n_columns), reference=np.zeros(n_columns), output="probability")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=20)).fit(game, table, budget=60_000)
    assert np.isfinite(explainer.explain(table, confidence=0.8).error_bound).all()


def test_the_smallest_tables_and_budgets() -> None:
    table = rows_of(100, n_columns=15)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=20)).fit(game, table, budget=100_000)
    assert len(explainer.calibration) == LEAST_CALIBRATION
    assert game.evaluations <= 100_001


def test_sampling_never_costs_more_than_enumerating() -> None:
    table = rows_of(102, n_columns=15)
    game = game_of(table)
    plan = cortx.CoRTX(make_tiny_recipe()).plan(game, table, 50_000_000)
    assert plan.mode == "sample"
    assert plan.expected["training"] / len(plan.train) < 1.3 * 2**15


def test_outputs_are_asked_for_once_without_rough_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "LEAST_TO_STOP", 50)
    monkeypatch.setattr(fit_module, "_worth_more", lambda before, after: True)
    table = rows_of(3_000)
    for changes in ({"steps": 0}, {"rough_pairs": 0}):
        game = game_of(table)
        recipe = make_tiny_recipe(steps=10)
        recipe = replace(recipe, pretrain=replace(recipe.pretrain, **changes))
        explainer = cortx.CoRTX(recipe).fit(game, table, budget=40_000)
        assert game.evaluations <= 40_001
        assert game.evaluations == pytest.approx(explainer.costs_["total_evaluations"], abs=2)


def test_a_slightly_larger_budget_finds_the_precise_labels_of_a_smaller_one() -> None:
    table = rows_of(400, n_columns=15)
    game = game_of(table)
    plans = [cortx.CoRTX(make_tiny_recipe()).plan(game, table, budget) for budget in (60_000, 61_000)]
    assert plans[0].precise == plans[1].precise


def test_outputs_of_different_size_are_told_apart(tmp_path: Path) -> None:
    """Only the small output of the second model has changed."""
    table = rows_of(300)

    def model_of(sign: float) -> object:
        return lambda rows: np.column_stack([10_000 * rows[:, 0], sign * (rows[:, 1] - 2 * rows[:, 2] * rows[:, 3])])

    def fit(sign: float) -> cortx.CoRTX:
        game = cortx.Game(model_of(sign), reference="zero")
        return cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game, table, budget=15_000, checkpoint=tmp_path / "work")

    fit(1)
    with pytest.raises(ArtifactError, match="belong to another model"):
        fit(-1)


def test_a_fit_leaves_alone_what_is_not_its_own(tmp_path: Path) -> None:
    table = rows_of(300)
    (tmp_path / "training-data").mkdir()
    (tmp_path / "training-data" / "precious.csv").write_text("mine")
    for options in ({"n_labels": 20}, {"budget": 15_000}):
        cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game_of(table), table, checkpoint=tmp_path, **options)  # type: ignore[arg-type]
    assert (tmp_path / "training-data" / "precious.csv").read_text() == "mine"
    # A lost part is bought again, and no other one is lost for it.
    parts = sorted((tmp_path / "labels").iterdir())
    parts[0].unlink()
    cortx.CoRTX(make_tiny_recipe(steps=5)).fit(game_of(table), table, checkpoint=tmp_path, budget=15_000)
    assert sorted((tmp_path / "labels").iterdir()) == parts


def test_nothing_is_learned_from_calibration_rows() -> None:
    """However strange they are: another value in one of them changes no explanation of other rows."""
    table = rows_of(400)
    game = game_of(table)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=20)).fit(game, table, budget=20_000)
    plan = explainer.plan(game, table, 20_000)
    changed = table.copy()
    changed[plan.calibration[0], 0] = 1e4
    other = cortx.CoRTX(make_tiny_recipe(steps=20)).fit(
        cortx.Game(game.model, reference=table, output="probability"), changed, budget=20_000
    )
    fresh = rows_of(50, 1)
    np.testing.assert_allclose(other.explain(fresh).values, explainer.explain(fresh).values, atol=1e-6)


# Stopping ---------------------------------------------------------------------------------------------------------


def test_more_labels_are_bought_only_while_they_help() -> None:
    rng = np.random.default_rng(0)
    before = rng.exponential(size=200)
    assert _worth_more(before, 0.6 * before)
    assert not _worth_more(before, before)
    assert not _worth_more(before, 1.1 * before)
    assert not _worth_more(np.zeros(9), np.zeros(9))  # a model that never changes
    # A small gain that is not certain is worth a try.
    assert _worth_more(before[:10], rng.permutation(before[:10]) * 0.96)


@pytest.mark.parametrize(("size", "gain", "share"), [(1e-3, 0.0, 0.5), (1e-3, 0.3, 1.0), (1.0, 0.0, 1.0)])
def test_a_fit_stops_where_more_would_not_help(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: float, gain: float, share: float
) -> None:
    """Short trainings on a quarter and on half of the labels decide about the rest; here their errors are given.

    Errors that do not fall end a fit only where they are small: a short training need not show what more labels bring.
    """
    monkeypatch.setattr(fit_module, "LEAST_TO_STOP", 100)
    errors = size * np.random.default_rng(0).exponential(size=50)
    answers = iter([errors, (1 - gain) * errors])
    monkeypatch.setattr(fit_module, "trial", lambda *arguments, **options: next(answers))
    table = rows_of(1_000)
    explainer = cortx.CoRTX(make_tiny_recipe(steps=30))
    game = game_of(table)
    count = len(explainer.plan(game, table, 60_000).train)
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer.fit(game, table, budget=60_000)
    assert any(message.startswith("stopped at") for message in caplog.messages) == (share < 1)
    curve = explainer.learning_curve_
    assert [point["labels"] for point in curve] == [count // 4, count // 2, int(share * count)]
    assert curve[-1]["evaluations"] == explainer.costs_["total_evaluations"]
    assert [point["evaluations"] for point in curve] == sorted(point["evaluations"] for point in curve)


def test_boosted_trees_that_are_not_learned_yet_are_learned_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubling the labels of a short training brings little here, and yet the whole fit is far from its end."""
    monkeypatch.setattr(fit_module, "LEAST_TO_STOP", 100)
    monkeypatch.setattr("cortx.explainer.learn._fit_total_model", lambda *arguments: None)
    answers: list[bool] = []
    monkeypatch.setattr(fit_module, "_worth_more", lambda *errors: answers.append(_worth_more(*errors)) or answers[-1])
    X = rows_of(900, n_columns=12).astype(np.float64)
    y = np.sin(2 * X[:, 0]) * X[:, 1] + (X[:, 2] > 0) * X[:, 3] + X[:, 4] * X[:, 5] + np.abs(X[:, 6])
    trees = HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=8, random_state=0).fit(X, y)
    game = cortx.Game(trees.predict, reference=np.zeros(12))
    explainer = cortx.CoRTX(make_tiny_recipe(steps=200))
    plan = explainer.plan(game, X, 40_000)
    explainer.fit(game, X, budget=40_000)
    quarter, half, whole = explainer.learning_curve_
    assert answers == [False]  # alone this would be a reason to stop
    assert half["labels"] == 2 * quarter["labels"]
    assert min(half["relative_l2"], whole["relative_l2"]) > 0.1
    assert whole["labels"] == len(plan.train)
    assert game.evaluations == pytest.approx(plan.total, rel=0.02)


def test_an_easy_game_does_not_spend_all_of_its_budget(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One column of each row differs from the reference, so that a few labels say all there is."""
    monkeypatch.setattr(fit_module, "LEAST_TO_STOP", 100)
    monkeypatch.setattr("cortx.explainer.learn._fit_total_model", lambda *arguments: None)
    table = np.zeros((600, 4), dtype=np.float32)
    table[np.arange(600), np.arange(600) % 4] = rows_of(600, n_columns=1)[:, 0]
    game = cortx.Game(make_model(4), reference=np.zeros(4), output="probability")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=30))
    plan = explainer.plan(game, table, 20_000)
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer.fit(game, table, budget=20_000)
    assert explainer.learning_curve_[-1]["labels"] < len(plan.train)
    assert game.evaluations < plan.total
    stop = next(message for message in caplog.messages if message.startswith("stopped at"))
    assert "% of the labels' norm" in stop


def test_a_short_training_asks_the_model_for_nothing_and_falls_with_more_labels() -> None:
    table = rows_of(1_000)
    game = game_of(table)
    spent, errors = [], []
    for count in (40, 400):
        explainer = cortx.CoRTX(make_tiny_recipe(steps=900))
        plan = explainer.plan(game, table, 60_000)
        planned = PlannedLabels(game, game.rows(table), plan, LabelStore.open(None, game, 0), 0, False)
        train, validation = planned.train(count), planned.precise(plan.validation, "validation")
        material = Material(game.rows(table), train, validation, *planned.unlabelled(train))
        before = game.evaluations
        errors.append(trial(game, material, explainer.resolved_recipe(), seed=0, device="cpu", show=False).mean())
        spent.append(game.evaluations - before)
    assert spent == [0, 0]
    assert errors[1] < 0.9 * errors[0]


def test_rows_that_can_be_wrong_teach_and_judge() -> None:
    """Of 400 rows 40 differ from the reference in more than one column: half of them are learned from."""
    rng = np.random.default_rng(0)
    table = np.zeros((400, 8))
    table[np.arange(400), rng.integers(8, size=400)] = 1.0
    table[:40] = rng.normal(size=(40, 8))
    game = cortx.Game(lambda x: x[:, 0] * x[:, 1] + x.sum(axis=1), reference=np.zeros(8), categorical=())
    plan = cortx.CoRTX("quick", seed=0).plan(game, table, 20_000)
    assert plan.mode == "student"
    assert plan.pairs is not None
    taught, judged = np.unique(plan.pairs.row), np.concatenate([plan.validation, plan.calibration])
    assert (taught < 40).sum() >= 15
    assert 10 <= (plan.calibration < 40).sum() <= 20
    assert not set(taught) & set(judged)
