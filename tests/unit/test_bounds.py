"""Bounds, refinement and priors of a fitted explainer."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.compat.test_compat import FIRST
from tests.conftest import make_model, make_tiny_recipe

import cortx
from cortx.errors import InputError
from cortx.explainer.labels import label_facts, pack_labels, unpack_labels
from cortx.explainer.refine import Predicted, Refinable, refine, round_scores

N_COLUMNS = 6


def rows_of(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, N_COLUMNS)).astype(np.float32)


def calibrated(n_outputs: int, **settings: object) -> cortx.CoRTX:
    table = rows_of(600, 0)
    game = cortx.Game(make_model(n_outputs=n_outputs), reference=table, output="probability")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=300), **settings)  # type: ignore[arg-type]
    return explainer.fit(game, table, budget=30_000)


@pytest.fixture(scope="module")
def explainer() -> cortx.CoRTX:
    return calibrated(1)


@pytest.fixture(scope="module")
def several() -> cortx.CoRTX:
    return calibrated(3, heads=("attribution", "ranking"))


@pytest.fixture(params=["one output", "three outputs"])
def either(request: pytest.FixtureRequest, explainer: cortx.CoRTX, several: cortx.CoRTX) -> cortx.CoRTX:
    return explainer if request.param == "one output" else several


def test_bounds_hold_for_fresh_rows(either: cortx.CoRTX) -> None:
    fresh = rows_of(500, 1)
    truth = cortx.shapley(either.game, fresh, "exact", views=0).values
    shown = either.explain(fresh, confidence=0.9)
    assert shown.confidence == 0.9
    assert shown.error_bound.shape == shown.base_values.shape
    assert shown.lower_bounds.shape == shown.upper_bounds.shape == shown.values.shape
    assert (shown.lower_bounds <= shown.values).all()
    assert (shown.values <= shown.upper_bounds).all()
    assert not shown.refined.any()
    covered = np.linalg.norm(shown.values - truth, axis=1) <= shown.error_bound
    inside = ((truth >= shown.lower_bounds) & (truth <= shown.upper_bounds)).all(axis=1)
    # 70 or so calibration rows: coverage itself has a deviation of about 0.035.
    assert 0.78 <= covered.mean() <= 0.99
    assert 0.78 <= inside.mean() <= 0.99
    wider = either.explain(fresh, confidence=0.95)
    assert (wider.error_bound >= shown.error_bound).all()


def test_stable_ranks_are_seldom_wrong(explainer: cortx.CoRTX) -> None:
    fresh = rows_of(500, 2)
    truth = cortx.shapley(explainer.game, fresh, "exact", views=0)
    shown = explainer.explain(fresh, confidence=0.9)
    wrong = (shown.stable_ranks & (shown.ranking != truth.ranking)).any(axis=1)
    assert wrong.mean() <= 0.1
    assert shown.stable_ranks.any()


def test_a_feature_at_its_reference_is_certain(explainer: cortx.CoRTX) -> None:
    fresh = rows_of(20, 3).astype(np.float64)
    fresh[:, 2] = explainer.game.absent[0, 2]
    shown = explainer.explain(fresh, confidence=0.9)
    assert (shown.lower_bounds[:, 2] == 0).all()
    assert (shown.upper_bounds[:, 2] == 0).all()
    assert (shown.upper_bounds > shown.lower_bounds)[:, [0, 1, 3, 4, 5]].all()


def test_strange_rows_get_wider_bounds(explainer: cortx.CoRTX) -> None:
    fresh = rows_of(300, 4)
    usual = explainer.explain(fresh, confidence=0.9).error_bound
    strange = explainer.explain(fresh * 8, confidence=0.9).error_bound
    assert np.median(strange) > 3 * np.median(usual)


def test_bounds_travel_with_the_artifact(either: cortx.CoRTX, tmp_path: Path) -> None:
    fresh = rows_of(50, 5)
    before = either.explain(fresh, confidence=0.9)
    loaded = cortx.load(either.save(tmp_path / "e.cortx"))
    after = loaded.explain(fresh, outputs=before.outputs, confidence=0.9)
    for name in ("values", "lower_bounds", "upper_bounds", "error_bound"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    with pytest.raises(InputError, match=r"give outputs="):
        loaded.explain(fresh, confidence=0.9)
    with pytest.raises(InputError, match=r"load the explainer with model"):
        loaded.explain(fresh, outputs=before.outputs, tolerance=0.1)
    with pytest.raises(InputError, match="needs the model"):
        loaded.calibrate(fresh)


def test_without_calibration_there_are_no_bounds_until_calibrate(game: cortx.Game, table: np.ndarray) -> None:
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, table, n_labels=60)
    fresh = rows_of(80, 6)
    with pytest.raises(InputError, match="not calibrated"):
        explainer.explain(fresh, confidence=0.9)
    spent = game.evaluations
    explainer.calibrate(fresh)
    assert game.evaluations - spent == explainer.calibration.evaluations > 80 * 60
    by_table = explainer.explain(fresh, confidence=0.9).error_bound
    explainer.calibrate(cortx.shapley(game, fresh, "exact"))
    np.testing.assert_allclose(explainer.explain(fresh, confidence=0.9).error_bound, by_table)
    with pytest.raises(InputError, match="support at most"):
        explainer.explain(fresh, confidence=0.999)
    assert explainer.costs_["calibration"]["rows"] == 80
    labels = cortx.shapley(game, fresh, "permutation", row_budget=11)  # one pair: nobody knows its error
    with pytest.raises(InputError, match="no standard errors"):
        explainer.calibrate(labels)


def test_labels_that_know_the_explainer_are_refused(explainer: cortx.CoRTX) -> None:
    """They lie nearer to its answers than the truth does: bounds from them held for 9 to 42% of the rows, not 90%."""
    learner, game, fresh = copy(explainer), explainer.game, rows_of(40, 8)
    shrunk = cortx.shapley(game, fresh, "amortized", explainer=explainer, row_budget=30, views=0)
    fair = cortx.shapley(game, fresh, "amortized", explainer=explainer, unbiased=True, row_budget=50)
    exact = cortx.shapley(game, fresh, "exact", views=0)
    assert game is not None
    kept = unpack_labels(pack_labels(shrunk), label_facts(shrunk), game=game, data=fresh)  # as a checkpoint keeps them
    for labels in (shrunk, kept, shrunk[5:], replace(shrunk, method="amortized+exact", exact=None)):
        with pytest.raises(InputError, match=r"method='amortized'.*unbiased=True"):
            learner.calibrate(labels)
    for labels in (learner.explain(fresh), replace(exact, method="cortx+exact")):
        with pytest.raises(InputError, match=r"explainer's own answers.*cortx\.shapley"):
            learner.calibrate(labels)
        with pytest.raises(InputError, match="explainer's own answers"):
            cortx.CoRTX(make_tiny_recipe()).fit(game, fresh, labels=labels)
    with pytest.raises(InputError, match="cannot judge"):
        learner.evaluate(fresh, method="amortized")
    whole = cortx.shapley(game, fresh, "amortized", explainer=explainer, row_budget=64, views=0)  # all coalitions
    with pytest.raises(InputError, match="no standard errors"):  # of so few pairs
        learner.calibrate(fair)
    for labels in (exact, whole, replace(fair, error_std=np.full(fair.values.shape, 1e-3))):
        learner.calibrate(labels)
    assert explainer.calibration is not learner.calibration


def test_weights_of_calibration_rows_are_saved(explainer: cortx.CoRTX, tmp_path: Path) -> None:
    """A row that stands for nine tenths of the data decides the bounds, wherever they are read."""
    fresh = rows_of(60, 9)
    labels = cortx.shapley(explainer.game, fresh, "exact", views=0)
    learner = copy(explainer).calibrate(labels)
    plain = learner.explain(fresh, confidence=0.8).error_bound
    hardest = int(np.argmax(learner.calibration.rows[:, 0]))
    weights, frequent = np.ones(60), np.arange(60) == hardest
    weights[hardest] = 540.0
    learner.calibrate(replace(labels, weights=weights, frequent=frequent))
    assert learner.calibration.effective_rows == 599
    heavy = learner.explain(fresh, confidence=0.8)
    assert (heavy.error_bound > plain).all()
    outputs = heavy.outputs
    loaded = cortx.load(learner.save(tmp_path / "explainer"))
    np.testing.assert_allclose(loaded.explain(fresh, outputs, confidence=0.8).error_bound, heavy.error_bound, rtol=1e-5)
    pytest.importorskip("onnxruntime")
    portable = cortx.portable.load(learner.to_onnx(tmp_path / "portable", confidence=0.8))
    for confidence in (0.8, 0.7):  # one that the graph holds, and one it does not
        shown = portable.explain(fresh, outputs, confidence=confidence)
        np.testing.assert_allclose(
            shown.error_bound, learner.explain(fresh, outputs, confidence=confidence).error_bound, rtol=1e-4
        )


def test_tolerance_refines_the_rows_that_need_it(either: cortx.CoRTX) -> None:
    fresh = rows_of(200, 7)
    truth = cortx.shapley(either.game, fresh, "exact", views=0).values
    before = either.explain(fresh, tolerance=1e9)  # bounds that hold whether or not rows are refined
    assert not before.refined.any()
    tolerance = float(np.median(before.error_bound))
    spent = either.game.evaluations
    shown = either.explain(fresh, tolerance=tolerance)
    assert shown.evaluations == either.game.evaluations - spent
    wide = (before.error_bound.reshape(200, -1) > tolerance).any(axis=1)
    np.testing.assert_array_equal(shown.refined, wide)
    assert 0 < wide.sum() < 200
    np.testing.assert_array_equal(shown.values[~wide], before.values[~wide])
    assert (shown.error_bound <= tolerance).all()
    error = np.linalg.norm(shown.values - truth, axis=1)
    assert (error <= tolerance).mean() >= 0.9
    assert error[wide].mean() < 0.5 * np.linalg.norm(before.values - truth, axis=1)[wide].mean()
    total = shown.values.sum(axis=1) + shown.base_values
    np.testing.assert_allclose(total, shown.outputs, atol=1e-9)
    # What the ranking head said no longer counts where the values are known better.
    by_value = np.flip(np.argsort(shown.values, axis=1, kind="stable"), axis=1)
    np.testing.assert_array_equal(shown.ranking[wide], by_value[wide])
    # The same call gives the same answer, and no tolerance is worth the whole budget.
    np.testing.assert_array_equal(either.explain(fresh, tolerance=tolerance).values, shown.values)


@pytest.fixture(scope="module")
def wide_pool() -> tuple[cortx.CoRTX, cortx.Explanation]:
    """Nine columns, so that rows are refined in rounds, and fresh rows with exact labels."""
    table = np.random.default_rng(3).normal(size=(1_300, 9)).astype(np.float32)
    game = cortx.Game(make_model(9, seed=3), reference=table, output="raw")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=300), seed=1).fit(game, table[:600], budget=200_000)
    return explainer, cortx.shapley(game, table[600:], "exact", views=0)


def test_refined_bounds_hold_in_every_round_at_once(wide_pool: tuple[cortx.CoRTX, cortx.Explanation]) -> None:
    """Over re-drawn calibration splits: all rounds jointly, and where a tolerance makes each row stop."""
    explainer, labels = wide_pool
    game, outputs = explainer.game, labels.outputs.reshape(len(labels), 1)
    assert game is not None
    table = explainer._read(labels.data)
    empty = explainer._empty(table)[0]
    some = Refinable(
        game, game.rows(labels.data), outputs, empty, explainer._answer(table, outputs, empty, errors=True), 5
    )
    residual = np.linalg.norm(labels.values - some.answer.values[..., 0], axis=1)
    scores, scales = [residual / some.answer.typical_row[:, 0]], [some.answer.typical_row[:, 0]]
    blocks = list(some.blocks(np.arange(len(labels)), 10_000))
    for size in (32, 64, 128):  # of 510 coalitions; twice 256 would be all
        found = [growing.estimate(np.arange(len(index)), size) for index, growing in blocks]
        values, errors = (np.concatenate([getattr(part, name) for part in found]) for name in ("values", "errors"))
        scales.append(np.linalg.norm(errors[..., 0], axis=1))
        scores.append(np.linalg.norm(labels.values - values[..., 0], axis=1) / scales[-1])
    rows, _ = round_scores(some, labels.values[..., None], np.zeros((*labels.values.shape, 1)), 10_000)
    np.testing.assert_allclose(rows[:, 0], np.max(scores[1:], axis=0))
    generator, together, stopped = np.random.default_rng(0), [], []
    for _ in range(100):
        order = generator.permutation(len(labels))
        old, fresh = order[:200], order[200:]
        factor = np.sort(np.max(scores, axis=0)[old])[int(np.ceil(201 * 0.9)) - 1]
        held = np.array(scores)[:, fresh] <= factor
        together.append(held.all(axis=0).mean())
        bound = factor * np.array(scales)[:, fresh]
        met = bound <= np.median(bound[0]) / 2
        at = np.where(met.any(axis=0), met.argmax(axis=0), len(bound) - 1)
        stopped.append(held[at, np.arange(len(fresh))].mean())
    assert 0.88 <= np.mean(together) <= 0.93
    assert np.mean(stopped) >= 0.88


def test_rounds_are_calibrated_and_saved(wide_pool: tuple[cortx.CoRTX, cortx.Explanation], tmp_path: Path) -> None:
    explainer, labels = wide_pool
    fresh = labels.data[:100]
    plain, joint = (explainer.calibration.factors(0.9, refined=refined) for refined in (False, True))
    assert all((wider >= narrow).all() for wider, narrow in zip(joint, plain, strict=True))
    tolerance = float(np.median(explainer.explain(fresh, confidence=0.9).error_bound)) / 3
    shown = explainer.explain(fresh, tolerance=tolerance)
    assert (shown.error_bound <= tolerance).all()
    exact = shown.error_bound <= 1e-5 * np.abs(shown.outputs)  # but for rounding
    assert 0 < exact.sum() < shown.refined.sum()  # some were enumerated, others were not
    loaded = cortx.load(explainer.save(tmp_path / "e"), model=explainer.game.model.module)
    again = loaded.explain(fresh, tolerance=tolerance)
    np.testing.assert_array_equal(again.error_bound, shown.error_bound)
    np.testing.assert_array_equal(again.values, shown.values)


@pytest.mark.parametrize("row_budget", [10, 33_000, 40_000])
def test_refining_a_row_costs_its_budget_at_most(row_budget: int) -> None:
    """Fifteen players: too many pairs to draw them all, so that enumerating pays for those of the rounds again."""
    weights = np.linspace(-1, 1, 15)
    game = cortx.Game(lambda rows: np.tanh(rows @ weights), reference=np.zeros(15))
    rows = game.rows(np.random.default_rng(0).normal(size=(2, 15)))
    full, empty, ones = game.full_values(rows), game.empty_values(rows), np.ones((2, 15, 1))
    answer = Predicted(full[:, None, :] * ones / 15, None, ones, np.ones((2, 1)), rows.active)
    spent, factors = game.evaluations, (np.ones(1), np.ones(1))
    some = Refinable(game, rows, full, empty, answer, 0)
    _, bounds = refine(
        some, answer.bounds(*factors), factors, 2_048, tolerance=1e-12, row_budget=row_budget, show=False
    )
    assert (game.evaluations - spent) / 2 <= row_budget
    assert (bounds.error <= 1e-5 * np.abs(full)).all() == (row_budget == 40_000)
    assert (bounds.error > 0).all()  # a model that rounds in float32 is no more certain than that


def test_an_older_calibration_refines_nothing() -> None:
    old = cortx.load(FIRST / "numbers" / "artifact", model=make_model())
    with pytest.raises(InputError, match=r"calibrated by an older version.*call calibrate\(rows\)"):
        old.explain(rows_of(5, 0), tolerance=0.1)
    assert old.calibrate(rows_of(60, 9)).explain(rows_of(5, 0), tolerance=0.1).refined is not None


def test_a_small_budget_limits_refinement_and_says_so(explainer: cortx.CoRTX) -> None:
    fresh = rows_of(100, 8)
    tolerance = 1e-4
    shown = explainer.explain(fresh, tolerance=tolerance, row_budget=20)
    assert shown.evaluations <= 100 * (1 + 20)
    assert (shown.error_bound > tolerance).any()
    for wrong in (0, -1.0, True, "small", np.nan):
        with pytest.raises(InputError, match="tolerance must be positive"):
            explainer.explain(fresh, tolerance=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number of model evaluations"):
        explainer.explain(fresh, tolerance=0.1, row_budget=2.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give tolerance= too"):
        explainer.explain(fresh, row_budget=100)


def test_rows_that_cannot_be_wrong_need_no_refinement(explainer: cortx.CoRTX) -> None:
    """A row at the reference, and one that differs in a single feature, are exact whatever the network says."""
    rows = np.repeat(explainer.game.absent, 2, axis=0)
    rows[1, 3] += 1.0
    shown = explainer.explain(rows, tolerance=1e-9)
    assert not shown.refined.any()
    assert (shown.error_bound == 0).all()
    np.testing.assert_array_equal(shown.lower_bounds, shown.upper_bounds)
    truth = cortx.shapley(explainer.game, rows, "exact").values
    np.testing.assert_allclose(shown.values, truth, atol=1e-12)


def test_the_explainer_is_a_prior_for_an_estimator(several: cortx.CoRTX) -> None:
    fresh = rows_of(300, 9)
    game = several.game
    truth = cortx.shapley(game, fresh, "exact", views=0).values
    spent = game.evaluations
    refined = cortx.shapley(game, fresh, "amortized", explainer=several, row_budget=14, views=0)
    assert refined.evaluations == game.evaluations - spent <= 300 * 14
    plain = cortx.shapley(game, fresh, "kernel", row_budget=14, views=0)
    first = several.explain(fresh)

    def squared(explanation: cortx.Explanation) -> float:
        return float(((explanation.values - truth) ** 2).sum(axis=1).mean())

    assert squared(refined) < squared(plain) / 2
    assert squared(refined) < squared(first)
    assert (refined.error_std > 0).all()


def test_the_whole_family_of_groups_and_backgrounds(tmp_path: Path) -> None:
    """Groups of columns as players, v(S) averaged over a background: the same bounds, at the background's price."""
    table = rows_of(300, 0)
    names = [f"c{j}" for j in range(N_COLUMNS)]
    import pandas as pd

    frame = pd.DataFrame(table, columns=names)
    game = cortx.Game(
        lambda rows: np.tanh(rows.to_numpy().sum(axis=1)), background=frame[:5], players={"ab": ["c0", "c1"]}
    )
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, frame, budget=60_000)
    assert explainer.costs_["total_evaluations"] <= 60_000 * 1.02
    shown = explainer.explain(frame[:40], confidence=0.8, tolerance=0.05)
    assert shown.feature_names == ("ab", "c2", "c3", "c4", "c5")
    truth = cortx.shapley(game, frame[:40], "exact").values
    assert (np.linalg.norm(shown.values - truth, axis=1) <= 0.05).mean() >= 0.8
