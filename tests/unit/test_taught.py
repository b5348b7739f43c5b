"""The student: designs that turn values into Shapley values, what it learns from, and what it is good for."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import replace
from itertools import permutations
from math import ceil, factorial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx.errors import BudgetError, FingerprintError, InputError
from cortx.estimators.free import design_size, fit_interactions, make_design, random_pairs
from cortx.explainer import fit as fit_module
from cortx.explainer import teaching
from cortx.explainer.budget import LEAST_CALIBRATION, LEAST_VALIDATION
from cortx.explainer.game_difference import category_difference
from cortx.explainer.pairs import draw_pairs_of
from cortx.explainer.store import Ask, LabelStore
from cortx.explainer.teaching import made_up
from cortx.games.value_store import ValueStore
from cortx.interfaces.show import show_fit
from cortx.tables import read_table
from cortx.training import student as student_module
from cortx.training.features import FeatureConfig, fit_features
from cortx.training.recipe import Recipe, get_recipe
from cortx.training.student import NetworkStudent, StudentConfig, telling_rows

TINY = StudentConfig(width=32, depth=1, steps=400, batch_size=128, label_rows=600, trees=False)


def taught_recipe(**student: Any) -> Recipe:
    return replace(make_tiny_recipe(steps=250), student=replace(TINY, **student))


def by_orders(v: Any, n: int) -> np.ndarray:
    """Shapley values by their definition: mean marginal contributions over all orders."""
    values = np.zeros(n)
    for order in permutations(range(n)):
        present = np.zeros((1, n), dtype=bool)
        for player in order:
            before = v(present)[0]
            present[0, player] = True
            values[player] += v(present)[0] - before
    return values / factorial(n)


def random_game(n: int, seed: int, interactions: float = 1.0) -> Any:
    generator = np.random.default_rng(seed)
    table, single = generator.normal(size=2**n), generator.normal(size=n)
    table[0] = 0.0
    return lambda c: c @ single + interactions * table[(c * (1 << np.arange(n))).sum(axis=1)]


# Designs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_few_players_are_enumerated(n: int) -> None:
    v = random_game(n, n)
    design = make_design(n, 64, seed=0)
    assert len(design.coalitions) == design_size(n, 64) == 2**n - 1
    np.testing.assert_allclose(design.weights @ v(design.coalitions), by_orders(v, n), atol=1e-12)


@pytest.mark.parametrize("values", [120, 24])  # a regression, and orders
def test_designs_add_up_and_know_single_players(values: int) -> None:
    n = 12
    design = make_design(n, values, seed=3)
    assert len(design.coalitions) == design_size(n, values) <= values + 1
    v = random_game(n, 0)
    total = v(np.ones((1, n), dtype=bool))[0]
    assert (design.weights @ v(design.coalitions)).sum() == pytest.approx(total)
    single = np.arange(n) - 4.0
    np.testing.assert_allclose(design.weights @ (design.coalitions @ single), single, atol=0.01)


@pytest.mark.parametrize("values", [120, 24])
def test_designs_are_right_on_average(values: int) -> None:
    n = 8
    v = random_game(n, 1, 0.3)
    every = make_design(n, 2**n, seed=0)
    truth = every.weights @ v(every.coalitions)
    wide = lambda c: v(c[:, :n])  # noqa: E731  (four more players, who do nothing)
    found = [
        design.weights @ wide(design.coalitions) for design in (make_design(n + 4, values, seed) for seed in range(300))
    ]
    error = np.std(found, axis=0) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0)[:n] - truth), 4.5 * error[:n] + 0.01)


def test_interactions_that_are_known_make_labels_precise() -> None:
    n = 14

    def v(c: np.ndarray) -> np.ndarray:
        return c @ np.linspace(-1, 1, n) + 3 * c[:, 0] * c[:, 1] * c[:, 2] - 2 * c[:, 1] * c[:, 3] * c[:, 2]

    coalitions = random_pairs(n, 6 * n, seed=5)
    believed = fit_interactions(coalitions, ((v(coalitions) - v(~coalitions)) / 2)[None])
    related = believed.related.numpy()
    assert set(np.argsort(-related)[:4]) == {0, 1, 2, 3}
    truth = np.linspace(-1, 1, n)
    truth[[0, 1, 2]] += 1
    truth[[1, 2, 3]] -= 2 / 3
    errors = {}
    for name, prior in (("unknown", None), ("known", believed)):
        design = make_design(n, 160, seed=1, believed=prior)
        errors[name] = np.linalg.norm(design.weights @ v(design.coalitions) - truth)
    assert errors["known"] < 0.1 * errors["unknown"]


def test_interactions_of_nothing() -> None:
    coalitions = random_pairs(9, 20, seed=0)
    believed = fit_interactions(coalitions, np.zeros((3, len(coalitions))))
    design = make_design(9, 100, 0, believed)
    assert np.isfinite(design.weights).all()


# What it learns from ----------------------------------------------------------------------------------------------


def test_pairs_are_different_and_spread_evenly() -> None:
    table = np.random.default_rng(0).normal(size=(200, 6))
    table[:20, 0] = 0.0  # equal to the reference
    table[50] = table[51]
    game = cortx.Game(lambda x: x.sum(axis=1), reference="zero", categorical=())
    rows = game.rows(table)
    index = np.arange(len(rows))
    pairs = draw_pairs_of(rows, index, 3_000, 1, seed=0)
    assert 2_990 < pairs.costs(1).sum() <= 3_000
    masks = pairs.masks(slice(0, len(pairs)), rows.active)
    assert not (masks & ~rows.active[pairs.row][:, None, :]).any()
    assert (masks.sum(axis=(1, 2)) == rows.active[pairs.row].sum(axis=1)).all()
    seen = {(row, *sorted(map(bytes, pair))) for row, pair in zip(pairs.row, masks, strict=True)}
    assert len(seen) == len(pairs)
    assert len({50, 51} & set(pairs.row)) == 1
    size = masks[rows.active[pairs.row].all(axis=1)][:200, 0].sum(axis=1)
    assert np.bincount(size, minlength=7)[1:].min() > 15  # of about 30
    # A larger budget goes on from a smaller one; other places of the same rows change nothing.
    more = draw_pairs_of(rows, index, 5_000, 1, seed=0)
    np.testing.assert_array_equal(more.row[: len(pairs)], pairs.row)
    turned = game.rows(table[::-1])
    again = draw_pairs_of(turned, index[::-1], 3_000, 1, seed=0)
    np.testing.assert_array_equal(turned.words[again.row], rows.words[pairs.row])
    np.testing.assert_array_equal(again.kept, pairs.kept)


def test_pairs_end_where_all_are_there() -> None:
    table = np.random.default_rng(0).normal(size=(9, 3))
    rows = cortx.Game(lambda x: x.sum(axis=1), reference="zero", categorical=()).rows(table)
    pairs = draw_pairs_of(rows, np.arange(9), 10**6, 1, seed=0)
    assert len(pairs) == 9 * 4
    assert pairs.costs(10).sum() == 9 * (3 * 2 * 10 + 1)  # v(all) costs one evaluation


def test_made_up_rows_are_of_known_values() -> None:
    table = np.random.default_rng(0).normal(size=(50, 5))
    game = cortx.Game(lambda x: x.sum(axis=1), reference=np.full(5, 9.0), categorical=(), players={"a": [0, 1]})
    game.rows(table)
    rows = made_up(game, table, 400, np.random.default_rng(1))
    assert rows.shape == (400, 5)
    for j in range(5):
        assert np.isin(rows[:, j], np.append(table[:, j], 9.0)).all()
    first, second = (np.where(rows[:, j] == 9.0, -1, (rows[:, j, None] == table[:, j]).argmax(axis=1)) for j in (0, 1))
    np.testing.assert_array_equal(first, second)  # players stay whole
    assert 0.1 < (rows == 9.0).any(axis=1).mean() < 0.5


# Fits -------------------------------------------------------------------------------------------------------------


N = 12


@pytest.fixture(scope="module")
def fits() -> dict[str, Any]:
    """One game, fitted with a student and without."""
    table = np.random.default_rng(0).normal(size=(400, N)).astype(np.float32)
    model, found = make_model(N), {}
    for name, recipe in (("student", taught_recipe()), ("labels", make_tiny_recipe(steps=250))):
        game = cortx.Game(model, reference=table, output="probability")
        plan = cortx.CoRTX(recipe).plan(game, table, 20_000)
        explainer = cortx.CoRTX(recipe).fit(game, table, budget=20_000, progress=False)
        found[name] = explainer, plan, game, game.evaluations
    fresh = np.random.default_rng(1).normal(size=(60, N)).astype(np.float32)
    found["truth"] = cortx.shapley(cortx.Game(model, reference=table, output="probability"), fresh, "exact", views=0)
    return found


def test_a_student_teaches_more_than_labels(fits: dict[str, Any]) -> None:
    truth = fits["truth"]
    error = {
        name: np.linalg.norm(fits[name][0].explain(truth.data).values - truth.values, axis=1).mean()
        for name in ("student", "labels")
    }
    assert error["student"] < 0.9 * error["labels"]  # both have 250 steps only
    explainer, _, game, _ = fits["student"]
    own = explainer.fitted.student.shapley(game.rows(truth.data))[..., 0]
    assert np.linalg.norm(own - truth.values, axis=1).mean() < 0.75 * error["labels"]


def test_the_plan_is_what_is_spent(fits: dict[str, Any]) -> None:
    explainer, plan, _, evaluations = fits["student"]
    costs = explainer.costs_
    assert plan.mode == "student"
    assert "from which a student learns the game" in str(plan)
    assert repr(plan) == str(plan)  # what a notebook shows
    assert costs["total_evaluations"] == evaluations <= 20_000
    assert costs["total_evaluations"] == pytest.approx(plan.total, rel=0.01)
    assert costs["student"]["evaluations"] == plan.expected["student"]
    assert costs["calibration"]["evaluations"] == pytest.approx(plan.expected["calibration"], rel=0.02)
    assert plan.total + plan.kept_back <= 20_000
    assert costs["pretraining"]["evaluations"] == 0  # positives are chosen by the student
    assert 0 < costs["student"]["unexplained"] < 0.5


@pytest.mark.parametrize("recipe", ["student", "labels"])
def test_the_command_line_shows_what_each_stage_cost(
    fits: dict[str, Any], recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explainer, plan, _, _ = fits[recipe]
    show_fit(explainer, Path("new.cortx"), fits["truth"].data)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Saved to new.cortx." in shown
    if recipe == "student":
        assert f"student {len(plan.train):,} {plan.expected['student']:,}" in shown


def test_bounds_hold(fits: dict[str, Any]) -> None:
    explained = fits["student"][0].explain(fits["truth"].data, confidence=0.9)
    error = np.linalg.norm(explained.values - fits["truth"].values, axis=1)
    assert (error <= explained.error_bound).mean() > 0.75


def test_the_student_is_a_student(fits: dict[str, Any]) -> None:
    explainer, _, game, _ = fits["student"]
    student = explainer.fitted.student
    assert isinstance(student, NetworkStudent)
    rows = game.rows(fits["truth"].data[:5])
    coalitions = np.random.default_rng(0).random((5, 20, N)) < 0.5
    values = student.values(rows, coalitions)
    shared = student.values(rows, coalitions[0])
    np.testing.assert_allclose(values[0], shared[0], atol=1e-6)
    np.testing.assert_allclose(
        student.values(rows, np.zeros((1, N), dtype=bool))[:, 0], game.base_values[None].repeat(5, 0), atol=1e-7
    )  # to the rounding of float32
    network = student.network
    codes = torch.from_numpy(rows.table.matrix)
    plain = network(network.features(codes), torch.from_numpy(coalitions[:, 3])) * network.scale
    np.testing.assert_allclose(plain.numpy() + game.base_values, values[:, 3], atol=1e-6)
    every = make_design(N, 2**N, seed=0)
    own = student.values(rows, every.coalitions)[..., 0] - game.base_values
    np.testing.assert_allclose(student.shapley(rows)[..., 0], own @ every.weights.T, atol=1e-6)
    some = student.shapley(rows)
    np.testing.assert_allclose(student.shapley(rows.take(np.array([4, 1])))[::-1], some[[1, 4]], atol=1e-7)


def test_it_is_saved_with_the_explainer(fits: dict[str, Any], tmp_path: Path) -> None:
    explainer, _, game, _ = fits["student"]
    explainer.save(tmp_path / "x")
    again = cortx.load(tmp_path / "x", model=game.model)
    rows = game.rows(fits["truth"].data[:5])
    coalitions = np.random.default_rng(0).random((5, 6, N)) < 0.5
    np.testing.assert_array_equal(
        again.fitted.student.values(rows, coalitions), explainer.fitted.student.values(rows, coalitions)
    )
    np.testing.assert_array_equal(again.fitted.student.shapley(rows), explainer.fitted.student.shapley(rows))
    assert again.fitted.recipe.student == explainer.fitted.recipe.student


def test_the_same_seed_gives_the_same_explainer(fits: dict[str, Any]) -> None:
    explainer = fits["student"][0]
    table = np.random.default_rng(0).normal(size=(400, N)).astype(np.float32)
    fresh = cortx.Game(make_model(N), reference=table, output="probability", memory_budget=2**20)
    again = cortx.CoRTX(taught_recipe()).fit(fresh, table, budget=20_000, progress=False)
    data = fits["truth"].data
    np.testing.assert_allclose(again.explain(data).values, explainer.explain(data).values, atol=1e-6)
    # What this explainer has paid for is not asked for again, but for checks; a larger budget goes on from there.
    asked = fresh.evaluations
    again.fit(fresh, table, budget=20_000, progress=False)
    assert fresh.evaluations - asked < 150
    assert again.costs_["total_evaluations"] == pytest.approx(explainer.costs_["total_evaluations"], rel=0.02)


def test_a_folder_keeps_values(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    model, calls = make_model(), []

    def counted(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        if sum(calls) > 3_000 and failing:
            raise RuntimeError("out of service")
        with torch.no_grad():
            return torch.sigmoid(model(torch.from_numpy(x).float())).numpy()[:, 0]

    failing = True
    recipe = taught_recipe(steps=60)
    with pytest.raises(cortx.errors.ModelError, match="kept"):
        cortx.CoRTX(recipe).fit(cortx.Game(counted, reference=table), table, budget=6_000, checkpoint=tmp_path)
    failing, before = False, sum(calls)
    game = cortx.Game(counted, reference=table)
    explainer = cortx.CoRTX(recipe).fit(game, table, budget=6_000, checkpoint=tmp_path)
    assert explainer.costs_["total_evaluations"] <= 6_000
    assert sum(calls) - before < 6_000 - 2_000


WORTH = {"clerk": 0.0, "nurse": 1.0, "pilot": -2.0, "cook": 3.0}


def people(seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    return pd.DataFrame({"job": generator.choice(list(WORTH), 260), "age": generator.normal(size=260)})


def pay(frame: pd.DataFrame) -> np.ndarray:
    return np.array([WORTH.get(job, 0.0) for job in frame["job"]]) * (1 + 0.3 * frame["age"].to_numpy())


def pay_game(job: str = "clerk", model: Any = pay) -> cortx.Game:
    return cortx.Game(model, reference=pd.DataFrame({"job": [job], "age": [0.0]}))


def students_of(game: cortx.Game, table: Any) -> dict[str, Any]:
    """A network that learned the game in a fit, and boosted trees that learned from the same table."""
    explainer = cortx.CoRTX(taught_recipe(), unseen="ignore").fit(game, table, budget=1_000, progress=False)
    rows = game.rows(table)
    lesson = teaching._Lesson(
        game, rows, draw_pairs_of(rows, np.arange(200), 300, 1, 0), ValueStore.open(None, game),
        explainer.fitted.network.features, TINY, 0, "cpu", False,
    )  # fmt: skip
    lesson.buy(len(lesson.pairs))
    trees = lesson.grow(len(lesson.pairs), 20, len(lesson.pairs)).student
    return {"explainer": explainer, "network": explainer.fitted.student, "trees": trees}


@pytest.fixture(scope="module")
def payers() -> dict[str, Any]:
    return students_of(pay_game(), people(4))


@pytest.mark.parametrize("kind", ["network", "trees"])
def test_a_student_knows_categories_in_any_order(kind: str, payers: dict[str, Any]) -> None:
    """A reference of one row knows one category, so each table that the game reads has codes of its own."""
    table, game, student, everyone = people(4), pay_game(), payers[kind], np.ones((1, 2), dtype=bool)
    order = np.argsort(-table["job"].map(WORTH).to_numpy(), kind="stable")  # cooks come first
    rows, turned = game.rows(table), game.rows(table.iloc[order])
    assert (turned.table.matrix[:, 0] != rows.table.matrix[order, 0]).any()
    for found, known in (
        (student.values(turned, everyone), student.values(rows, everyone)[order]),
        (student.shapley(turned), student.shapley(rows)[order]),
    ):
        np.testing.assert_allclose(found, known, atol=1e-5)
    strangers = pd.DataFrame({"job": ["diver", "cook"], "age": [0.5, 0.5]})
    assert np.isfinite(student.shapley(game.rows(strangers))).all()


@pytest.mark.parametrize("kind", ["network", "trees"])
def test_a_student_of_another_reference_costs_precision_and_never_truth(kind: str, payers: dict[str, Any]) -> None:
    table, game, student = people(4)[:60], pay_game("nurse"), payers[kind]
    truth = cortx.shapley(game, table, "exact", views=0).values
    rows = game.rows(table)
    alone = np.eye(2, dtype=bool)
    first = student.values(rows, alone) - student.values(rows, np.zeros((1, 2), dtype=bool))
    last = student.values(rows, np.ones((1, 2), dtype=bool)) - student.values(rows, alone[::-1])
    np.testing.assert_allclose(student.shapley(rows), (first + last) / 2, atol=1e-5)  # two players: by definition
    labels = cortx.shapley(game, table, "unbiased", row_budget=5, student=student, views=0)
    np.testing.assert_allclose(labels.values, truth, atol=1e-6)  # all coalitions are asked for
    notes = payers["explainer"].evaluate(table, game=game, rows=40).notes
    assert any("this game is not the one" in note and "the reference: 'job' was" in note for note in notes)


def test_a_refit_reads_categories_as_the_fit_did(payers: dict[str, Any]) -> None:
    """Tables of the same categories come in any order, and may lack one of them."""
    explainer = deepcopy(payers["explainer"])
    known = explainer.fitted.spec.schema.columns[0].values
    table = people(9)
    table = table[table["job"] != "pilot"].reset_index(drop=True)
    game = pay_game(model=lambda frame: 2 * pay(frame))
    explainer.refit(game, table, budget=700)
    assert explainer.fitted.spec.schema.columns[0].values == known
    truth = cortx.shapley(game, table[:40], "exact", views=0).values
    assert np.linalg.norm(explainer.explain(table[:40]).values - truth, axis=1).mean() < 0.3 * np.abs(truth).mean()
    with pytest.raises(InputError, match="with 'diver'"):
        payers["explainer"].refit(pay_game(), table.assign(job="diver"))
    for reference in (table.assign(job="diver"), pd.concat([table, table.iloc[:1].assign(job="diver")])):
        new = cortx.Game(pay, reference=reference.reset_index(drop=True))
        with pytest.raises(InputError, match="with 'diver'"):
            payers["explainer"].refit(new, table.assign(job="diver"))
    turned = cortx.Game(pay, reference=pd.DataFrame({"age": [0.0], "job": ["clerk"]}))
    with pytest.raises(InputError, match="the order of columns"):
        payers["explainer"].refit(turned, table[["age", "job"]])


@pytest.mark.parametrize("kind", ["background", "groups", "classes", "missing"])
def test_any_game(kind: str) -> None:
    generator = np.random.default_rng(2)
    table = generator.normal(size=(260, 6))
    settings: dict[str, Any] = {"reference": table, "categorical": ()}
    if kind == "background":
        settings = {"background": table[:4], "categorical": ()}
    if kind == "groups":
        settings["players"] = {"pair": [0, 3]}
    if kind == "missing":
        table[generator.random(table.shape) < 0.1] = np.nan
        settings["reference"] = np.zeros(6)

    def model(x: np.ndarray) -> np.ndarray:
        x = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.7)
        first = np.tanh(x[:, 0] * x[:, 1]) + x[:, 2]
        return np.stack([first, x[:, 3] - x[:, 4] ** 2], axis=1) if kind == "classes" else first + x[:, 3] * x[:, 5]

    game = cortx.Game(model, **settings)
    budget = 30_000 if kind == "background" else 6_000
    explainer = cortx.CoRTX(taught_recipe()).fit(game, table, budget=budget, progress=False)
    assert game.evaluations <= budget
    exact = cortx.shapley(game, table[:40], "exact", views=0)
    error = np.linalg.norm(explainer.explain(table[:40]).values - exact.values, axis=1)
    assert error.mean() < 0.35 * np.linalg.norm(exact.values, axis=1).mean()
    rows = game.rows(table[:3])
    np.testing.assert_allclose(
        explainer.fitted.student.values(rows, np.zeros((1, game.n_players), dtype=bool))[:, 0],
        np.repeat(game.base_values[None], 3, axis=0), atol=1e-5,
    )  # fmt: skip


def test_a_poor_student_teaches_all_the_same_and_the_log_says_how_poor(caplog: pytest.LogCaptureFixture) -> None:
    """A model that no network learns: what labels from the model teach of it is worse than an even share."""
    table = np.random.default_rng(0).normal(size=(400, 6))

    def noise(x: np.ndarray) -> np.ndarray:
        return np.sin(1e6 * (np.asarray(x) * np.arange(1, 7)).sum(axis=1))

    game = cortx.Game(noise, reference="zero", categorical=())
    with caplog.at_level(logging.WARNING, "cortx"):
        explainer = cortx.CoRTX(taught_recipe(steps=200)).fit(game, table[:300], budget=10_000, progress=False)
    assert game.evaluations <= 10_000
    unexplained = explainer.costs_["student"]["unexplained"]
    assert unexplained > 0.5
    assert f"values that it never saw with a relative error of {100 * unexplained:.0f}%" in caplog.text
    assert explainer.costs_["total_evaluations"] == game.evaluations
    truth = cortx.shapley(game, table[300:], "exact", views=0).values
    shown = explainer.explain(table[300:], confidence=0.9)
    even = np.repeat(truth.mean(axis=1, keepdims=True), 6, axis=1)
    error, of_even = (np.linalg.norm(truth - values, axis=1) for values in (shown.values, even))
    assert error.mean() < 1.2 * of_even.mean()
    assert (error <= shown.error_bound).mean() > 0.8


def test_more_values_that_do_not_help_are_not_bought(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(teaching, "ROUNDS_FROM", 500)
    table = np.random.default_rng(0).normal(size=(2_000, 5))
    monkeypatch.setattr(teaching, "SETTLED", 0.1)
    game = cortx.Game(lambda x: x @ np.arange(5.0), reference="zero", categorical=())
    with caplog.at_level(logging.INFO, "cortx"):
        cortx.CoRTX(taught_recipe(steps=1_600)).fit(game, table, budget=40_000, progress=False)
    assert "more hardly help" in caplog.text
    assert game.evaluations < 30_000


def test_budgets_that_are_too_small(table: np.ndarray, game: cortx.Game) -> None:
    with pytest.raises(BudgetError, match=r"give at least"):
        cortx.CoRTX("default").plan(game, table, 1_000)
    with pytest.raises(InputError, match="width must be a whole number of at least 1, got 0"):
        StudentConfig(width=0)


def test_recipes() -> None:
    for name in ("default", "quick"):
        recipe = get_recipe(name)  # type: ignore[arg-type]
        assert recipe.student is not None
        assert Recipe.from_json(recipe.to_json()) == recipe
    old = get_recipe("paper").to_json()
    assert old.pop("student") is None
    assert Recipe.from_json(old).student is None


@pytest.mark.parametrize("constant", [0.0, 3.0, 1e6])
def test_constant_models(constant: float) -> None:
    table = np.random.default_rng(0).normal(size=(200, 6))
    game = cortx.Game(lambda x: np.stack([np.full(len(x), constant), x[:, 0]], axis=1), reference=table, categorical=())
    explainer = cortx.CoRTX(taught_recipe(steps=60)).fit(game, table, budget=6_000, progress=False)
    assert np.abs(explainer.explain(table[:5]).values[..., 0]).max() <= 1e-6 * max(1.0, constant)


def test_labels_of_zero_have_no_relative_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = np.random.default_rng(0).normal(size=(200, 6))
    game = cortx.Game(lambda x: np.full(len(x), 3.0), reference=table, categorical=())
    with caplog.at_level("INFO", logger="cortx"):
        explainer = cortx.CoRTX(taught_recipe(steps=60)).fit(game, table, budget=6_000, progress=False)
    assert explainer.quality_["label_norm"] == 0
    explainer.save(tmp_path / "constant.cortx")
    for one in (explainer, cortx.load(tmp_path / "constant.cortx")):
        assert np.isnan(one.quality_["relative_l2"])
        assert np.isnan(one.learning_curve_[-1]["relative_l2"])
    assert "the labels are zero" in caplog.messages[-1]
    report = explainer.evaluate(table[:20])
    assert report.to_json()["relative_l2"] is None


@pytest.mark.parametrize("shape", [(250, 1), (150, 2), (103, 3)])
def test_small_games_need_no_student(shape: tuple[int, int]) -> None:
    """There are fewer pairs than a student learns from, whatever the budget: labels come from the model."""
    table = np.random.default_rng(0).normal(size=shape)
    game = cortx.Game(lambda x: x.sum(axis=1) + x[:, 0] * x[:, -1], reference="zero", categorical=())
    explainer = cortx.CoRTX(taught_recipe(steps=60)).fit(game, table, budget=20_000, progress=False)
    assert explainer.fitted.student is None
    assert explainer.fitted.calibration is not None


def test_rows_that_teach_nothing(game: cortx.Game) -> None:
    """Few different rows, or all equal to the reference: as without a student."""
    table = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    repeated = np.repeat(table, 60, axis=0)
    assert cortx.CoRTX(taught_recipe()).plan(game, repeated, 20_000).mode != "student"


def test_rows_near_the_reference_are_refined(fits: dict[str, Any]) -> None:
    explainer, _, game, _ = fits["student"]
    near = np.asarray(fits["truth"].data[:10], dtype=np.float64) * 1e-6 + game.absent
    for row in near.astype(np.float32):
        shown = explainer.explain(row[None], confidence=0.9, tolerance=1e-12, row_budget=100)
        assert np.isfinite(shown.values).all()


def test_a_larger_budget_does_not_resume_the_training_of_a_smaller_one(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    for budget in (8_000, 11_000):
        game = cortx.Game(make_model(), reference=table, output="probability")
        cortx.CoRTX(taught_recipe(steps=40)).fit(game, table, budget=budget, checkpoint=tmp_path, progress=False)
    whole = cortx.CoRTX(taught_recipe(steps=40)).fit(
        cortx.Game(make_model(), reference=table, output="probability"), table, budget=11_000, progress=False
    )
    again = cortx.CoRTX(taught_recipe(steps=40)).fit(
        cortx.Game(make_model(), reference=table, output="probability"), table, budget=11_000, checkpoint=tmp_path,
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(again.explain(table[:9]).values, whole.explain(table[:9]).values, atol=1e-6)
    assert again.fitted.calibration.mean_l2 == pytest.approx(whole.fitted.calibration.mean_l2, rel=1e-5)


# Refits -----------------------------------------------------------------------------------------------------------


def test_a_refit_starts_from_what_is_known() -> None:
    """The model was trained a little further: few values teach more than they do to a beginner."""
    table = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    models = make_model(8), make_model(8)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in models[1].parameters():
            parameter.mul_(1 + 0.02 * torch.randn(parameter.shape, generator=generator))
    before, now = (cortx.Game(model, reference=table, output="probability") for model in models)
    recipe = taught_recipe(width=64, steps=2_000)  # values, not steps, are the limit
    explainer = cortx.CoRTX(recipe).fit(before, table, budget=20_000, progress=False)
    explainer.refit(now, table, budget=6_000, progress=False)
    assert now.evaluations == explainer.costs_["total_evaluations"] <= 6_000
    assert explainer.game is now
    assert explainer.fitted.recipe == recipe
    again = cortx.Game(models[1], reference=table, output="probability")
    beginner = cortx.CoRTX(recipe).fit(again, table, budget=6_000, progress=False)
    missed = [one.costs_["student"]["unexplained"] for one in (explainer, beginner)]
    assert missed[0] < 0.7 * missed[1]
    fresh = np.random.default_rng(1).normal(size=(60, 8)).astype(np.float32)
    truth = cortx.shapley(again, fresh, "exact", views=0).values
    shown = explainer.explain(fresh, confidence=0.9)
    assert (np.linalg.norm(shown.values - truth, axis=1) <= shown.error_bound).mean() > 0.75


def test_functions_with_kinks_are_learned_by_a_network_with_sharp_bends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where much is missed both kinds are trained, and values that neither saw choose."""
    monkeypatch.setattr(teaching, "ROUGH", 0.0)
    generator = np.random.default_rng(8)
    table, weights = generator.normal(size=(400, 5)), generator.normal(size=(5, 12))

    def kinks(x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ weights, 0) @ np.where(np.arange(12) % 2, 1.0, -1.0)

    def smooth(x: np.ndarray) -> np.ndarray:
        return np.sin(x[:, 0] + x[:, 1]) + x[:, 2] * np.tanh(x[:, 3] + x[:, 4])

    for model, sharp in ((smooth, False), (kinks, True)):
        with caplog.at_level(logging.INFO, logger="cortx"):
            explainer = cortx.CoRTX(taught_recipe(steps=1_500)).fit(
                cortx.Game(model, reference=table, categorical=()), table, budget=8_000, progress=False
            )
        student = explainer.fitted.student
        assert isinstance(student, NetworkStudent)
        assert student.network.config.sharp == sharp
    assert "a network with sharp bends has a relative error of" in caplog.text
    explainer.save(tmp_path / "kinks.cortx")
    again = cortx.load(tmp_path / "kinks.cortx", kinks)
    np.testing.assert_array_equal(again.explain(table[:9]).values, explainer.explain(table[:9]).values)
    rows = again.game.rows(table[:9])
    np.testing.assert_array_equal(again.fitted.student.shapley(rows), student.shapley(rows))
    again.refit(cortx.Game(lambda x: 2 * kinks(x), reference=table, categorical=()), table, budget=3_000)
    assert again.fitted.student.network.config.sharp


def test_a_refit_is_of_the_same_game(fits: dict[str, Any]) -> None:
    table = np.random.default_rng(0).normal(size=(400, N)).astype(np.float32)
    explainer, game = fits["student"][0], fits["student"][2]
    with pytest.raises(InputError, match="differs in the columns"):
        explainer.refit(cortx.Game(make_model(N + 1), reference="zero", output="probability"), np.ones((300, N + 1)))
    with pytest.raises(InputError, match="call fit"):
        explainer.refit(cortx.Game(make_model(N), reference=table, output="raw"), table)
    with pytest.raises(InputError, match="student"):
        fits["labels"][0].refit(game, table)


def test_a_model_that_was_trained_again_is_for_refit(fits: dict[str, Any], tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(400, N)).astype(np.float32)
    model = make_model(N, seed=1)
    now = cortx.Game(model, reference=table, output="probability")
    for name, words in (("student", r"refit\(game, X\)"), ("labels", "fit again")):
        explainer = fits[name][0]
        explainer.save(tmp_path / name)
        with pytest.raises(FingerprintError, match=words):
            cortx.load(tmp_path / name, model)
        report = explainer.evaluate(table[:20], game=now, rows=5, row_budget=50)
        assert ("refit(game, X)" in str(report)) == (name == "student")


def test_a_refit_names_the_categories_that_differ() -> None:
    before, after = (
        read_table(pd.DataFrame({"job": jobs, "age": [1.0, 2.0, 3.0]})).schema
        for jobs in (["clerk", "nurse", "clerk"], ["pilot", "nurse", "nurse"])
    )
    assert category_difference(before, before) is None
    found = category_difference(before, after)
    assert found == "the categories of 'job': they are now without 'clerk' and with 'pilot'"


def test_a_refit_refuses_what_it_cannot_go_on_from() -> None:
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    game = cortx.Game(make_model(), reference=table, output="probability")
    explainer = cortx.CoRTX(taught_recipe()).fit(game, table, budget=8_000, progress=False)
    other = cortx.Game(make_model(), background=table[:5], output="probability")
    with pytest.raises(InputError, match="one reference or a background"):
        explainer.refit(other, table, budget=8_000, progress=False)
    explainer.heads = ("attribution", "ranking")
    with pytest.raises(InputError, match="set anew"):
        explainer.refit(game, table, budget=8_000, progress=False)


def test_a_poor_student_learns_from_all_values(caplog: pytest.LogCaptureFixture) -> None:
    """Noise cannot be learned; it costs what was planned, and no more."""
    n = 60
    table = np.random.default_rng(0).normal(size=(300, n))
    weights = np.random.default_rng(1).normal(size=n) * 1e4
    game = cortx.Game(lambda x: np.sin(x @ weights), reference=np.zeros(n))
    with caplog.at_level(logging.WARNING, logger="cortx"):
        explainer = cortx.CoRTX(taught_recipe(steps=40)).fit(game, table, budget=12_000, progress=False)
    assert "a larger budget or recipe may help" in caplog.text
    assert "from the beginning" not in caplog.text
    costs = explainer.costs_["student"]
    assert costs["unexplained"] > 0.5
    assert explainer.costs_["total_evaluations"] > 0.95 * 12_000


def test_a_student_of_a_single_row_is_said_to_be_one(caplog: pytest.LogCaptureFixture) -> None:
    """Rows that equal one that judges teach nothing, so that nothing is left to learn from but one row."""
    table = np.random.default_rng(0).normal(size=(120, 10))
    game = cortx.Game(lambda x: np.sin(np.asarray(x).sum(axis=1)), reference="zero", categorical=())
    explainer = cortx.CoRTX(taught_recipe(steps=20))
    alone = explainer.plan(game, table, 8_000).train[0]
    equal = np.tile(table[alone - 1], (120, 1))
    equal[alone] = table[alone]
    with caplog.at_level(logging.INFO, "cortx"):
        explainer.fit(game, equal, budget=8_000, progress=False)
    assert "nothing says how good the student is" in caplog.text
    assert "inf" not in caplog.text.replace("INFO", "")


def test_a_single_player_leaves_no_doubt() -> None:
    table = np.random.default_rng(3).normal(size=(300, 1))
    game = cortx.Game(lambda x: np.sin(x[:, 0]), reference=np.zeros(1))
    explainer = cortx.CoRTX(taught_recipe()).fit(game, table, budget=6_000, progress=False)
    shown = explainer.explain(table[:5], confidence=0.9)
    np.testing.assert_allclose(shown.values[:, 0], np.sin(table[:5, 0]), atol=1e-6)
    np.testing.assert_allclose(shown.error_bound, 0.0, atol=1e-12)


def test_a_refit_whose_student_is_poor_names_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    """A model that has nothing to do with the earlier one may need more than half of the training."""
    table = np.random.default_rng(0).normal(size=(300, 6))
    noise = np.random.default_rng(1).normal(size=6) * 1e6
    recipe = taught_recipe(steps=60)
    recipe = replace(recipe, attribution=replace(recipe.attribution, steps=20))
    known, other = (
        cortx.Game(model, reference="zero", categorical=())
        for model in (lambda x: x @ np.arange(6.0), lambda x: np.sin(x @ noise))
    )
    explainer = cortx.CoRTX(recipe).fit(known, table, budget=8_000, progress=False)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    with caplog.at_level(logging.WARNING, "cortx"):
        explainer.refit(other, table, budget=8_000, progress=False)
    assert "or a fit from the beginning" in caplog.text


def test_a_refit_goes_on_from_its_own_beginning_only() -> None:
    """What a killed refit has kept belongs to the explainer that it started from."""
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    game = cortx.Game(make_model(), reference=table, output="probability")
    explainer = cortx.CoRTX(taught_recipe(steps=40)).fit(game, table, budget=8_000, progress=False)
    rows, request = (
        game.rows(table),
        fit_module.Request(taught_recipe(), ("attribution",), None, None, 0, "cpu", None, None),
    )
    keys = {fit_module._key(game, rows, None, None, request)}
    for number in range(2):
        start = replace(explainer.fitted, network=deepcopy(explainer.fitted.network))
        with torch.no_grad():
            next(start.network.encoder.parameters()).add_(number)
        keys.add(fit_module._key(game, rows, None, None, replace(request, start=start)))
    assert len(keys) == 3


def test_a_fit_that_ends_while_it_trains_pays_for_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    recipe = replace(make_tiny_recipe(steps=20), student=replace(TINY, steps=250, label_rows=200))

    def fit(game: cortx.Game) -> cortx.CoRTX:
        return cortx.CoRTX(recipe).fit(game, table, budget=8_000, checkpoint=tmp_path, progress=False)

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    before, after = (cortx.Game(make_model(), reference=table, output="probability") for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "learn", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(before)
    explainer = fit(after)
    assert explainer.fitted.student is not None
    # What recognises the model is asked for again: its base value, kept values, and probe rows at the end.
    assert before.evaluations + after.evaluations <= explainer.costs_["total_evaluations"] + 1
    assert explainer.costs_["total_evaluations"] <= 8_000
    assert after.evaluations < explainer.costs_["calibration"]["evaluations"]


# Memory -----------------------------------------------------------------------------------------------------------


def test_only_rows_with_values_are_encoded_and_none_at_once_where_they_are_many(
    table: np.ndarray, game: cortx.Game, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = game.rows(table)
    pairs = draw_pairs_of(rows, np.arange(3, len(rows), 4), 300, 1, 0)
    features = fit_features(rows.table.matrix, rows.table.schema.columns, game.absent, FeatureConfig())
    found = {}
    for name, limit in (("whole", 2**28), ("parts", 0)):
        monkeypatch.setattr(student_module, "INPUT_BYTES", limit)
        lesson = teaching._Lesson(
            game, rows, pairs, ValueStore.open(None, game), features, TINY, 0, "cpu", show=False, start=None
        )
        np.testing.assert_array_equal(lesson.codes.numpy(), rows.table.matrix[np.unique(pairs.row)])
        np.testing.assert_array_equal(lesson.codes.numpy()[lesson.place], rows.table.matrix[pairs.row])
        found[name] = lesson.train(len(pairs), 5).teacher.values(rows, ~np.eye(game.n_players, dtype=bool))
    np.testing.assert_array_equal(found["whole"], found["parts"])


def test_labels_that_are_forgotten_leave_memory(table: np.ndarray, game: cortx.Game) -> None:
    store, rows = LabelStore.open(None, game, 0), game.rows(table)
    asks = Ask("kernel", 20), Ask("kernel", 30)

    def label(ask: Ask, index: np.ndarray) -> np.ndarray:
        return store.labels(game, rows, index, ask, views=0, seed=0, show=False, title="").values

    label(asks[0], np.arange(5))
    kept = label(asks[1], np.arange(3))
    store.forget(asks[0])
    assert len(store) == 3
    label(asks[0], np.arange(2))
    spent = game.evaluations
    np.testing.assert_array_equal(label(asks[1], np.arange(3)), kept)
    assert game.evaluations == spent
    assert len(store) == 5


@pytest.mark.parametrize("budget", [6_000, 8_000, 20_000, 60_000])
def test_enough_rows_calibrate(budget: int) -> None:
    table = np.random.default_rng(0).normal(size=(600, 8))
    game = cortx.Game(lambda x: x[:, 0] * x[:, 1], reference=table, categorical=())
    plan = cortx.CoRTX("default").plan(game, table, budget)
    assert plan.mode == "student"
    assert len(plan.calibration) >= LEAST_CALIBRATION
    assert len(plan.validation) >= LEAST_VALIDATION
    assert plan.total <= budget


@pytest.mark.parametrize("budget", [20_000, 60_000, 65_000, 100_000, 700_000])
def test_so_many_rows_calibrate_that_bounds_promise_little_more_than_asked_for(budget: int) -> None:
    table = np.random.default_rng(0).normal(size=(3_000, 13))
    game = cortx.Game(lambda x: x[:, 0] * x[:, 1], reference=table, categorical=())
    plan = cortx.CoRTX("default").plan(game, table, budget)
    count = len(plan.calibration) + 1
    assert ceil(0.9 * count - 1e-9) / count <= 0.903
    assert 2 <= len(plan.calibration) / len(plan.validation) <= 6


def test_interactions_of_a_rare_player_are_those_of_the_rows_that_have_it() -> None:
    """Rows in which a player equals its reference say nothing of it."""
    n, rng = 11, np.random.default_rng(0)
    coalitions = random_pairs(n, 6 * n, seed=5)
    active = np.ones((40, n), dtype=bool)
    active[3:, -1] = False
    weights = rng.normal(size=(40, n))

    def v(row: int, c: np.ndarray) -> np.ndarray:
        c = c & active[row]
        return (c @ weights[row] + c[:, 0] * c[:, 1]) * (1 + 2 * c[:, -1])

    odd = np.stack([(v(row, coalitions) - v(row, ~coalitions)) / 2 for row in range(len(active))])
    design_values = {}
    for name, told in (("known", active), ("unknown", None)):
        design = make_design(n, 160, seed=1, believed=fit_interactions(coalitions, odd, told))
        truth = by_every_coalition(lambda c: v(0, c), n)
        design_values[name] = np.linalg.norm(design.weights @ v(0, design.coalitions) - truth) / np.linalg.norm(truth)
    assert design_values["known"] < 0.01
    assert design_values["known"] < 0.4 * design_values["unknown"]


def by_every_coalition(v: Any, n: int) -> np.ndarray:
    """Shapley values by the definition."""
    found = np.zeros(n)
    for code in range(2**n):
        coalition = np.array([code >> i & 1 for i in range(n)], dtype=bool)
        size = int(coalition.sum())
        for i in np.flatnonzero(~coalition):
            joined = coalition.copy()
            joined[i] = True
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            found[i] += weight * float(np.diff(v(np.stack([coalition, joined])))[0])
    return found


def test_rows_that_tell_of_interactions_show_rare_players() -> None:
    rng = np.random.default_rng(0)
    active = rng.random((2_000, 30)) < 0.5
    active[:, 7] = np.arange(2_000) % 500 == 0  # 4 rows
    active[:, 8] = False
    chosen = telling_rows(active, most_patterns=1_000)
    shown = active[chosen].sum(axis=0)
    assert (shown[7], shown[8]) == (4, 0)
    assert np.delete(shown, [7, 8]).min() >= 6
    assert len(np.unique(chosen)) == len(chosen) == 48
    assert len(telling_rows(active, most_patterns=10)) == 10
    assert len(telling_rows(np.ones((500, 3), dtype=bool), most_patterns=1)) == 48


def test_held_out_rows_in_which_nothing_happens_say_nothing() -> None:
    """A rule that fires for six rows of 900: a student that is wrong everywhere must not be called perfect."""
    table = np.random.default_rng(0).normal(size=(900, 3))
    fires = np.argsort(-table[:, 0])[:6]

    def game_of(most: float) -> cortx.Game:
        return cortx.Game(lambda x: np.where(x[:, 0] > most, 1.0, 0.0), reference=np.zeros((1, 3)), categorical=())

    for threshold, expected in ((float(table[fires[-1], 0]) - 1e-9, np.inf), (99.0, 0.0)):
        game = game_of(threshold)
        rows = game.rows(table)
        pairs = draw_pairs_of(rows, np.arange(900), 2_000, 1, 0)
        features = fit_features(rows.table.matrix, rows.table.schema.columns, game.absent, FeatureConfig())
        store = ValueStore.open(None, game)
        lesson = teaching._Lesson(game, rows, pairs, store, features, TINY, seed=0, device="cpu", show=False)
        lesson.buy(len(pairs))
        lesson.held_out[:] = ~np.isin(pairs.row, fires)
        wrong = OfNumbers(np.linspace(0.0, 7.0, 3))
        assert lesson._unexplained(wrong, len(pairs)) == expected


class OfNumbers:
    """A student that answers nonsense."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def values(self, rows: Any, coalitions: np.ndarray) -> np.ndarray:
        return (coalitions @ self.numbers)[..., None]


def test_a_refit_uses_no_value_of_the_model_before() -> None:
    """A model that was trained again and differs on a few rows only: 32 values would not tell."""
    table = np.random.default_rng(1).normal(size=(500, 4)).astype(np.float64)

    def before(rows: np.ndarray) -> np.ndarray:
        return rows[:, 0] * rows[:, 1] + rows[:, 2]

    asked: list[int] = []

    def after(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return before(rows) + 3.0 * (rows[:, 3] > 2.5)

    explainer = cortx.CoRTX(taught_recipe(steps=200), seed=0)
    none = np.zeros((1, 4))
    explainer.fit(cortx.Game(before, reference=none, categorical=()), table, budget=8_000, progress=False)
    explainer.refit(cortx.Game(after, reference=none, categorical=()), table, budget=8_000, progress=False)
    assert sum(asked) == explainer.costs_["total_evaluations"]  # nothing was known before
