"""The quality report on real small explainers: what it measures, restated in loops, and what its verdict sees."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from math import comb, factorial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.conftest import make_model, make_tiny_recipe
from typer.testing import CliRunner

import cortx
from cortx.errors import ArtifactError, FingerprintError, InputError
from cortx.explainer import evaluation
from cortx.explainer.calibration import noise_radius
from cortx.explainer.evaluation import beta_binomial, chance_range, usual_bound
from cortx.interfaces import cli
from cortx.interfaces.show import show_fit

COLUMNS = 6


def numbers(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, COLUMNS)).astype(np.float32)


def make_game(n_outputs: int = 1, seed: int = 0) -> cortx.Game:
    output = "probability" if n_outputs == 1 else "raw"
    return cortx.Game(make_model(n_outputs=n_outputs, seed=seed), reference=numbers(400, 0), output=output)


@pytest.fixture(scope="module")
def explainer() -> cortx.CoRTX:
    return cortx.CoRTX(make_tiny_recipe()).fit(make_game(), numbers(400, 0), budget=40_000)


@pytest.fixture(scope="module")
def uncalibrated() -> cortx.CoRTX:
    return cortx.CoRTX(make_tiny_recipe()).fit(make_game(), numbers(400, 0), n_labels=60)


def shops(rows: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": generator.normal(size=rows),
            "age": np.where(generator.random(rows) < 0.2, np.nan, generator.normal(size=rows)),
            "kind": generator.choice(["bakery", "bank", "bar"], p=[0.5, 0.3, 0.2], size=rows),
        }
    )


def sales(frame: pd.DataFrame) -> np.ndarray:
    return np.tanh(frame["size"] * (frame["kind"] == "bank") + frame["age"].fillna(0.5)).to_numpy()


@pytest.fixture(scope="module")
def shop_explainer() -> cortx.CoRTX:
    rows = shops(300, 0)
    return cortx.CoRTX(make_tiny_recipe()).fit(cortx.Game(sales, reference=rows), rows, budget=8_000)


def with_fitted(explainer: cortx.CoRTX, **changes: Any) -> cortx.CoRTX:
    other = cortx.CoRTX(explainer.recipe)
    other._attach(replace(explainer.fitted, **changes), explainer.game)
    return other


# The verdict -------------------------------------------------------------------------------------------------


def test_fresh_rows_of_the_same_kind_fit(explainer: cortx.CoRTX) -> None:
    for seed in range(5):
        report = explainer.evaluate(numbers(250, 10 + seed), seed=seed)
        assert (report.verdict, report.fits, report.problems) == ("fits", True, ())
        assert len(report.reasons) == 4
        assert "200 fresh rows" in str(report)


def test_a_handful_of_rows_is_no_proof(explainer: cortx.CoRTX) -> None:
    report = explainer.evaluate(numbers(250, 10), rows=5)
    assert report.verdict == "too few rows"
    assert not report.fits
    assert "give 30 or more" in report.reasons[0]


def test_rows_that_cannot_be_explained_are_drift(shop_explainer: cortx.CoRTX) -> None:
    rows = shops(400, 5)
    rows.loc[:19, "kind"] = "casino"
    report = shop_explainer.evaluate(rows)
    assert report.verdict == "data drifted"
    assert any(
        "5.0% of the rows hold categories or missing values that training never saw" in r for r in report.reasons
    )


def test_shifted_columns_are_called_out(explainer: cortx.CoRTX) -> None:
    rows = numbers(250, 10)
    rows[:, 2] += 1.5
    report = explainer.evaluate(rows)
    assert report.verdict == "data drifted"
    assert [column.column for column in report.drift if column.drifted] == ["x2"]
    assert "column 'x2': median" in report.reasons[0]


def test_a_retrained_model_is_called_out(explainer: cortx.CoRTX) -> None:
    report = explainer.evaluate(numbers(250, 10), game=make_game(seed=1))
    assert report.verdict == "model changed"
    assert set(report.problems) == {"model changed", "bounds fail", "error grew"}
    assert not report.model.same
    assert "this is not the model of the fit" in report.reasons[0]


def test_a_slightly_retrained_model_is_called_out_while_its_bounds_hold(explainer: cortx.CoRTX) -> None:
    model = make_model()
    model[2].weight.data *= 1.01
    game = cortx.Game(model, reference=numbers(400, 0), output="probability")
    assert explainer.evaluate(numbers(250, 10), game=game).problems == ("model changed",)


def test_bounds_that_are_too_narrow_fail(explainer: cortx.CoRTX) -> None:
    calibration = explainer.calibration
    narrow = replace(calibration, rows=0.7 * calibration.rows, bands=0.7 * calibration.bands)
    report = with_fitted(explainer, calibration=narrow).evaluate(numbers(250, 10))
    assert report.problems == ("bounds fail",)
    assert "the 90% bounds held for" in report.reasons[0]


def test_an_error_that_grew_is_called_out(explainer: cortx.CoRTX, uncalibrated: cortx.CoRTX) -> None:
    better = replace(explainer.calibration, mean_l2=explainer.calibration.mean_l2 / 3)
    report = with_fitted(explainer, calibration=better).evaluate(numbers(250, 10))
    assert report.problems == ("error grew",)
    quality = {**uncalibrated.quality_, "l2": uncalibrated.quality_["l2"] / 3}
    report = with_fitted(uncalibrated, quality=quality).evaluate(numbers(250, 10))
    assert report.problems == ("error grew",)
    assert "at validation" in report.reasons[0]


def test_without_calibration_the_rest_works(uncalibrated: cortx.CoRTX) -> None:
    report = uncalibrated.evaluate(numbers(250, 10), slices=["x0"])
    assert report.fits
    assert report.coverage is report.bounds is report.missed is None
    assert report.levels == ()
    assert any("not calibrated" in note for note in report.notes)
    assert report.worst[0].bound is None
    assert report.slices[0].coverage is None
    assert report.to_json()["coverage"] is None


@pytest.mark.parametrize(
    ("options", "verdict", "code"),
    [
        ([], "fits", 0),
        (["--method", "permutation", "--row-budget", "12"], "not judged", 1),
        (["--rows", "20"], "too few rows", 1),
    ],
)
def test_only_fits_passes_strict(
    explainer: cortx.CoRTX,
    options: list[str],
    verdict: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explainer.save(tmp_path / "e.cortx")
    names = [f"x{j}" for j in range(COLUMNS)]
    pd.DataFrame(numbers(120, 10), columns=names).to_csv(tmp_path / "fresh.csv", index=False)
    monkeypatch.setattr(cli, "load_model", lambda name: make_model())
    arguments = [str(tmp_path / "e.cortx"), str(tmp_path / "fresh.csv"), "--model", "scoring:model"]
    for strict in (False, True):
        done = CliRunner().invoke(
            cli.app, ["evaluate", *arguments, *options, "--json", str(tmp_path / "q.json"), *["--strict"] * strict]
        )
        assert done.exit_code == (code if strict else 0), done.output
        assert f"VERDICT: {verdict}" in done.output
        result = json.loads((tmp_path / "q.json").read_text())
        assert (result["verdict"], result["fits"]) == (verdict, verdict == "fits")


# What is measured --------------------------------------------------------------------------------------------


def test_coverage_is_what_it_is_called(explainer: cortx.CoRTX) -> None:
    rows = numbers(150, 10)
    report = explainer.evaluate(rows, rows=150, confidence=0.8)
    truth = cortx.shapley(make_game(), rows, "exact")
    predicted = explainer.explain(rows, confidence=0.8)
    assert predicted.error_bound is not None
    assert predicted.lower_bounds is not None
    assert predicted.upper_bounds is not None
    held, bands, wrong, certain = [], [], 0, 0
    for i in range(150):
        away = np.linalg.norm(predicted.values[i] - truth.values[i])
        held.append(away <= predicted.error_bound[i])
        inside = (predicted.lower_bounds[i] <= truth.values[i]) & (truth.values[i] <= predicted.upper_bounds[i])
        bands.append(inside.all())
        for place in np.flatnonzero(predicted.stable_ranks[i]):
            certain += 1
            wrong += predicted.ranking[i, place] != truth.ranking[i, place]
    found = report.coverage
    assert found is not None
    assert found.bound == pytest.approx(np.mean(held))
    assert found.bands == pytest.approx(np.mean(bands))
    assert found.labels_in_bound == found.bound
    assert found.median_bound == pytest.approx(np.median(predicted.error_bound))
    assert found.median_width == pytest.approx(np.median(predicted.upper_bounds - predicted.lower_bounds))
    assert found.stable_ranks == pytest.approx(certain / (150 * COLUMNS))
    assert found.stable_wrong == pytest.approx(wrong / certain)
    hardest = np.argsort(-predicted.error_bound)[:15]  # one factor for all rows: bounds order like difficulties
    assert found.hardest_bound == pytest.approx(np.mean(np.array(held)[hardest]))
    level = next(level for level in report.levels if level.confidence == 0.8)
    assert (level.bound, level.bands) == (found.bound, found.bands)
    assert [level.confidence for level in report.levels] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    np.testing.assert_array_equal(report.missed[:, 0], ~np.array(held))  # type: ignore[index]


def test_the_worst_rows_come_first(explainer: cortx.CoRTX) -> None:
    rows = numbers(150, 10)
    report = explainer.evaluate(rows, rows=60)
    truth, predicted = cortx.shapley(make_game(), rows, "exact"), explainer.explain(rows, confidence=0.9)
    for worst in report.worst:
        difference = np.abs(predicted.values[worst.row] - truth.values[worst.row])
        assert worst.l2 == pytest.approx(np.linalg.norm(difference))
        assert worst.feature == f"x{difference.argmax()}"
        assert worst.label == pytest.approx(truth.values[worst.row, difference.argmax()])
        assert worst.bound == pytest.approx(predicted.error_bound[worst.row])  # type: ignore[index]
        assert worst.covered == (worst.l2 <= worst.bound)
    assert [worst.l2 for worst in report.worst] == sorted((worst.l2 for worst in report.worst), reverse=True)
    assert report.worst[0].l2 == pytest.approx(report.errors.max())


def noisy_labels(scale: float) -> cortx.Explanation:
    """Labels of 150 rows with normal noise whose l2 norm is about `scale`."""
    exact = cortx.shapley(make_game(), numbers(150, 10), "exact")
    noise = scale / np.sqrt(COLUMNS) * np.random.default_rng(0).normal(size=exact.values.shape)
    error = np.full(exact.values.shape, scale / np.sqrt(COLUMNS))
    return replace(exact, values=exact.values + noise, error_std=error, variance=np.square(error))


def test_what_is_known_of_the_noise_counts_and_not_its_standard_errors(explainer: cortx.CoRTX) -> None:
    """Standard errors allow for what few draws miss: as noise they would hide errors."""
    truth = noisy_labels(0.6 * explainer.quality_["l2"])
    wide = replace(truth, error_std=2 * truth.error_std)
    predicted = explainer.explain(truth.data, confidence=0.9)
    found, blind = (
        evaluation.compare(explainer, predicted, labels).variance for labels in (wide, replace(wide, variance=None))
    )
    np.testing.assert_allclose(found[:, 0], truth.variance.sum(axis=1))
    np.testing.assert_allclose(blind, 4 * found)


def test_banzhaf_values_judge_no_explainer(explainer: cortx.CoRTX) -> None:
    from cortx.estimators.banzhaf import Banzhaf

    for method in ("banzhaf", Banzhaf()):
        with pytest.raises(InputError, match="do not add up to the output"):
            explainer.evaluate(numbers(20, 10), method=method)


def test_noise_of_the_labels_is_no_fault_of_the_bounds(explainer: cortx.CoRTX, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = numbers(150, 10)
    exact = explainer.evaluate(rows, rows=150)
    noisy = noisy_labels(0.6 * explainer.quality_["l2"])
    monkeypatch.setattr(evaluation, "shapley", lambda *arguments, **options: noisy)
    report = explainer.evaluate(rows, rows=150)
    predicted = explainer.explain(rows, confidence=0.9)
    assert predicted.error_bound is not None
    assert noisy.error_std is not None
    away = np.linalg.norm(predicted.values - noisy.values, axis=1)
    radius = noise_radius(noisy.error_std[..., None])[:, 0]
    found = report.coverage
    assert found is not None
    assert found.bound == pytest.approx(np.mean(away - radius <= predicted.error_bound))
    assert found.labels_in_bound == pytest.approx(np.mean(away <= predicted.error_bound))
    assert exact.coverage is not None
    assert found.labels_in_bound < exact.coverage.bound <= found.bound
    assert found.labels_in_bands < exact.coverage.bands <= found.bands
    assert report.fits
    assert any("the labels are noisy" in note for note in report.notes)
    assert report.measures["l2"] > exact.measures["l2"]
    assert report.measures["label_standard_error"] > 0


def test_labels_of_unknown_noise_accuse_nobody(explainer: cortx.CoRTX) -> None:
    rows = numbers(40, 10)
    noisy = cortx.shapley(make_game(), rows, "permutation", row_budget=12)
    assert noisy.error_std is not None
    assert np.isnan(noisy.error_std).all()
    calibration = explainer.calibration
    narrow = replace(calibration, rows=0.5 * calibration.rows, mean_l2=calibration.mean_l2 / 9)
    report = with_fitted(explainer, calibration=narrow).evaluate(rows, method="permutation", row_budget=12)
    assert (report.verdict, report.fits) == ("not judged", False)
    assert set(report.problems) == {"not judged"}
    assert report.coverage is not None
    assert report.coverage.p_value < 1e-4
    assert report.coverage.bound == report.coverage.labels_in_bound
    unjudged = [words for check in report.checks if check.problem for words in check.words]
    assert all("no standard error" in words and "larger row budget" in words for words in unjudged)
    assert report.to_json()["label_standard_error"] is None


@pytest.mark.parametrize("calibrated", [True, False])
def test_labels_noisier_than_the_bounds_show_nothing(
    explainer: cortx.CoRTX, uncalibrated: cortx.CoRTX, calibrated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their noise would hide bounds that fail, and must not pass for an error that grew."""
    tested = explainer if calibrated else uncalibrated

    noisy = noisy_labels(5 * tested.quality_["l2"])
    assert tested.evaluate(numbers(150, 10), rows=150).fits
    monkeypatch.setattr(evaluation, "shapley", lambda *arguments, **options: noisy)
    report = tested.evaluate(numbers(150, 10), rows=150)
    assert (report.verdict, set(report.problems)) == ("not judged", {"not judged"})
    unjudged = [words for check in report.checks if check.problem for words in check.words]
    assert all("noise" in words and "larger row budget" in words for words in unjudged)
    assert report.reasons[: len(unjudged)] == unjudged
    assert any("no column has drifted" in words for words in report.reasons[len(unjudged) :])  # what held is said too
    if calibrated:
        assert "the noise of the label is larger than the bound" in report.reasons[0]
        narrow = replace(explainer.calibration, rows=0 * explainer.calibration.rows)
        assert with_fitted(explainer, calibration=narrow).evaluate(numbers(150, 10), rows=150).verdict == "not judged"


def test_few_calibration_rows_prove_nothing(explainer: cortx.CoRTX) -> None:
    """Bounds of 50% from 4 rows: if they hold for a quarter only, that may be bad luck."""
    calibration = explainer.calibration
    few = replace(calibration, rows=calibration.rows[:4], bands=calibration.bands[:4])
    report = with_fitted(explainer, calibration=few).evaluate(numbers(200, 10), confidence=0.5)
    assert report.verdict == "not judged"
    assert "calibration with 4 rows" in report.reasons[0]
    assert "calibrate() with more rows" in report.reasons[0]
    assert explainer.evaluate(numbers(200, 10), confidence=0.5).fits


def test_copies_of_a_few_rows_neither_prove_nor_accuse(explainer: cortx.CoRTX) -> None:
    """Honest 90% bounds miss two rows once in a hundred times, however often the two are copied."""
    fresh = numbers(200, 10)
    missed = explainer.evaluate(fresh).missed
    assert missed is not None
    copies = np.repeat(fresh[missed[:, 0]][:2], 100, axis=0)
    report = explainer.evaluate(copies)
    assert report.coverage is not None
    assert report.coverage.bound == 0
    assert "bounds fail" not in report.problems
    assert "too few rows" in report.problems
    assert any("200 labelled rows, of which 2 differ, are too few" in words for words in report.reasons)


def test_what_was_found_comes_before_what_was_not_judged(explainer: cortx.CoRTX) -> None:
    """A changed model is called out whatever the labels are like."""
    rows = numbers(60, 10)
    report = explainer.evaluate(rows, game=make_game(seed=1), method="permutation", row_budget=12)
    assert report.verdict == "model changed"
    assert report.problems[-1] == "not judged"
    assert not report.fits


def test_slices_of_numbers_categories_and_foreign_columns(shop_explainer: cortx.CoRTX) -> None:
    fresh = shops(200, 1)
    report = shop_explainer.evaluate(fresh, rows=120, slices=["kind", "age"])
    by = {name: [part for part in report.slices if part.column == name] for name in ("kind", "age")}
    assert [part.part for part in by["kind"]] == ["bakery", "bank", "bar"]
    assert len(by["age"]) == 5
    assert by["age"][-1].part == "missing"
    assert by["age"][0].part.startswith("x <= ")
    for parts in by.values():
        assert sum(part.rows for part in parts) == 120
        assert sum(part.rows * part.l2 for part in parts) == pytest.approx(120 * report.measures["l2"])
        covered = sum(part.rows * part.coverage for part in parts if part.coverage is not None)
        assert report.coverage is not None
        assert covered == pytest.approx(120 * report.coverage.bound)
    sizes = np.arange(200) % 12
    report = shop_explainer.evaluate(fresh, rows=200, slices={"team": np.where(sizes < 6, "A", "B"), "month": sizes})
    assert [(part.column, part.part, part.rows) for part in report.slices[:2]] == [
        ("team", "A", 102),
        ("team", "B", 98),
    ]
    assert [part.rows for part in report.slices[2:]] == [51, 51, 50, 48]


def test_categories_that_training_never_saw(shop_explainer: cortx.CoRTX) -> None:
    fresh = shops(200, 1)
    fresh.loc[:1, "kind"] = "zoo"
    report = shop_explainer.evaluate(fresh)
    assert report.measures["rows"] == 198
    assert report.fits
    assert any("2 of 200 rows cannot be explained" in note for note in report.notes)
    fresh.loc[:99, "kind"] = "zoo"
    report = shop_explainer.evaluate(fresh)
    assert report.verdict == "data drifted"
    assert "are new to it: 'zoo'" in report.reasons[0]
    with pytest.raises(InputError, match="never saw: 'zoo'"):
        shop_explainer.evaluate(fresh.assign(kind="zoo"))


def test_several_outputs() -> None:
    game = make_game(n_outputs=3)
    explainer = cortx.CoRTX(make_tiny_recipe()).fit(game, numbers(300, 0), budget=30_000)
    report = explainer.evaluate(numbers(100, 10), rows=100)
    assert report.fits
    assert report.errors.shape == report.difficulty.shape == (100, 3)
    found = report.coverage
    assert found is not None
    by_output = 1 - report.missed.mean(axis=0)  # type: ignore[union-attr]
    assert found.bound == pytest.approx(by_output.mean())
    assert (found.worst_output, found.worst_bound) == (str(by_output.argmin()), pytest.approx(by_output.min()))
    assert report.worst[0].output in ("0", "1", "2")
    with pytest.raises(FingerprintError, match="1 outputs, the explainer was fitted for 3"):
        explainer.evaluate(numbers(100, 10), game=make_game())
    json.dumps(report.to_json(), allow_nan=False)


# The law of coverage -----------------------------------------------------------------------------------------


def test_beta_binomial_is_exact() -> None:
    def beta(a: int, b: int) -> Fraction:
        return Fraction(factorial(a - 1) * factorial(b - 1), factorial(a + b - 1))

    for count, n, rank in ((1, 1, 1), (7, 10, 9), (12, 20, 3)):
        a, b = rank, n + 1 - rank
        expected = [float(comb(count, k) * beta(k + a, count - k + b) / beta(a, b)) for k in range(count + 1)]
        np.testing.assert_allclose(beta_binomial(count, n, rank), expected, rtol=1e-9)


def test_covered_rows_follow_it() -> None:
    generator = np.random.default_rng(0)
    count, n, rank, repeats = 60, 50, 46, 4_000
    scores = np.sort(generator.random((repeats, n)), axis=1)
    covered = (generator.random((repeats, count)) <= scores[:, [rank - 1]]).sum(axis=1)
    chances = beta_binomial(count, n, rank)
    assert covered.mean() == pytest.approx((chances * np.arange(count + 1)).sum(), abs=0.3)
    p_values = np.cumsum(chances)[covered]
    assert (p_values < 0.01).mean() <= 0.015
    low, high = chance_range(count, n, rank)
    assert 0.93 <= ((covered / count >= low) & (covered / count <= high)).mean() <= 0.99


# What it is made of ------------------------------------------------------------------------------------------


def test_json_is_strict_and_complete(explainer: cortx.CoRTX) -> None:
    result = explainer.evaluate(numbers(60, 10), slices=["x1"]).to_json()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert {"rows", "method", "l2", "label_norm", "label_standard_error", "explain_evaluations"} <= set(result)
    assert {"verdict", "fits", "reasons", "coverage", "worst_rows", "slices", "drift", "model"} <= set(result)
    assert result["verdict"] == "fits"
    assert len(result["drift"]) == COLUMNS
    assert result["explain_evaluations"] == 60


def test_all_that_the_model_is_asked_is_reported(shop_explainer: cortx.CoRTX) -> None:
    """Labels, explanations and the comparison of models; the clock that measures explaining asks nothing."""
    asked = 0

    def counted(frame: pd.DataFrame) -> np.ndarray:
        nonlocal asked
        asked += len(frame)
        return sales(frame)

    game = cortx.Game(counted, reference=shops(300, 0))
    assert game.n_outputs == 1  # asks for the base value
    asked = 0
    report = shop_explainer.evaluate(shops(60, 4), game=game)
    assert asked == report.measures["evaluations"]
    rest = asked - report.measures["label_evaluations"] - report.measures["explain_evaluations"]
    assert 0 < rest <= 40  # the comparison of models


def test_rows_that_cannot_be_wrong_judge_nothing() -> None:
    """Nine rows of ten are the reference: bounds hold for the others, and another model is noticed."""
    rng = np.random.default_rng(0)

    def table(rows: int) -> np.ndarray:
        return rng.normal(size=(rows, COLUMNS)) * (rng.random((rows, 1)) < 0.1)

    def model(rows: np.ndarray) -> np.ndarray:
        return np.tanh(rows[:, 0] * rows[:, 1] + rows[:, 2]) + rows[:, 3] * (rows[:, 4] > 0.5)

    game = cortx.Game(model, reference="zero")
    explainer = cortx.CoRTX(make_tiny_recipe(), seed=0).fit(game, table(1_500), budget=12_000)
    fresh = table(3_000)
    open_ = (fresh != 0).any(axis=1)
    truth = cortx.shapley(game, fresh, "exact", progress=False, views=0)
    answer = explainer.explain(fresh, confidence=0.9)
    assert answer.error_bound is not None
    held = np.linalg.norm(answer.values - truth.values, axis=1) <= answer.error_bound
    assert held[~open_].all()
    assert answer.error_bound[~open_].max() == 0
    assert 0.8 <= held[open_].mean() < 1  # by 50 rows or so that calibrate: a standard deviation of 0.05
    report = explainer.evaluate(fresh)
    assert report.measures["rows"] == 200
    assert any("cannot be wrong; they were left out" in note for note in report.notes)
    assert report.verdict == "fits"
    assert (
        explainer.evaluate(fresh, game=cortx.Game(lambda x: -5 * model(x), reference="zero")).verdict == "model changed"
    )


def test_undefined_measures_are_null(explainer: cortx.CoRTX) -> None:
    reference = np.asarray(explainer.fitted.spec.absent, dtype=np.float64)
    report = explainer.evaluate(np.repeat(reference, 3, axis=0))
    assert np.isnan(report.measures["relative_l2"])
    assert report.to_json()["relative_l2"] is None
    json.dumps(report.to_json(), allow_nan=False)
    assert report.coverage is not None
    assert report.coverage.bound == report.coverage.bands == 1


def test_a_saved_explainer_says_the_same(explainer: cortx.CoRTX, tmp_path: Path) -> None:
    loaded = cortx.load(explainer.save(tmp_path / "e"))
    assert loaded.fitted.profile == explainer.fitted.profile
    rows = numbers(80, 10)
    with pytest.raises(InputError, match="labels rows with the model; give game="):
        loaded.evaluate(rows)
    game = make_game()
    assert game.n_outputs == 1  # asks for the base value, which the first explainer's game already knows
    first, second = explainer.evaluate(rows).to_json(), loaded.evaluate(rows, game=game).to_json()
    for result in (first, second):
        for key in ("label_seconds_per_row", "explain_seconds_per_row"):
            del result[key]
    assert first == second
    assert loaded.game is None
    manifest = tmp_path / "e" / "manifest.json"
    facts = json.loads(manifest.read_text())
    del facts["profile"]
    manifest.write_text(json.dumps(facts))
    with pytest.raises(ArtifactError, match=r"cannot be rebuilt \('profile'\)"):
        cortx.load(tmp_path / "e")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows must be a whole number of at least 1, got 0"),
        ({"confidence": 1.5}, "between 0 and 1, got 1.5"),
        ({"confidence": 0.999}, "needs more calibration rows"),
        ({"slices": "x0"}, r"must list columns, got 'x0'; use \['x0'\]"),
        ({"slices": ["x9"]}, "no column 'x9'"),
        ({"slices": {"team": [1, 2]}}, r"has shape \(2,\), expected one value for each of the 50 rows"),
        ({"method": "guess"}, "'guess'"),
        ({"method": None}, "must be the name of an estimator or an Estimator, got NoneType"),
    ],
)
def test_refuses(explainer: cortx.CoRTX, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        explainer.evaluate(numbers(50, 10), **options)


def test_a_usual_bound_asks_nothing_of_the_model(explainer: cortx.CoRTX) -> None:
    rows = numbers(200, 10)
    game = explainer.game
    assert game is not None
    spent = game.evaluations
    bound = usual_bound(explainer, rows, 0.9)
    assert game.evaluations == spent
    assert bound == pytest.approx(float(np.median(explainer.explain(rows, confidence=0.9).error_bound)), rel=0.3)


def test_a_fit_shows_its_learning_curve_and_calibration(
    explainer: cortx.CoRTX, uncalibrated: cortx.CoRTX, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = [{"labels": 100, "evaluations": 7_000, "l2": 0.25}, {"labels": 400, "evaluations": 30_000, "l2": 0.125}]
    show_fit(with_fitted(explainer, curve=curve), Path("e.cortx"), numbers(400, 0))
    shown = " ".join(capsys.readouterr().out.split())
    assert "How the error fell" in shown
    assert "400 30,000 0.125" in shown
    assert f"Calibrated on {len(explainer.calibration)} rows, up to a confidence of 0." in shown
    assert "the median 90% bound on a row's error is" in shown
    show_fit(uncalibrated, Path("e.cortx"), numbers(400, 0))
    shown = capsys.readouterr().out
    assert "Not calibrated" in shown
    assert "How the error fell" not in shown


def test_a_constant_model_has_bounds_that_hold() -> None:
    rng = np.random.default_rng(0)
    game = cortx.Game(lambda x: np.full(len(x), 0.1), reference=np.zeros(4), categorical=())
    explainer = cortx.CoRTX("quick", seed=0).fit(game, rng.normal(size=(300, 4)), budget=3_000, progress=False)
    report = explainer.evaluate(rng.normal(size=(60, 4)))
    assert report.verdict != "bounds fail"
