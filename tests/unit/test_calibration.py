"""Conformal calibration: the promised share of fresh rows, whatever the errors look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortx.errors import BudgetError, InputError
from cortx.explainer import calibration as module
from cortx.explainer.calibration import Calibration, calibrate, noise_radius

Array = np.ndarray


def world(rng: np.random.Generator, count: int, noise: float = 0.0) -> tuple[Array, Array, Array, Array, Array]:
    """Heavy-tailed errors whose size varies by row, (rows, 5, 2): residuals to labels, label errors, sizes, truth."""
    size = np.exp(rng.normal(size=(count, 1, 1)))
    true = size * rng.standard_t(3, size=(count, 5, 2))
    errors = np.full_like(true, noise)
    guessed = size * np.exp(0.3 * rng.normal(size=(count, 5, 2)))  # a difficulty that is only roughly right
    return true + noise * rng.normal(size=true.shape), errors, guessed, guessed.mean(axis=1), true


def coverage(make: Callable[..., Calibration], confidence: float, noise: float = 0.0, rounds: int = 150) -> Array:
    """The mean share of fresh rows that bounds cover, (rows and bands, outputs), over many calibrations of 60 rows."""
    rng = np.random.default_rng(0)
    active = np.ones((60, 5), dtype=bool)
    shares = []
    for _ in range(rounds):
        residual, errors, typical, typical_row, _ = world(rng, 60, noise)
        made = make(residual, errors, typical, typical_row, active, 0)
        _, _, typical, typical_row, true = world(rng, 300)
        rows, bands = made.factors(confidence)
        inside = (np.abs(true) <= typical * bands).all(axis=1)
        shares.append([(np.linalg.norm(true, axis=1) <= typical_row * rows).mean(axis=0), inside.mean(axis=0)])
    return np.mean(shares, axis=0)


def assert_covers(make: Callable[..., Calibration], confidence: float = 0.9) -> None:
    """Between the confidence and one rank more; the mean of 150 calibrations wanders by 0.004."""
    shares = coverage(make, confidence)
    assert (shares >= confidence - 0.012).all(), shares
    assert (shares <= confidence + 1 / 61 + 0.012).all(), shares


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95])
def test_bounds_cover_the_promised_share(confidence: float) -> None:
    assert_covers(calibrate, confidence)


def _forgetful(*arguments: object) -> Calibration:
    """Drops the largest tenth of the scores, as one does who removes outliers."""
    made = calibrate(*arguments)  # type: ignore[arg-type]
    kept = len(made) - len(made) // 10
    return replace(made, rows=np.sort(made.rows, axis=0)[:kept], bands=np.sort(made.bands, axis=0)[:kept])


def _trained_on(residual: Array, *others: object) -> Calibration:
    """Calibrates on rows that trained: their errors are smaller than those of fresh ones."""
    return calibrate(0.7 * residual, *others)  # type: ignore[arg-type]


def _one_by_one(residual: Array, errors: Array, typical: Array, *others: object) -> Calibration:
    """Scores of one feature instead of the worst: bands that do not hold at once."""
    made = calibrate(residual, errors, typical, *others)  # type: ignore[arg-type]
    return replace(made, bands=np.sort(np.abs(residual[:, 0]) / typical[:, 0], axis=0))


@pytest.mark.parametrize("broken", [_forgetful, _trained_on, _one_by_one])
def test_a_broken_calibration_is_noticed(broken: Callable[..., Calibration]) -> None:
    with pytest.raises(AssertionError):
        assert_covers(broken)


@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_noise_in_the_labels_never_makes_bounds_too_small(noise: float) -> None:
    assert (coverage(calibrate, 0.9, noise, rounds=60) >= 0.89).all()


def test_the_noise_of_labels_is_taken_from_the_confidence() -> None:
    rng = np.random.default_rng(0)
    residual, errors, typical, typical_row, _ = world(rng, 60)
    active = np.ones((60, 5), dtype=bool)
    exact = calibrate(residual, errors, typical, typical_row, active, 7)
    noisy = calibrate(residual, errors + 0.5, typical, typical_row, active, 7)
    assert (exact.noise_risk, exact.evaluations, len(exact)) == (0.0, 7, 60)
    assert noisy.noise_risk > 0
    assert noisy.most_confident < exact.most_confident
    assert (noisy.bands > exact.bands).all()
    np.testing.assert_allclose(noisy.mean_l2, exact.mean_l2)


@given(
    scores=st.lists(st.floats(0, 100, allow_nan=False), min_size=2, max_size=40),
    confidence=st.floats(0.05, 0.95),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_factor_is_the_right_score(scores: list[float], confidence: float) -> None:
    """A slow oracle: the smallest score that at least confidence * (n + 1) scores do not exceed."""
    n = len(scores)
    made = Calibration(np.sort(scores)[:, None], np.sort(scores)[:, None], 0.0, np.zeros(1), 0)
    enough = [score for score in scores if sum(other <= score for other in scores) >= confidence * (n + 1) - 1e-9]
    if not enough:
        with pytest.raises(InputError, match=r"support at most"):
            made.factors(confidence)
    else:
        rows, bands = made.factors(confidence)
        assert rows[0] == bands[0] == min(enough)


@given(
    scores=st.lists(st.tuples(st.floats(0, 100, allow_nan=False), st.integers(1, 9)), min_size=2, max_size=30),
    confidence=st.floats(0.05, 0.95),
    fresh=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_score_counts_as_often_as_its_weight_says(
    scores: list[tuple[float, int]], confidence: float, fresh: int
) -> None:
    """A slow oracle: every score written out once for each unit of its weight, and infinity for the fresh row."""
    column = np.array([[score] for score, _ in scores])
    weights = np.array([float(weight) for _, weight in scores])
    made = Calibration(column, column[::-1], 0.0, np.zeros(1), 0, weights, float(fresh))
    copies = [score for score, weight in scores for _ in range(weight)]
    needed = confidence * (len(copies) + fresh) - 1e-8
    enough = [score for score in copies if sum(other <= score for other in copies) >= needed]
    if not enough:
        with pytest.raises(InputError, match=r"support at most"):
            made.factors(confidence)
    else:
        assert made.factors(confidence)[0][0] == min(enough)


def test_equal_weights_are_no_weights() -> None:
    residual, errors, typical, typical_row, _ = world(np.random.default_rng(0), 60)
    active = np.ones((60, 5), dtype=bool)
    plain = calibrate(residual, errors, typical, typical_row, active, 0)
    weighted = calibrate(residual, errors, typical, typical_row, active, 0, np.full(60, 7.0))
    assert (weighted.effective_rows, weighted.rank(0.9)) == (plain.effective_rows, plain.rank(0.9)) == (60, 55)
    assert weighted.most_confident == pytest.approx(plain.most_confident)
    for confidence in (0.1, 0.5, 0.9, 0.98):
        np.testing.assert_array_equal(weighted.factors(confidence), plain.factors(confidence))


def clusters(rng: np.random.Generator) -> tuple[Array, Array]:
    """Scores and copies of 600 different rows: a few common ones, which are harder the more common they are."""
    copies = np.where(rng.random(600) < 0.1, rng.integers(5, 40, size=600), 1).astype(np.float64)
    return np.exp(rng.normal(size=600)) * (1 + copies / 10), copies


@pytest.mark.parametrize("heaviest", [0.0, 0.6], ids=["many common rows", "one row is 60% of the data"])
def test_bounds_cover_the_traffic_of_a_table_with_repeats(heaviest: float) -> None:
    """Different rows are drawn with equal chances, traffic brings them as often as the table has them."""
    rng, shares, unweighted = np.random.default_rng(0), [], []
    for _ in range(300):
        scores, copies = clusters(rng)
        frequent = np.zeros(600, dtype=bool)
        if heaviest:  # the hardest row of all
            copies[0], frequent[0] = heaviest / (1 - heaviest) * copies[1:].sum(), True
            scores[0] = scores.max() + 1
        chosen = rng.permutation(np.arange(1, 600))[:150]
        # The light rows stand for all light ones, the frequent one for itself.
        weights = copies[chosen] * (copies[~frequent].sum() / copies[chosen].sum())
        if heaviest:
            chosen, weights = np.append(chosen, 0), np.append(weights, copies[0])
        column = scores[chosen, None]
        ones = np.ones((len(chosen), 1, 1))
        made = calibrate(
            column[..., None], 0 * ones, ones, ones[..., 0], ones[..., 0] > 0, 0, weights, frequent[chosen]
        )
        shares.append(np.average(scores <= made.factors(0.9)[0][0], weights=copies))
        plain = Calibration(column, column, 0.0, np.zeros(1), 0)
        unweighted.append(np.average(scores <= plain.factors(0.9)[0][0], weights=copies))
    slack = 3 * np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) >= 0.9 - slack, (np.mean(shares), slack)
    assert np.mean(unweighted) < 0.85  # what counting every different row once came to


def test_round_confidences_are_not_spoiled_by_floats() -> None:
    ten = np.arange(1.0, 10.0)[:, None]  # 0.9 * 10 ranks is the ninth of nine, not more
    assert Calibration(ten, ten, 0.0, np.zeros(1), 0).factors(0.9)[0] == 9


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1, 2, True])
def test_confidence_is_a_share(confidence: float) -> None:
    ten = np.arange(1.0, 10.0)[:, None]
    with pytest.raises(InputError, match="between 0 and 1"):
        Calibration(ten, ten, 0.0, np.zeros(1), 0).factors(confidence)


def test_labels_without_standard_errors_are_refused_and_single_ones_count_as_infinitely_wrong() -> None:
    residual, errors, typical, typical_row, _ = world(np.random.default_rng(0), 20)
    active = np.ones((20, 5), dtype=bool)
    errors[3, 2, 0] = np.nan
    made = calibrate(residual, errors, typical, typical_row, active, 0)
    assert np.isinf(made.rows).sum(axis=0).tolist() == np.isinf(made.bands).sum(axis=0).tolist() == [1, 1]
    others = np.delete(np.arange(20), 3)
    alone = calibrate(residual[others], errors[others], typical[others], typical_row[others], active[others], 0)
    np.testing.assert_array_equal(made.bands[others], alone.bands)
    assert made.most_confident == pytest.approx(19 / 21)
    with pytest.raises(InputError, match=r"support at most 0\.904"):
        made.factors(0.92)
    errors[4] = np.nan
    with pytest.raises(InputError, match="2 of 20 calibration labels have no standard errors"):
        calibrate(residual, errors, typical, typical_row, active, 0)
    with pytest.raises(BudgetError, match="at least 2"):
        calibrate(residual[:1], errors[:1], typical[:1], typical_row[:1], np.ones((1, 5), dtype=bool), 0)


@pytest.mark.parametrize("distance", [0.0, 0.5, 5.0])
def test_distances_seen_through_noise_are_not_underestimated(distance: float) -> None:
    rng = np.random.default_rng(0)
    errors = np.exp(rng.normal(size=(1, 8, 1))) * np.ones((20_000, 1, 1))
    offset = rng.normal(size=(20_000, 8, 1))
    offset *= distance / np.linalg.norm(offset, axis=1, keepdims=True)
    seen = np.linalg.norm(offset + errors * rng.normal(size=errors.shape), axis=1)
    risk = 0.02
    farthest = module._farthest(seen, errors, risk)
    assert (farthest < distance).mean() <= risk
    radius = noise_radius(errors, risk)
    assert (np.linalg.norm(errors * rng.normal(size=errors.shape), axis=1) > radius).mean() <= risk


def test_the_unit_of_weights_does_not_matter() -> None:
    scores = np.arange(1.0, 101.0)[:, None]
    plain = Calibration(scores, scores, 0.0, np.zeros(1), 0)
    for unit in (1e-12, 1.0, 1e12):
        made = Calibration(scores, scores, 0.0, np.zeros(1), 0, weights=np.full(100, unit), fresh=unit)
        assert made.factors(0.9)[0] == plain.factors(0.9)[0]
        assert made.effective_rows == 100
