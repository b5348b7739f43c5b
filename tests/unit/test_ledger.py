"""The ledger: what a model is asked stays within the budget, and is what the plan says."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import make_tiny_recipe

import cortx
from cortx.errors import BudgetError
from cortx.estimators import ESTIMATORS
from cortx.estimators.permutation import Permutation, expected_walk_values, walk_values
from cortx.explainer import budget as budget_module
from cortx.explainer import fit as fit_module
from cortx.explainer import learn as learn_module
from cortx.explainer.store import Ask, LabelStore
from cortx.training.positives import choose_positives, count_values


class Counting:
    """A model that counts the rows it is asked about."""

    def __init__(self, n_columns: int, n_outputs: int = 1) -> None:
        self.weights = np.random.default_rng(0).normal(size=(n_columns, n_outputs))
        self.count = 0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.count += len(rows)
        rows = np.asarray(rows, dtype=np.float64)
        return np.tanh(rows @ self.weights / 3) + rows[:, :1] * rows[:, -1:]


def rows_of(kind: str, n_rows: int, n_columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n_rows, n_columns))
    if kind == "sparse":
        table *= rng.random((n_rows, n_columns)) < 0.15
    elif kind == "mixed":
        table *= rng.random((n_rows, n_columns)) < rng.random((n_rows, 1))
    elif kind == "repeated":
        table = table[rng.integers(0, max(2, n_rows // 8), n_rows)] * (rng.random(n_columns) < 0.7)
    return table


def few_active(n_rows: int, n_columns: int, n_active: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(n_rows, n_columns))
    for row in table:
        row[rng.permutation(n_columns)[n_active:]] = 0
    return table


def game_of(table: np.ndarray, *, copies: int = 0, n_outputs: int = 1, players: Any = None) -> tuple[Counting, Any]:
    model = Counting(table.shape[1], n_outputs)
    absent: Any = {"background": table[:copies]} if copies else {"reference": np.zeros(table.shape[1])}
    return model, cortx.Game(model, players=players, **absent)


@pytest.fixture
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned, and no fit stops early: what is spent does not depend on either."""
    monkeypatch.setattr(learn_module, "_fit_total_model", lambda *arguments: None)
    monkeypatch.setattr("cortx.training.difficulty.STEPS", 1)
    monkeypatch.setattr(fit_module, "LEAST_TO_STOP", 10**9)


def explainer_of(seed: int = 0, **pretrain: Any) -> cortx.CoRTX:
    recipe = make_tiny_recipe(steps=1)
    return cortx.CoRTX(replace(recipe, pretrain=replace(recipe.pretrain, **{"steps": 2, **pretrain})), seed=seed)


def check_spending(explainer: cortx.CoRTX, plan: Any, asked: int, budget: int) -> None:
    """Every evaluation is counted, the budget holds, and each stage costs what the plan says."""
    costs, planned = explainer.costs_, dict(plan.expected)
    assert asked == costs["total_evaluations"] <= budget
    assert asked == pytest.approx(plan.total, rel=0.02)
    planned["labels"] = planned.pop("training") + planned.pop("validation")
    for stage, expected in planned.items():
        assert costs[stage]["evaluations"] == pytest.approx(expected, rel=0.02), stage


# The ledger itself ------------------------------------------------------------------------------------------------


def test_the_call_that_would_pass_the_limit_is_never_made() -> None:
    model, game = game_of(rows_of("dense", 5, 4))
    rows = game.rows(rows_of("dense", 5, 4))
    with game.spending(12, "; what to do") as ledger:
        ledger.planned = 9
        game.full_values(rows)
        with game.spending(3), pytest.raises(BudgetError, match="0 of 3 model evaluations"):
            game.full_values(rows)  # the inner limit holds as well
        ledger.add(4)  # paid for before
        with pytest.raises(
            BudgetError, match=r"9 of 12 .* spent \(9 were planned\), and the next call asks for 5; .*; what to do"
        ):
            game.full_values(rows)
    assert model.count == game.evaluations == ledger.spent - 4 == 5
    game.full_values(rows)  # outside nothing is limited
    assert model.count == 10


def test_a_ledger_counts_the_calls_of_its_own_thread() -> None:
    model, game = game_of(rows_of("dense", 5, 4))
    rows = game.rows(rows_of("dense", 5, 4))
    with game.spending(0):
        other = threading.Thread(target=game.full_values, args=(rows,))
        other.start()
        other.join()
        with pytest.raises(BudgetError):
            game.full_values(rows)
    assert model.count == 5


# Counts that a plan rests on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_players", [2, 3, 5, 9])
@pytest.mark.parametrize("pairs", [1, 2, 7])
def test_pairs_of_permutations_cost_what_is_expected(n_players: int, pairs: int) -> None:
    table = np.random.default_rng(0).normal(size=(400, 12))
    table[:, n_players:] = 0
    _, game = game_of(table)
    labels = cortx.shapley(game, table, Permutation(pairs), row_budget=10_000)
    spent = labels.row_evaluations - 1
    assert spent.max() <= walk_values(n_players, pairs)
    assert spent.mean() == pytest.approx(expected_walk_values(n_players, pairs), rel=0.01)


def test_as_many_pairs_as_asked_whatever_the_budget() -> None:
    table = rows_of("mixed", 50, 20)
    _, game = game_of(table)
    few = cortx.shapley(game, table, Permutation(2), row_budget=10_000)
    np.testing.assert_array_less(few.row_evaluations, 2 + 4 * np.maximum(0, (table != 0).sum(axis=1) - 1))
    dense = np.random.default_rng(0).normal(size=(5, 20))
    filled = cortx.shapley(game, dense, "permutation", row_budget=1 + 4 * 19)
    np.testing.assert_array_equal(cortx.shapley(game, dense, Permutation(2), row_budget=10_000).values, filled.values)


@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed"])
@pytest.mark.parametrize("n_columns", [3, 40])
def test_positives_are_counted_before_they_are_asked_for(kind: str, n_columns: int) -> None:
    table = rows_of(kind, 60, n_columns)
    model, game = game_of(table)
    rows, asked = game.rows(table), {"how": "compact", "count": 8, "keep": 0.5, "seed": 3}
    counted = count_values(game, rows, rounds=2, **asked)
    assert model.count == 0
    outputs, before = game.full_values(rows), model.count + len(game.base_values)
    for round_ in range(2):
        choose_positives(game, rows, outputs, round_=round_, **asked)
    assert model.count - before == counted.sum()


# Fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_fits")
@pytest.mark.parametrize(
    ("n_columns", "n_active", "budget"), [(200, 15, 200_000), (60, 6, 60_000)], ids=["sampled", "enumerated"]
)
def test_rows_with_few_active_columns_cost_what_was_planned(n_columns: int, n_active: int, budget: int) -> None:
    table = few_active(400, n_columns, n_active)
    model, game = game_of(table)
    explainer = explainer_of()
    plan = explainer.plan(game, table, budget)
    assert plan.mode == ("sample" if n_active == 15 else "enumerate")
    explainer.fit(game, table, budget=budget)
    check_spending(explainer, plan, model.count, budget)


@pytest.mark.usefixtures("quick_fits")
@pytest.mark.parametrize("kind", ["dense", "sparse", "mixed", "repeated"])
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "budget", "options"),
    [
        (200, 5, 9_000, {}),
        (150, 14, 40_000, {"n_outputs": 2}),
        (130, 16, 150_000, {}),
        (150, 6, 60_000, {"copies": 3}),
        (150, 9, 9_000, {"players": {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6], "d": [7, 8]}}),
    ],
)
def test_a_fit_spends_what_was_planned(
    kind: str, n_rows: int, n_columns: int, budget: int, options: dict[str, Any]
) -> None:
    table = rows_of(kind, n_rows, n_columns)
    model, game = game_of(table, **options)
    explainer = explainer_of()
    plan = explainer.plan(game, table, budget)
    explainer.fit(game, table, budget=budget)
    check_spending(explainer, plan, model.count, budget)


@pytest.mark.usefixtures("quick_fits")
@given(
    kind=st.sampled_from(["dense", "sparse", "mixed", "repeated"]),
    n_rows=st.integers(110, 260),
    n_columns=st.integers(1, 24),
    budget=st.integers(5_000, 60_000),
    copies=st.sampled_from([0, 0, 2, 5]),
    pretrain=st.sampled_from(
        [{}, {"steps": 0}, {"rough_pairs": 0}, {"rough_pairs": 3, "rounds": 2}, {"positives": "random"}]
    ),
    seed=st.integers(0, 9),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_any_fit_spends_what_was_planned(
    kind: str, n_rows: int, n_columns: int, budget: int, copies: int, pretrain: dict[str, Any], seed: int
) -> None:
    table = rows_of(kind, n_rows, n_columns, seed)
    model, game = game_of(table, copies=copies)
    explainer = explainer_of(seed, **pretrain)
    try:
        plan = explainer.plan(game, table, budget)
    except BudgetError:  # too small for this table, and said so
        return
    explainer.fit(game, table, budget=budget)
    check_spending(explainer, plan, model.count, budget)


@pytest.mark.usefixtures("quick_fits")
@pytest.mark.parametrize("in_folder", [True, False])
def test_kept_labels_count_as_spent_and_their_check_is_planned(tmp_path: Path, in_folder: bool) -> None:
    table = rows_of("mixed", 200, 14)
    model, game = game_of(table)
    explainer = explainer_of()
    folder = tmp_path if in_folder else None
    explainer.fit(game, table, budget=15_000, checkpoint=folder)
    first = model.count
    explainer.fit(game, table, budget=30_000, checkpoint=folder)
    assert model.count - first < 30_000 - first / 2
    straight = explainer_of()
    other, fresh = game_of(table)
    straight.fit(fresh, table, budget=30_000)
    checked = explainer.costs_["checks"]["evaluations"] - straight.costs_["checks"]["evaluations"]
    assert 0 < checked <= 32
    assert explainer.costs_["total_evaluations"] == straight.costs_["total_evaluations"] + checked <= 30_000
    if not in_folder:
        assert explainer.costs_["total_evaluations"] == pytest.approx(
            explainer.plan(game, table, 30_000).total, rel=0.02
        )
    assert other.count == straight.costs_["total_evaluations"]


@pytest.mark.usefixtures("quick_fits")
def test_a_plan_that_is_wrong_is_refused_and_its_labels_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that thinks that permutations cost nothing."""
    monkeypatch.setattr("cortx.explainer.store.MOST_AT_RISK", 500)
    table = rows_of("dense", 300, 15)
    model, game = game_of(table)
    with monkeypatch.context() as wrong:
        wrong.setattr(budget_module, "walk_values", lambda n_players, pairs: 0)
        with pytest.raises(BudgetError, match=r"of 12,000 .* were planned.* labels .* are kept: call fit again"):
            explainer_of().fit(game, table, budget=12_000, checkpoint=tmp_path)
    assert 10_000 < model.count <= 12_000
    spent = model.count
    explainer = explainer_of().fit(game, table, budget=40_000, checkpoint=tmp_path)
    assert model.count - spent < 40_000 - 5_000
    assert explainer.costs_["total_evaluations"] <= 40_000


# What the first version kept --------------------------------------------------------------------------------------


def test_labels_of_the_first_version_are_used_where_they_mean_the_same() -> None:
    """It filled the values of a full row: a row with few active players then had more pairs than it has now."""
    table = np.concatenate([few_active(6, 12, n_active) for n_active in (0, 1, 2, 4, 6, 7, 12)])
    model, game = game_of(table)
    rows, everyone = game.rows(table), np.arange(len(table))
    store, settings_ = LabelStore.open(None, game, 0), {"views": 0, "seed": 0, "show": False, "title": ""}
    ask = Ask.walk(12, 1)
    old = store.labels(game, rows, everyone, Ask("permutation", ask.values), **settings_)
    before = model.count
    new = store.labels(game, rows, everyone, ask, **settings_)
    asked_again = (old.values != new.values).any(axis=(1, 2))
    counts = (table != 0).sum(axis=1)
    assert set(counts[asked_again]) <= {4, 6}  # of four 14 values are all, of six two pairs fit into 22
    assert model.count - before == sum(1 + 2 * (n - 1) for n in counts if n in (4, 6))
    fresh = LabelStore.open(None, game, 0).labels(game, rows, everyone, ask, **settings_)
    np.testing.assert_allclose(new.values, fresh.values, atol=1e-12)


def test_a_store_knows_what_each_row_has_cost(tmp_path: Path) -> None:
    table = rows_of("mixed", 40, 8)
    _, game = game_of(table)
    rows, everyone = game.rows(table), np.arange(40)
    settings_ = {"views": 0, "seed": 0, "show": False, "title": ""}
    for ask in (Ask("auto", 64), Ask.walk(8, 1), Ask.walk(8, 3)):
        LabelStore.open(tmp_path, game, 0).labels(game, rows, everyone, ask, **settings_)
        store = LabelStore.open(tmp_path, game, 0)
        costs = store.costs(ask, game, rows, everyone)
        spent = cortx.shapley(game, table, ask.estimator, row_budget=ask.values, seed=0).row_evaluations
        np.testing.assert_array_equal(costs, spent)
        most = ask.costs(rows.active.sum(axis=1), game)
        assert (costs <= most).all()
        assert ask.pairs == 3 or (costs == most).all()


# Rows of `shapley` ------------------------------------------------------------------------------------------------


class Flat:
    """An explainer that knows nothing, and asks the model for nothing."""

    def prior(self, rows: Any, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(rows), rows.shape[1], outputs.shape[1])
        return np.zeros(shape), np.ones(shape)


@pytest.mark.parametrize("method", [*ESTIMATORS, "auto", "amortized-unbiased"])
@pytest.mark.parametrize("copies", [0, 3])
@pytest.mark.parametrize("standard_error", [None, 0.01])
def test_no_row_costs_more_than_its_budget(method: str, copies: int, standard_error: float | None) -> None:
    table = np.concatenate([rows_of("mixed", 30, 9), rows_of("sparse", 10, 9)])
    model, game = game_of(table, copies=copies)
    options: dict[str, Any] = {"unbiased": method.endswith("unbiased")} if method.startswith("amortized") else {}
    if method.startswith("amortized"):
        options["explainer"] = Flat()
    each = 512 if method == "exact" else 97
    budget = each * max(1, copies) + copies // 2
    labels = cortx.shapley(
        game, table, method.split("-")[0], row_budget=budget, standard_error=standard_error, views=0, **options
    )
    assert labels.row_evaluations.max() <= budget
    assert labels.row_evaluations.sum() + max(1, copies) == labels.evaluations == model.count


@pytest.mark.parametrize("method", ["kernel", "permutation", "unbiased"])
def test_an_image_that_is_its_own_reference_pays_for_it_within_its_budget(method: str) -> None:
    images = np.random.default_rng(0).random((4, 8, 8)).astype(np.float32)
    game = cortx.Game(lambda some: some.mean(axis=(1, 2)) ** 2, "mean", players=cortx.Patches(2), output="raw")
    _ = game.rows(images), game.base_values
    labels = cortx.shapley(game, images, method, row_budget=64)
    assert labels.row_evaluations.max() <= 64
    assert labels.evaluations == labels.row_evaluations.sum()


@pytest.mark.usefixtures("quick_fits")
def test_the_last_words_of_a_fit_name_its_error(caplog: pytest.LogCaptureFixture) -> None:
    table = rows_of("dense", 200, 4)
    _, game = game_of(table)
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer = explainer_of().fit(game, table, budget=8_000)
    quality = explainer.quality_
    assert quality["relative_l2"] == pytest.approx(quality["l2"] / quality["label_norm"])
    assert f"validation l2 {quality['l2']:.3g}, {100 * quality['relative_l2']:.3g}%" in caplog.messages[-1]
    assert explainer.learning_curve_[-1]["relative_l2"] == quality["relative_l2"]
