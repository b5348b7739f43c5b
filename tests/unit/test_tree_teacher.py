"""Fits to games of trees: exact labels from the leaves, steps as inputs, and evaluations for checks alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from tests.conftest import make_tiny_recipe

import cortx
from cortx import portable
from cortx.errors import BudgetError
from cortx.estimators.tree import TreeValues, output_work
from cortx.explainer.learn import _pretrained_rows
from cortx.games.tree_readers import read_sklearn_histogram
from cortx.training import tree_teacher
from cortx.training.features import FeatureConfig, fit_features, forest_steps
from cortx.training.pretrain import PretrainConfig
from cortx.training.recipe import Recipe
from cortx.training.student import StudentConfig

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6))
X[:, 5] = RNG.integers(0, 4, len(X))
Y = np.where(X[:, 0] > 0.3, X[:, 1], -0.5) + (X[:, 2] > -0.2) + 0.5 * (X[:, 5] == 2)
FRESH = np.concatenate([np.random.default_rng(1).normal(size=(80, 5)), X[:80, 5:]], axis=1)
Y_DEEP = np.random.default_rng(2).normal(size=1_000)
MODEL = HistGradientBoostingRegressor(max_iter=15, max_leaf_nodes=6, random_state=0).fit(X, Y)


def recipe(label_rows: int = 3_000, steps: int = 300) -> Recipe:
    student = StudentConfig(width=32, depth=1, steps=200, batch_size=128, label_rows=label_rows)
    return replace(make_tiny_recipe(steps=steps), student=student)


def relative(explainer: cortx.CoRTX, game: cortx.Game, rows: Any = FRESH) -> float:
    exact = cortx.shapley(game, rows, "tree").values
    errors = np.linalg.norm(explainer.explain(rows).values - exact, axis=1)
    return float(errors.mean() / np.linalg.norm(exact, axis=1).mean())


@pytest.fixture(scope="module")
def fitted() -> tuple[cortx.CoRTX, cortx.Game, Any, int]:
    game = cortx.Game(MODEL, reference=X, categorical=())
    plan = cortx.CoRTX(recipe()).plan(game, X, 20_000)
    explainer = cortx.CoRTX(recipe()).fit(game, X, budget=20_000, progress=False)
    return explainer, game, plan, game.evaluations


def test_only_checks_are_paid_for(fitted: tuple[cortx.CoRTX, cortx.Game, Any, int]) -> None:
    explainer, game, plan, evaluations = fitted
    assert plan.mode == "trees"
    assert "from the model's trees" in str(plan)
    assert "not needed" in str(plan)
    costs = explainer.costs_
    assert costs["total_evaluations"] == evaluations == plan.total == costs["checks"]["evaluations"]
    assert 0 < evaluations < 100
    assert costs["labels to learn from"]["rows"] >= 3_000
    assert explainer.fitted.student is None
    # The labels that judge are exact, so quality is the true error.
    assert explainer.quality_["relative_l2"] == pytest.approx(relative(explainer, game), rel=0.5)
    assert relative(explainer, game) < 0.3


def test_bounds_hold_and_what_is_too_wide_becomes_exact(fitted: tuple[cortx.CoRTX, cortx.Game, Any, int]) -> None:
    explainer, game, _, _ = fitted
    exact = cortx.shapley(game, FRESH, "tree").values
    found = explainer.explain(FRESH, confidence=0.9)
    assert (np.linalg.norm(found.values - exact, axis=1) <= found.error_bound).mean() > 0.75
    asked = game.evaluations
    refined = explainer.explain(FRESH, confidence=0.9, tolerance=float(np.median(found.error_bound)))
    assert game.evaluations - asked == len(FRESH)  # the rows' own outputs
    assert 0 < refined.refined.sum() < len(FRESH)
    np.testing.assert_allclose(refined.values[refined.refined], exact[refined.refined], atol=1e-9)
    bounds = refined.error_bound[refined.refined]
    assert ((bounds > 0) & (bounds <= 1e-12 * np.abs(refined.outputs).max())).all()  # rounding, and no more
    np.testing.assert_array_equal(refined.values[~refined.refined], found.values[~refined.refined])


def test_steps_are_saved_and_exported(fitted: tuple[cortx.CoRTX, cortx.Game, Any, int], tmp_path: Path) -> None:
    explainer, game, _, _ = fitted
    features = explainer.fitted.network.features
    thresholds = {
        float(node["num_threshold"])
        for (member,) in MODEL._predictors for node in member.nodes if not node["is_leaf"]
    }  # fmt: skip
    assert features.has_steps
    assert set(features.step_value.tolist()) <= thresholds
    explainer.save(tmp_path / "x")
    again = cortx.load(tmp_path / "x", MODEL)
    np.testing.assert_array_equal(again.explain(FRESH).values, explainer.explain(FRESH).values)
    outputs = game.full_values(game.rows(FRESH))
    found = portable.load(explainer.to_onnx(tmp_path / "portable")).explain(FRESH, outputs)
    network, codes = explainer.fitted.network, torch.from_numpy(FRESH)
    with torch.no_grad():
        answer = network(codes, torch.from_numpy(outputs - game.base_values).float())
    np.testing.assert_allclose(found.values, answer.values[..., 0].numpy(), atol=1e-5)


def test_inputs_say_on_which_side_of_a_threshold_numbers_lie() -> None:
    forest = read_sklearn_histogram(MODEL)
    steps = forest_steps(forest)
    for column, thresholds in steps.items():
        assert np.isin(thresholds, forest.threshold[forest.column == column]).all()
        assert (np.diff(thresholds) > 0).all()
    game = cortx.Game(MODEL, reference=X, categorical=())
    columns = game.rows(X).table.schema.columns
    plain = fit_features(X, columns, game.absent, FeatureConfig())
    with_steps = fit_features(X, columns, game.absent, FeatureConfig(), steps=steps)
    assert not plain.has_steps
    n_steps = sum(map(len, steps.values()))
    assert with_steps.width == plain.width + n_steps == len(with_steps.columns)
    rows = torch.tensor([[np.nan] * 6, [1e9] * 6], dtype=torch.float64)
    np.testing.assert_array_equal(with_steps(rows)[:, -n_steps:].numpy(), np.repeat([[-0.5], [0.5]], n_steps, axis=1))
    first = next(iter(steps))
    at = torch.from_numpy(np.tile(X[:1], (2, 1)))
    at[:, first] = torch.tensor([steps[first][0], np.nextafter(steps[first][0], np.inf)])
    place = with_steps.width - n_steps
    assert with_steps(at)[:, place].tolist() == [-0.5, 0.5]


def test_many_thresholds_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortx.training.features.MOST_STEPS", 3)
    steps = forest_steps(read_sklearn_histogram(MODEL))
    assert max(map(len, steps.values())) == 3


@pytest.mark.parametrize("kind", ["background", "groups", "classes", "pipeline", "frame", "hidden steps"])
def test_any_game_of_trees(kind: str) -> None:
    settings: dict[str, Any] = {"reference": X, "categorical": ()}
    model, rows, fresh = MODEL, X, FRESH
    if kind == "background":
        settings = {"background": X[:5], "categorical": ()}
    if kind == "groups":
        settings["players"] = {"pair": [0, 3]}
    if kind == "classes":
        model = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, np.digitize(Y, [0.0, 1.0]))
    if kind == "pipeline":
        model = make_pipeline(StandardScaler(), HistGradientBoostingRegressor(max_iter=10)).fit(X, Y)
    if kind == "hidden steps":  # neither rises nor falls, so thresholds of the table's own columns are not known
        model = make_pipeline(FunctionTransformer(np.abs), HistGradientBoostingRegressor(max_iter=10)).fit(X, Y)
        monotone = cortx.Game(model, **settings)
        if cortx.estimators.tree.trees_of(monotone) is None:
            pytest.skip("such a step is not known to act on single columns")
    if kind == "frame":
        names = list("abcde")
        rows, fresh = (pd.DataFrame(part[:, :5], columns=names) for part in (X, FRESH))
        for frame, part in ((rows, X), (fresh, FRESH)):
            frame["f"] = pd.Categorical.from_codes(part[:, 5].astype(int), ["red", "green", "blue", "grey"])
        model = HistGradientBoostingRegressor(max_iter=10, categorical_features="from_dtype").fit(rows, Y)
        settings = {"reference": rows}
    game = cortx.Game(model, **settings)
    explainer = cortx.CoRTX(recipe(1_000, steps=60)).fit(game, rows, budget=2_000, progress=False)
    assert explainer.costs_["total_evaluations"] == game.evaluations < 100
    assert relative(explainer, game, fresh) < 0.7  # after 60 steps
    assert explainer.fitted.network.features.has_steps == (kind != "hidden steps")


def test_trees_that_the_model_does_not_follow_teach_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HistGradientBoostingRegressor(max_iter=15, random_state=0).fit(X, Y)
    leaves = HistGradientBoostingRegressor.predict
    monkeypatch.setattr(
        HistGradientBoostingRegressor, "predict", lambda self, rows: np.minimum(leaves(self, rows), 0.8)
    )
    game = cortx.Game(model, reference=X, categorical=())
    with caplog.at_level(logging.INFO, logger="cortx"):
        explainer = cortx.CoRTX(recipe(500, steps=20)).fit(game, X, budget=6_000, progress=False)
    assert "labels do not come from the model's trees" in caplog.text
    assert "student" in explainer.costs_
    assert explainer.costs_["total_evaluations"] == game.evaluations <= 6_000


def test_trees_that_take_too_long_are_learned_like_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_teacher, "LABEL_WORK", 10_000)
    game = cortx.Game(MODEL, reference=X, categorical=())
    assert cortx.CoRTX(recipe()).plan(game, X, 20_000).mode == "student"
    assert game.prepared is None  # no tables were made
    monkeypatch.undo()
    assert cortx.CoRTX(recipe()).plan(cortx.Game(MODEL, reference=X, categorical=()), X, 20_000).mode == "trees"
    deep = RandomForestRegressor(100, random_state=0).fit(np.random.default_rng(3).normal(size=(1_000, 14)), Y_DEEP)
    rows = np.random.default_rng(4).normal(size=(200, 14))
    game = cortx.Game(deep, background=rows[:100], categorical=())
    assert cortx.CoRTX(recipe()).plan(game, rows, 1_000_000).mode == "student"


def test_refit_to_trees_keeps_the_inputs_of_an_explainer_that_a_student_taught() -> None:
    """What an explainer of an earlier version, or one of a plain function, may come to."""
    student = StudentConfig(width=8, depth=1, steps=40, batch_size=32, label_rows=300, trees=False)
    small = replace(recipe(300, steps=10), student=student)
    explainer = cortx.CoRTX(small).fit(
        cortx.Game(MODEL.predict, reference=X, categorical=()), X, budget=4_000, progress=False
    )
    assert explainer.fitted.student is not None
    width = explainer.fitted.network.features.width
    game = cortx.Game(MODEL, reference=X, categorical=())
    explainer.refit(game, X, budget=1_000, progress=False)
    assert explainer.costs_["total_evaluations"] == game.evaluations < 200  # values kept for the function are checked
    assert explainer.fitted.network.features.width == width


def test_a_budget_below_the_checks_is_refused() -> None:
    game = cortx.Game(MODEL, reference=X, categorical=())
    with pytest.raises(BudgetError, match="comparing the trees"):
        cortx.CoRTX(recipe()).fit(game, X, budget=30, progress=False)


def test_work_counts_each_tree_for_the_outputs_that_it_adds_to() -> None:
    """Boosting has trees for each class, and a forest leaves for all classes."""

    def work(forest: Any) -> int:
        return TreeValues(forest, np.arange(6), 6, X[:1]).work

    classes = np.digitize(Y, [0.0, 1.0])
    boosted = read_sklearn_histogram(HistGradientBoostingClassifier(max_iter=4, random_state=0).fit(X, classes))
    assert boosted.n_outputs == 3
    assert work(boosted) == boosted.n_nodes
    everywhere = replace(boosted, value=np.where(boosted.column[:, None] < 0, 1.0, boosted.value))
    assert work(everywhere) == 3 * boosted.n_nodes


def test_positives_of_slow_trees_are_chosen_for_fewer_rows(
    fitted: tuple[cortx.CoRTX, cortx.Game, Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tree_teacher.tree_teacher(fitted[1], fitted[1].rows(X))
    config = PretrainConfig(n_positives=4, rounds=2, batch_size=16)
    assert _pretrained_rows(teacher, config) == config.most_rows
    wanted = 100 * config.n_positives * config.rounds
    monkeypatch.setattr(tree_teacher, "LABEL_WORK", wanted * output_work(teacher.prepared.trees.forest))
    assert _pretrained_rows(teacher, config) == 100
    assert _pretrained_rows(teacher, replace(config, positives="random")) == config.most_rows
    background = cortx.Game(MODEL, background=X[:5], categorical=())
    assert _pretrained_rows(tree_teacher.tree_teacher(background, background.rows(X)), config) == 20


def test_calibration_with_a_model_that_does_not_follow_its_trees_tries_refinement(tmp_path: Path) -> None:
    """Nothing of what calibration can do is lost where the trees are of no use."""
    deviant = HistGradientBoostingRegressor(max_iter=15, max_leaf_nodes=6, random_state=0).fit(X, Y)
    deviant.predict = lambda rows: MODEL.predict(rows) + 0.3 * (np.asarray(rows)[:, 4] > 0.5)
    game = cortx.Game(deviant, reference=X, categorical=())
    labels = cortx.shapley(game, np.concatenate([X[:60], FRESH]), "exact", views=0)
    cortx.CoRTX(recipe(steps=20)).fit(game, X, labels=labels[:60], progress=False).save(tmp_path / "x")
    explainer = cortx.load(tmp_path / "x", model=deviant).calibrate(labels[60:])
    assert explainer.calibration.rounds.longest > 0
    refined = explainer.explain(FRESH[:5], confidence=0.9, tolerance=1e-9)
    np.testing.assert_allclose(refined.values, labels.values[60:65], atol=1e-9)


def test_bounds_of_trees_say_what_a_model_without_trees_cannot_do(
    fitted: tuple[cortx.CoRTX, cortx.Game, Any, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fitted[0].save(tmp_path / "x")
    explainer = cortx.load(tmp_path / "x", model=MODEL.predict)
    with caplog.at_level(logging.WARNING, logger="cortx"):
        explainer.explain(FRESH[:3], confidence=0.9, tolerance=1e-9, row_budget=10)
    assert "3 rows were not refined" in caplog.text
    caplog.clear()
    explainer.calibrate(FRESH)
    with caplog.at_level(logging.WARNING, logger="cortx"):
        refined = explainer.explain(FRESH[:3], confidence=0.9, tolerance=1e-9)
    assert not caplog.text
    np.testing.assert_allclose(refined.values, cortx.shapley(fitted[1], FRESH[:3], "tree").values, atol=1e-6)
