"""Labels of tens of evaluations judge an explainer: their noise is known, and taken out of the bounds."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.conftest import make_model, make_tiny_recipe
from tests.contracts.test_estimators import smooth_game
from tests.contracts.test_student import OfFunction, exact, of_table, repeats, students

import cortx
from cortx.errors import ArtifactError, BudgetError, InputError
from cortx.explainer import artifact
from cortx.explainer.calibration import Calibration, RoundScores, calibrate, calibrate_seen
from cortx.explainer.control import METHOD
from cortx.explainer.labels import Labels, label_facts, pack_labels, unpack_labels
from cortx.explainer.learn import _errors
from cortx.explainer.noise import Seen, drawn
from cortx.explainer.refine import Refinable, longest_round, round_scores
from cortx.explainer.store import Ask, LabelStore
from cortx.games.value_store import ValueStore
from cortx.interfaces.server.audit_row import Judge
from cortx.interfaces.server.pace import Pace
from cortx.training.recipe import get_recipe

Array = np.ndarray


# Noise that is taken out ----------------------------------------------------------------------------------------------


def world(rng: np.random.Generator, count: int, n: int) -> tuple[Array, Array]:
    """Heavy-tailed errors, (rows, n, 1), whose size varies by row and player, and their sizes as far as one knows."""
    size = np.exp(0.5 * rng.normal(size=(count, 1, 1))) * np.exp(0.5 * np.sin(np.arange(n)))[:, None]
    true = size * np.exp(0.2 * rng.normal(size=(count, 1, 1))) * rng.standard_t(5, size=(count, n, 1))
    return true, size * np.exp(0.2 * rng.normal(size=true.shape))


@pytest.mark.parametrize(("n", "noise", "known"), [(5, 0.3, 0.0), (20, 1.0, 0.0), (5, 1.0, 2.0), (20, 1.0, 2.0)])
def test_bounds_from_noisy_labels_cover_the_promised_share(n: int, noise: float, known: float) -> None:
    """Labels as noisy as the errors that they judge and more, their variances estimated from 16 draws."""
    rng = np.random.default_rng(0)
    shares, widths = [], []
    for round_ in range(25):
        missed, sizes = world(rng, 350, n)
        own, own_sizes = world(rng, 350, n)
        true, typical = missed + known * own, np.hypot(sizes, known * own_sizes)
        typical_row = np.sqrt(np.square(typical).sum(axis=1))
        scale = noise * np.sqrt(np.square(missed[:100]).mean(axis=(1, 2), keepdims=True))
        draws = scale[:, None] * np.sqrt(16) * rng.normal(size=(100, 16, n, 1))
        seen = Seen(
            missed[:100] + draws.mean(axis=1), draws.var(axis=1, ddof=1) / 16, sizes[:100], np.ones((100, n), bool)
        )
        made = calibrate_seen(known * own[:100], seen, typical[:100], typical_row[:100], 0, round_)
        plain = calibrate(true[:100], np.zeros_like(seen.values), typical[:100], typical_row[:100], seen.open, 0)
        fresh = slice(100, None)
        for factors, found in ((made.factors(0.9), shares), (plain.factors(0.9), widths)):
            inside = (np.abs(true[fresh]) <= typical[fresh] * factors[1]).all(axis=1)
            within = np.linalg.norm(true[fresh], axis=1) <= typical_row[fresh] * factors[0]
            found.append([within.mean(), inside.mean()])
    rows, bands = np.mean(shares, axis=0)
    assert 0.88 <= rows <= 0.93
    assert 0.87 <= bands <= 0.94
    assert (np.abs(np.mean(widths, axis=0) - 0.9) < 0.02).all()  # what labels without noise give


def test_sizes_that_follow_the_noise_do_not_shrink_errors() -> None:
    """Errors of many players seen through the noise of 16 draws, sizes taken from these draws' own spread."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(8):
        missed, units = world(rng, 120, 40)
        spread = 2 * np.sqrt(np.square(missed).mean(axis=(1, 2), keepdims=True))
        # Pairs of coalitions move all players together, some more than others.
        draws = (
            4 * spread[:, None] * rng.exponential(size=(120, 16, 1, 1)) / np.sqrt(2) * rng.normal(size=(120, 16, 40, 1))
        )
        variance = draws.var(axis=1, ddof=1) / 16
        sizes = np.broadcast_to(np.sqrt(variance.mean(axis=1, keepdims=True)), missed.shape)
        rows = np.sqrt(np.square(units).mean(axis=1))
        seen = Seen(missed + draws.mean(axis=1), variance, sizes, np.ones((120, 40), bool), rows)
        weight = 1 / np.square(rows)[:, None]
        squares = [float((weight * np.square(errors)).sum()) for errors in drawn(seen, rng, count=4)]
        ratios.append(np.mean(squares) / (weight * np.square(missed)).sum())
    assert 0.8 < np.mean(ratios) < 1.15


@pytest.mark.parametrize("unit", [1 / 30, 0.0])
def test_a_row_that_expects_no_errors_does_not_tell_those_of_all(unit: float) -> None:
    """One of 100 rows expects errors far too small; by chance its label shows none."""
    rng = np.random.default_rng(0)
    errors = rng.normal(size=(100, 12, 1))
    errors[0] = 0.0
    units = np.ones((100, 1))
    units[0] = unit
    open_ = np.ones((100, 12), dtype=bool)
    noise = rng.normal(size=errors.shape)
    noise[0] = 0.1
    seen = Seen(errors + noise, np.ones_like(errors), np.ones_like(errors), open_, units)
    found = [np.square(some[1:]).mean() for some in drawn(seen, rng, count=8)]
    assert 0.85 < np.mean(found) / np.square(errors[1:]).mean() < 1.15


def test_what_has_no_noise_is_not_drawn() -> None:
    rng = np.random.default_rng(1)
    true, sizes = world(rng, 20, 6)
    variance = np.ones_like(true)
    variance[:10] = 0.0
    open_ = np.ones((20, 6), dtype=bool)
    open_[:, 0] = False
    for errors in drawn(Seen(true, variance, sizes, open_), rng, count=3):
        np.testing.assert_array_equal(errors[:10], true[:10])
        np.testing.assert_array_equal(errors[:, 0], true[:, 0])
        assert (errors[10:, 1:] != true[10:, 1:]).all()
        assert np.isfinite(errors).all()


def test_a_perfect_student_and_no_noise_at_all_are_no_trouble() -> None:
    zeros, ones = np.zeros((10, 4, 1)), np.ones((10, 4, 1))
    for variance in (zeros, 1e-20 * ones, ones):
        made = calibrate_seen(ones, Seen(zeros, variance, ones, np.ones((10, 4), bool)), ones, ones[:, 0], 7, 0)
        assert np.isfinite(made.rows).all()
        assert (made.rows > 1.5).all()  # the distance to the student, 2, is known
        assert made.evaluations == 7
        assert made.noise_risk == 0
    with pytest.raises(BudgetError, match="at least 2 labelled rows"):
        calibrate_seen(
            ones[:1], Seen(zeros[:1], ones[:1], ones[:1], np.ones((1, 4), bool)), ones[:1], ones[:1, 0], 0, 0
        )


def test_calibration_with_noise_is_the_same_each_time() -> None:
    true, sizes = world(np.random.default_rng(2), 30, 5)
    seen, row = Seen(true, np.ones_like(true), sizes, np.ones((30, 5), bool)), np.ones((30, 1))
    one, two, other = (calibrate_seen(np.zeros_like(true), seen, sizes, row, 0, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.bands, two.bands)
    assert (one.bands != other.bands).any()


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem() -> tuple[cortx.Game, OfFunction, Array]:
    """A game, a student that nearly knows it, and the true values."""
    n = 9
    values = smooth_game(n, seed=4)
    near = students(values)["nearly the game"]
    game = cortx.Game(of_table(values), reference=np.zeros(n))
    truth = exact(of_table(values), np.ones(n))
    return game, OfFunction(of_table(near), np.zeros(n)), truth


@pytest.mark.parametrize("values", [32, 64])
def test_control_labels_know_their_variance(problem: Any, values: int) -> None:
    game, student, truth = problem
    X = repeats(9, 1000)
    labels = cortx.shapley(game, X, METHOD, row_budget=values + 1, views=0, student=student, progress=False)
    assert labels.variance is not None
    assert labels.error_std is not None
    squares = np.square(labels.values - truth)
    # Sizes are drawn systematically, which makes labels a little better than their variance says.
    assert 0.75 < squares.mean() / labels.variance.mean() < 1.05
    assert (labels.error_std >= np.sqrt(labels.variance)).all()
    assert labels.evaluations <= 1 + 1000 * (1 + values)
    assert labels.method == "unbiased-student"


def test_the_variance_travels_with_labels(problem: Any, tmp_path: Path) -> None:
    game, student, *_ = problem
    X = repeats(9, 12)
    found = cortx.shapley(game, X, "unbiased", row_budget=41, views=0, student=student, progress=False)
    assert found.variance is not None
    np.testing.assert_array_equal(found[[3, 1]].variance, found.variance[[3, 1]])
    back = unpack_labels(pack_labels(found), label_facts(found), game=game, data=None)
    np.testing.assert_array_equal(back.variance, found.variance)
    assert cortx.shapley(game, X, "kernel", row_budget=99, views=0, progress=False).variance is None
    whole = cortx.shapley(game, X[:2], "exact", views=0, progress=False)
    assert not whole.variance.any()
    with pytest.raises(InputError, match=r"variance must have shape \(12, 9\)"):
        replace(found, variance=found.variance[:3])
    rows, ask = game.rows(X), Ask("unbiased", 41, corrects=True)
    options = {"views": 0, "seed": 0, "show": False, "title": ""}
    values = ValueStore.open(tmp_path / "values", game)
    for _ in range(2):  # labels are made anew for every student; what was paid for are the values
        store, spent = LabelStore.open(tmp_path / "labels", game, 0), game.evaluations
        with game.keeping(values):
            labels = store.labels(game, rows, np.arange(12), ask, student=student, **options)  # type: ignore[arg-type]
        np.testing.assert_array_equal(labels.variance[..., 0], found.variance)  # type: ignore[index]
        np.testing.assert_array_equal(labels.take(np.array([5])).variance, labels.variance[[5]])  # type: ignore[index]
    assert game.evaluations == spent
    assert not list((tmp_path / "labels").glob("*"))
    assert ask.costs(np.array([9, 1, 0, 3]), game).tolist() == [41, 1, 1, 7]
    assert store.knows(replace(ask, corrects=False), rows.words).sum() == 0


def test_auto_takes_unbiased_pairs_where_the_regression_knows_no_errors(problem: Any) -> None:
    game, student, *_ = problem
    X = repeats(9, 3)
    for row_budget, method in ((41, "unbiased-student"), (120, "odd-student"), (512, "exact")):
        found = cortx.shapley(game, X, row_budget=row_budget, views=0, student=student, progress=False)
        assert found.method == method
        assert np.isfinite(found.error_std).all()


def test_labels_of_known_variance_judge_longer_rounds() -> None:
    assert longest_round(64, exact=False) < longest_round(64, exact=False, noise_known=True) < 128


# An explainer with a student ------------------------------------------------------------------------------------------

COLUMNS = 9


@pytest.fixture(scope="module")
def fitted() -> tuple[cortx.CoRTX, Array, cortx.Explanation]:
    """An explainer that came with a student, rows to calibrate with, and exact labels of fresh ones."""
    table = np.random.default_rng(3).normal(size=(1_100, COLUMNS)).astype(np.float32)
    model = make_model(COLUMNS, seed=3)
    game = cortx.Game(model, reference=np.zeros(COLUMNS), output="raw")
    explainer = cortx.CoRTX(make_tiny_recipe(steps=250), seed=1).fit(game, table[:400], n_labels=120, progress=False)
    slopes = np.random.default_rng(0).normal(size=COLUMNS)

    def nearly(rows: Array) -> Array:
        with torch.no_grad():
            known = model(torch.from_numpy(np.asarray(rows, dtype=np.float32))).double().numpy()[:, 0]
        return known + 0.1 * np.sin(2 * rows @ slopes)

    student = OfFunction(nearly, np.zeros(COLUMNS))
    explainer._attach(replace(explainer.fitted, student=student), game)
    return explainer, table[400:600], cortx.shapley(game, table[600:], "exact", views=0, progress=False)


def test_tens_of_evaluations_calibrate(fitted: Any) -> None:
    """200 rows of 32 values each, where enumeration takes 512: bounds hold, and are hardly wider than exact ones."""
    explainer, rows, truth = fitted
    own = copy(explainer)
    own.calibrate(rows, row_budget=33)
    spent = own.costs_["calibration"]["evaluations"]
    assert spent <= len(rows) * (33 + 32)  # a label, and one round of refinement
    assert own.costs_["total_evaluations"] == explainer.costs_["total_evaluations"] + spent
    with pytest.raises(InputError, match=r"a number between 0 and 1, got '0\.9'"):
        own.explain(rows[:3], confidence="0.9")
    shown = own.explain(truth.data, confidence=0.9)
    within = np.linalg.norm(truth.values - shown.values, axis=1) <= shown.error_bound
    inside = ((truth.values >= shown.lower_bounds) & (truth.values <= shown.upper_bounds)).all(axis=1)
    assert 0.85 <= within.mean() <= 0.96  # one split: the luck of 200 rows
    assert 0.85 <= inside.mean() <= 0.96
    own.calibrate(rows)
    again = own.costs_["calibration"]["evaluations"]
    assert len(rows) * 257 < again <= len(rows) * (257 + 256)
    assert own.costs_["total_evaluations"] == explainer.costs_["total_evaluations"] + spent + again
    precise = own.explain(truth.data, confidence=0.9)
    assert np.median(shown.error_bound) < 1.3 * np.median(precise.error_bound)


def test_too_few_rows_are_refused_before_they_are_paid_for(fitted: Any) -> None:
    explainer, fresh, _ = fitted
    spent = explainer.game.evaluations
    with pytest.raises(InputError, match="there are 9 labels; give at least 10"):
        explainer.calibrate(fresh[:9])
    assert explainer.game.evaluations == spent


def test_a_tolerance_that_is_missed_is_said(fitted: Any, caplog: pytest.LogCaptureFixture) -> None:
    explainer, rows, truth = fitted
    own = copy(explainer)
    own.calibrate(rows, row_budget=33)
    found = own.explain(truth.data[:5], tolerance=1e-9, row_budget=40)
    assert (found.error_bound > 1e-9).all()
    assert "5 of 5 rows are still above the tolerance of 1e-09" in caplog.text
    assert "row_budget allows 40 evaluations of a row; give more" in caplog.text or "past that a row" in caplog.text


def test_labels_of_too_few_values_are_refused(fitted: Any) -> None:
    explainer, rows, _ = fitted
    labels = cortx.shapley(explainer.game, rows[:30], "unbiased", row_budget=17, views=0, progress=False)
    assert np.isfinite(labels.variance).all()
    with pytest.raises(InputError, match="30 of 30 calibration labels have no standard errors"):
        copy(explainer).calibrate(labels)
    asked = explainer.game.evaluations
    with pytest.raises(InputError, match="from 33 evaluations a row on"):
        copy(explainer).calibrate(rows[:30], row_budget=32)
    assert explainer.game.evaluations == asked


def test_refined_rows_start_from_the_student(fitted: Any) -> None:
    """After 64 values of each row the squared error is a tenth of what it is without the student, and bounds hold."""
    explainer, rows, truth = fitted
    own = copy(explainer)
    own.calibrate(rows)
    bare = copy(explainer)
    bare._attach(replace(explainer.fitted, student=None), explainer.game)
    bare.calibrate(rows)
    errors = []
    for one in (own, bare):
        found = one.explain(truth.data, confidence=0.9, tolerance=1e-9, row_budget=65)
        assert found.refined.all()
        assert found.evaluations == len(truth) * (1 + 64)
        errors.append(np.square(found.values - truth.values).sum(axis=1).mean())
        away = np.linalg.norm(found.values - truth.values, axis=1)
        assert (away <= found.error_bound).mean() >= 0.88
    assert errors[0] < errors[1] / 10


def test_refined_bounds_with_a_student_hold_in_every_round_at_once(fitted: Any) -> None:
    """Over re-drawn calibration splits, against exact labels: the answer and all rounds jointly."""
    explainer, _, truth = fitted
    outputs, table = truth.outputs.reshape(-1, 1), explainer._read(truth.data)
    empty = explainer._empty(table)[0]
    answer = explainer._answer(table, outputs, empty, errors=True)
    rows = explainer.game.rows(truth.data)
    some = Refinable(explainer.game, rows, outputs, empty, answer, 5, explainer.fitted.student)
    away = truth.values[..., None] - answer.values
    plain = calibrate(away, np.zeros_like(away), answer.typical, answer.typical_row, answer.active, 0)
    later = round_scores(some, truth.values[..., None], np.zeros_like(away), 10_000)
    joint = np.maximum(plain.rows, later[0]), np.maximum(plain.bands, later[1])
    generator, shares = np.random.default_rng(0), []
    for _ in range(100):
        order = generator.permutation(len(truth))
        old, fresh = order[:150], order[150:]
        factors = [np.sort(part[old, 0])[int(np.ceil(151 * 0.9)) - 1] for part in joint]
        shares.append([(part[fresh, 0] <= factor).mean() for part, factor in zip(joint, factors, strict=True)])
    assert (np.abs(np.mean(shares, axis=0) - 0.905) < 0.025).all()


def test_rounds_of_few_evaluations_hold_too(fitted: Any) -> None:
    explainer, rows, truth = fitted
    own = copy(explainer)
    own.calibrate(rows, row_budget=65)
    assert own.calibration.rounds.longest >= 64
    found = own.explain(truth.data, confidence=0.9, tolerance=1e-9, row_budget=65)
    away = np.linalg.norm(found.values - truth.values, axis=1)
    assert (away <= found.error_bound).mean() >= 0.85
    assert np.median(found.error_bound) < np.median(own.explain(truth.data, confidence=0.9).error_bound)


def test_evaluation_and_audit_ask_the_student(fitted: Any) -> None:
    explainer, rows, truth = fitted
    own = copy(explainer)
    own.calibrate(rows, row_budget=65)
    report = own.evaluate(truth.data, rows=60, row_budget=41)
    assert report.measures["method"] == "unbiased-student"
    helped = report.measures["label_standard_error"]
    bare = copy(own)
    bare._attach(replace(own.fitted, student=None), own.game)
    assert (
        helped < bare.evaluate(truth.data, rows=60, method="unbiased", row_budget=41).measures["label_standard_error"]
    )
    errors = []
    for one in (own, bare):
        judge, away = Judge(one, Pace(1.0, lambda: 0.0, lambda seconds: False), 0.9, 0, 65), []
        for row, values in zip(truth.data[:20], truth.values[:20], strict=True):
            output = one.game.full_values(one.game.rows(row[None]))[0]
            away.append(judge(row, values[:, None], output)["l2"])  # type: ignore[index]
        errors.append(np.mean(away))  # the distance of the audit's labels to the truth
    assert errors[0] < errors[1] / 2


# Saving ---------------------------------------------------------------------------------------------------------------


class Kept(OfFunction):
    """A student of one matrix that can be saved."""

    kind: ClassVar[str] = "matrix"

    def __init__(self, slopes: Array) -> None:
        self.slopes = slopes
        super().__init__(lambda rows: np.tanh(rows @ slopes), np.zeros(len(slopes)))

    def to_tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return {"slopes": torch.from_numpy(self.slopes)}, {"columns": len(self.slopes)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor], facts: dict[str, Any], spec: Any) -> Kept:
        if len(tensors["slopes"]) != facts["columns"] or len(spec.players) != facts["columns"]:
            raise InputError("another game's student")
        return cls(tensors["slopes"].numpy())


def test_a_student_is_saved_with_its_explainer(fitted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explainer, rows, truth = fitted
    with pytest.raises(InputError, match=r"student, a OfFunction, cannot be saved: it has no to_tensors\(\)"):
        explainer.save(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    own = copy(explainer)
    kept = Kept(np.linspace(-1, 1, COLUMNS))
    own._attach(replace(explainer.fitted, student=kept), explainer.game)
    folder, model = own.save(tmp_path / "e"), own.game.model.module
    with pytest.raises(ArtifactError, match="unknown kind of student 'matrix'"):
        cortx.load(folder)
    monkeypatch.setattr(artifact.STUDENTS, "_entries", {"matrix": f"{__name__}:Kept"})
    loaded = cortx.load(folder, model=model)
    assert isinstance(loaded.fitted.student, Kept)
    np.testing.assert_array_equal(loaded.fitted.student.slopes, kept.slopes)
    for one in (own, loaded):
        one.calibrate(rows[:60])
    options = {"confidence": 0.9, "tolerance": 1e-9, "row_budget": 65}
    np.testing.assert_array_equal(
        loaded.explain(truth.data[:5], **options).values, own.explain(truth.data[:5], **options).values
    )
    bare = copy(explainer)
    bare._attach(replace(explainer.fitted, student=None), explainer.game)
    again = cortx.load(bare.save(tmp_path / "bare"), model=model)
    assert again.fitted.student is None
    assert "student" not in json.loads((tmp_path / "bare" / "manifest.json").read_text())


def test_typical_errors_are_not_taken_for_noise() -> None:
    """What the difficulty is told of labels is their deviation, not the wider error from which bounds are read."""
    variance = np.random.default_rng(0).chisquare(15, size=(50, 6, 1)) / 15
    variance[:, 0] = 0.0
    labels = Labels(None, np.zeros((50, 6, 1)), np.zeros((50, 1)), 0, 0.0, "unbiased", errors=3 + 0 * variance)
    told = _errors(replace(labels, variance=variance)).double().numpy()
    assert (told[:, 0] == 0).all()
    np.testing.assert_allclose(np.square(told).sum(axis=1), variance.sum(axis=1), rtol=1e-5)
    assert np.square(told[:, 1:]).std() < variance[:, 1:].std()  # single variances of 16 pairs are known badly
    np.testing.assert_array_equal(_errors(labels), torch.full((50, 6, 1), 3.0))


def test_units_of_answers_and_rounds_do_not_mix() -> None:
    """A network that takes its errors for ten times smaller than they are does not widen refined bounds."""
    rng = np.random.default_rng(0)
    common = np.exp(0.3 * rng.normal(size=(400, 1)))
    scores = [common * np.exp(0.3 * rng.normal(size=(400, 1))) for _ in range(4)]
    found = []
    for unit in (1.0, 10.0):
        rounds = RoundScores(scores[2], scores[3], 64)
        made = Calibration(unit * scores[0], scores[1], 0.0, np.ones(1), 0, rounds=rounds)
        found.append((made.factors(0.9, refined=True)[0] / unit, made.round_factors(0.9)[0]))
        fresh = np.maximum(
            unit * scores[0] / made.factors(0.9, refined=True)[0], scores[2] / made.round_factors(0.9)[0]
        )
        assert 0.89 <= (fresh <= 1).mean() <= 0.91
    np.testing.assert_allclose(found[0], found[1])
    assert found[0][0] > np.quantile(scores[0], 0.9)


def test_a_model_in_float64_is_refined_beyond_what_float32_could_hold(caplog: pytest.LogCaptureFixture) -> None:
    """Outputs of a million, effects of one: rounding to float32 would be larger than the bounds."""
    rng = np.random.default_rng(0)
    table, weights = rng.normal(size=(700, 6)), rng.normal(size=6)
    game = cortx.Game(
        lambda x: 1e6 + np.tanh(x[:, 0] * x[:, 1]) + x @ weights, reference=np.zeros((1, 6)), categorical=()
    )
    recipe = get_recipe("quick")
    assert recipe.student is not None
    short = replace(
        recipe, pretrain=replace(recipe.pretrain, steps=5), attribution=replace(recipe.attribution, steps=30),
        student=replace(recipe.student, steps=100, label_rows=500, label_asks=20_000, width=16, trees=False),
    )  # fmt: skip
    explainer = cortx.CoRTX(short, seed=0).fit(game, table[:600], budget=8_000, progress=False)
    found = explainer.explain(table[600:620], tolerance=1e-4, row_budget=64)
    truth = cortx.shapley(game, table[600:620], "exact", views=0, progress=False)
    assert found.refined.all()
    assert (found.error_bound <= 1e-4).all()
    assert (np.linalg.norm(found.values - truth.values, axis=1) <= found.error_bound).all()
    assert "no more precise in float32" not in caplog.text
