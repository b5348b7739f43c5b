"""What an explainer's prediction is worth as a prior, and what it cannot spoil. Axioms: test_estimators.py."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.test_estimators import Counting, Flat, few, replicas, shapley_by_permutations, smooth_game

from cortx import Game, shapley
from cortx.errors import BudgetError, InputError
from cortx.estimators.amortized import Amortized, Refinement, nested_pairs
from cortx.estimators.block import Block, Prior
from cortx.estimators.coalitions import pair_count, subsets_of_size
from cortx.estimators.kernel_shap import KernelShap


class Known:
    """An explainer that says the same of its rows, whatever they are."""

    def __init__(self, values: np.ndarray, scales: np.ndarray) -> None:
        self.values, self.scales = values, scales

    def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shape = (*rows.shape, outputs.shape[1])
        return tuple(np.broadcast_to(part[..., None], shape) for part in (self.values, self.scales))  # type: ignore


class OfRows(Flat):
    """An explainer whose answer depends on the row."""

    def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = np.repeat(0.3 * rows[..., None], outputs.shape[1], axis=2) + outputs[:, None, :] / 50
        return values, 0.1 + 0.05 * np.abs(values)


def problem(n: int, seed: int, rows: int) -> tuple[Game, np.ndarray, np.ndarray, float]:
    """A game in many rows, its exact values and their size."""
    game, X = replicas(smooth_game(n, seed=seed), rows)
    exact = shapley(game, X[:1], "exact", views=0).values[0]
    return game, X, exact, float(exact.std())


def good(exact: np.ndarray, size: float, rows: int, share: float = 0.03) -> Known:
    noise = share * size * np.random.default_rng(0).normal(size=(rows, len(exact)))
    return Known(exact + noise, np.full(noise.shape, share * size))


def nonsense(exact: np.ndarray, size: float, rows: int, claimed: float) -> Known:
    noise = np.random.default_rng(1).normal(size=(rows, len(exact)))
    return Known(2 * size * noise, np.full(noise.shape, claimed * size))


def squared_error(explanation: Any, exact: np.ndarray) -> float:
    return float(((explanation.values - exact) ** 2).mean())


# A prior helps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "seed"), [(10, 0), (11, 3), (12, 2)])
def test_a_good_prior_is_worth_many_evaluations(n: int, seed: int) -> None:
    game, X, exact, size = problem(n, seed, rows=200)
    explainer = good(exact, size, len(X))
    kernel = squared_error(shapley(game, X, "kernel", row_budget=5 * n), exact)
    found = shapley(game, X, "amortized", explainer=explainer, row_budget=5 * n)
    assert squared_error(found, exact) < kernel / 3
    assert squared_error(found, exact) < 1.1 * ((explainer.values - exact) ** 2).mean()
    assert found.method == "amortized"


@pytest.mark.parametrize("seed", [0, 3])
def test_evaluations_help_a_good_prior(seed: int) -> None:
    game, X, exact, size = problem(10, seed, rows=300)
    explainer = good(exact, size, len(X), share=0.1)
    errors = [
        squared_error(shapley(game, X, "amortized", explainer=explainer, row_budget=budget), exact)
        for budget in (3, 60, 120, 270, 800, 1024)
    ]
    assert errors[0] < 1.2 * ((explainer.values - exact) ** 2).mean()
    assert all(later < earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-20


def test_scales_say_who_is_uncertain() -> None:
    """Two players are known badly and told so: a few evaluations go where they are needed."""
    game, X, exact, size = problem(10, 0, rows=300)
    scales = np.full((len(X), 10), 0.01 * size)
    scales[:, [2, 5]] = 0.3 * size
    values = exact + scales * np.random.default_rng(0).normal(size=scales.shape)
    told = shapley(game, X, "amortized", explainer=Known(values, scales), row_budget=31)
    untold = Known(values, np.full(scales.shape, np.sqrt((scales**2).mean())))
    assert squared_error(told, exact) < squared_error(
        shapley(game, X, "amortized", explainer=untold, row_budget=31), exact
    )


@pytest.mark.parametrize("budget", [3, 30, 100, 400])
def test_errors_are_honest_where_the_scales_are(budget: int) -> None:
    """Scales are right on average but not row by row, which is how an explainer's are believed."""
    game, X, exact, size = problem(10, 3, rows=300)
    factor = np.exp(0.5 * np.random.default_rng(2).normal(size=(len(X), 1)))
    explainer = good(exact, size, len(X), share=0.1)
    found = shapley(
        game, X, "amortized", explainer=Known(exact + factor * (explainer.values - exact), explainer.scales),
        row_budget=budget,
    )  # fmt: skip
    assert 0.5 < squared_error(found, exact) / (found.error_std**2).mean() < 1.5


# A prior does no harm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("claimed", [0.0, 0.01, 1.0])
@pytest.mark.parametrize(("n", "seed", "budget"), [(10, 0, 500), (10, 3, 700), (12, 2, 900)])
def test_a_nonsense_prior_is_overruled(n: int, seed: int, budget: int, claimed: float) -> None:
    game, X, exact, size = problem(n, seed, rows=250)
    kernel = squared_error(shapley(game, X, "kernel", row_budget=budget), exact)
    explainer = nonsense(exact, size, len(X), claimed)
    assert squared_error(shapley(game, X, "amortized", explainer=explainer, row_budget=budget), exact) < 1.3 * kernel


@pytest.mark.parametrize("n", [3, 4, 5, 6, 7])
def test_all_coalitions_leave_nothing_to_the_prior(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortx.estimators.amortized.enumerable", lambda n_players, budget: False)
    values = np.random.default_rng(n).normal(size=2**n)
    game, X = replicas(values, 3)
    found = shapley(game, X, "amortized", explainer=nonsense(values[:n], 1.0, 3, 0.01), row_budget=2**n - 1)
    np.testing.assert_allclose(found.values, np.tile(shapley_by_permutations(values), (3, 1)), atol=1e-9)
    np.testing.assert_allclose(found.error_std, 0, atol=1e-9)


@given(
    n=st.integers(3, 7),
    pairs=st.integers(1, 12),
    claimed=st.sampled_from([0.0, 1e-12, 1.0, 1e9]),
    additive=st.booleans(),
    right=st.booleans(),
)
@few
def test_corner_cases_are_finite(n: int, pairs: int, claimed: float, additive: bool, right: bool) -> None:
    """One pair, fewer pairs than players, no residual, scales of zero, scales out of all proportion."""
    weights = np.linspace(-1, 1, n)
    game = Game(lambda rows: rows @ weights if additive else np.zeros(len(rows)), reference=np.zeros(n))
    X = np.ones((2, n)) * [[1.0], [2.0]]
    exact = X * weights if additive else np.zeros_like(X)
    explainer = Known(exact if right else exact + weights**2, np.full(X.shape, claimed))
    for unbiased in (False, True):
        if unbiased and pairs < 4:
            continue
        found = shapley(game, X, "amortized", explainer=explainer, unbiased=unbiased, row_budget=2 * pairs + 1)
        assert np.isfinite(found.values).all()
        # So few independent draws say too little of their spread, unless they are all there are.
        known = not unbiased or found.exact.all()
        assert (np.isfinite if known else np.isnan)(found.error_std).all()
        np.testing.assert_allclose(found.values.sum(axis=1), exact.sum(axis=1), atol=1e-9)
        if right:
            np.testing.assert_allclose(found.values, exact, atol=1e-8)


def test_one_player_may_be_known_perfectly() -> None:
    game, X, exact, size = problem(8, 0, rows=50)
    scales = np.full(X.shape, size)
    scales[:, 0] = 0
    found = shapley(game, X, "amortized", explainer=Known(np.where(scales == 0, exact, 0.0), scales), row_budget=41)
    assert np.isfinite(found.values).all()
    assert np.abs(found.values[:, 0] - exact[0]).max() < 0.1 * size


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e6])
def test_units_do_not_matter(unbiased: bool, factor: float) -> None:
    values = smooth_game(9)
    prior, options = np.linspace(-1, 1, 9)[None], {"unbiased": unbiased, "row_budget": 60}
    once = shapley(*replicas(values, 4), "amortized", explainer=Known(prior, np.full((1, 9), 0.3)), **options)  # type: ignore
    explainer = Known(factor * prior, np.full((1, 9), 0.3 * abs(factor)))
    scaled = shapley(*replicas(factor * values, 4), "amortized", explainer=explainer, **options)  # type: ignore
    np.testing.assert_allclose(scaled.values, factor * once.values, rtol=1e-8, atol=1e-8 * abs(factor))
    np.testing.assert_allclose(scaled.error_std, abs(factor) * once.error_std, rtol=1e-6)


# Unbiased ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "copies"), [(4, (3, 2)), (5, (2, 1)), (6, (10, 4, 3))])
def test_the_expectation_over_all_pairs_is_exact(n: int, copies: tuple[int, ...], monkeypatch: Any) -> None:
    """Every pair as often as its probability 2 / ((n-1) C(n,s)) asks for, in both halves: no chance is left."""
    tables = [subsets_of_size(n, size)[: pair_count(n, size)] for size in range(1, n // 2 + 1)]
    pairs = np.concatenate([np.repeat(table, times, axis=0) for table, times in zip(tables, copies, strict=True)])
    monkeypatch.setattr("cortx.estimators.amortized.enumerable", lambda n_players, budget: False)
    monkeypatch.setattr(
        "cortx.estimators.amortized.random_subsets",
        lambda keys, sizes: np.broadcast_to(np.concatenate([pairs, pairs]), keys.shape).copy(),
    )
    values = np.random.default_rng(n).normal(size=2**n)
    game, X = replicas(values, 2)
    explainer = nonsense(values[:n], 1.0, 2, 0.1)
    found = shapley(game, X, "amortized", explainer=explainer, unbiased=True, row_budget=4 * len(pairs) + 1)
    np.testing.assert_allclose(found.values, np.tile(shapley_by_permutations(values), (2, 1)), atol=1e-9)


@pytest.mark.parametrize("budget", [9, 24, 61, 81])
@pytest.mark.parametrize("claimed", [0.01, 1.0])
@pytest.mark.parametrize("n", [7, 8])
def test_unbiased_whatever_the_prior(n: int, claimed: float, budget: int) -> None:
    values = smooth_game(n, seed=3) + np.random.default_rng(3).normal(size=2**n)
    game, X = replicas(values, 1000)
    exact = shapley(game, X[:1], "exact", views=0).values[0]
    wrong = np.linspace(3, -3, n) * exact.std()
    explainer = Known(wrong, np.full(n, claimed * exact.std()))
    found = shapley(game, X, "amortized", explainer=explainer, unbiased=True, row_budget=budget)
    standard = (found.values.mean(axis=0) - exact) / (found.values.std(axis=0) / np.sqrt(len(X)))
    assert np.abs(standard).max() < 3
    if budget < 2 * 32 + 1:  # fewer pairs say too little of their spread
        assert np.isnan(found.error_std).all()
    else:  # larger than plain, so that tails hold (test_tails.py)
        assert 0.05 < squared_error(found, exact) / (found.error_std**2).mean() < 1.4
    np.testing.assert_allclose(found.values.sum(axis=1), values[-1] - values[0], atol=1e-9)


def test_a_good_prior_steadies_the_unbiased_estimate() -> None:
    game, X, exact, size = problem(10, 0, rows=400)
    helped, plain, misled = (
        squared_error(shapley(game, X, Amortized(unbiased=True), explainer=explainer, row_budget=31), exact)
        for explainer in (good(exact, size, len(X)), Flat(), nonsense(exact, size, len(X), 0.01))
    )
    assert helped < plain / 2
    assert plain < misled


def test_a_coalition_that_is_drawn_twice_is_paid_once() -> None:
    model = Counting(smooth_game(4))
    game = Game(model, reference=np.zeros(4))
    found = shapley(game, np.ones((1, 4)), "amortized", explainer=Flat(), unbiased=True, row_budget=13)
    assert found.evaluations == sum(model.calls) <= 14
    game, X = replicas(smooth_game(5), 50)
    found = shapley(game, X, "amortized", explainer=Flat(), unbiased=True, row_budget=27)
    assert found.evaluations < 1 + 50 * 27


# Rounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("helpful", [False, True])
def test_rounds_start_from_what_is_known(helpful: bool, unbiased: bool) -> None:
    """Rounds share one prior, so they are not averaged as if they were independent of it."""
    game, X, exact, size = problem(12, 6, rows=200)
    explainer = good(exact, size, len(X), 0.1) if helpful else nonsense(exact, size, len(X), 0.1)
    found = shapley(
        game, X, "amortized", explainer=explainer, unbiased=unbiased, standard_error=0.02 * size, row_budget=1400
    )
    # Unbiased rounds of few draws have errors made larger, so that their tails hold (test_tails.py): never smaller.
    assert (0.05 if unbiased else 0.5) < squared_error(found, exact) / (found.error_std**2).mean() < 1.5


def refinement(game: Game, X: np.ndarray, explainer: Any, longest: int) -> Refinement:
    rows = game.rows(X)
    full = game.full_values(rows)
    active = np.tile(np.arange(X.shape[1]), (len(X), 1))
    prior = Prior(*explainer.prior(X, full))
    return Refinement(Block(game, rows, active, full, 7, prior=prior, spent=np.zeros(len(X), dtype=np.int64)), longest)


@pytest.mark.parametrize(("n", "longest"), [(5, 15), (8, 127), (9, 60), (12, 300), (30, 500)])
def test_pairs_are_nested_different_and_even_over_sizes(n: int, longest: int) -> None:
    X = np.random.default_rng(0).normal(size=(40, n))
    game = Game(lambda rows: rows.sum(axis=1), reference=np.zeros(n))
    block = refinement(game, X, Flat(), 1).block
    pairs = nested_pairs(block, longest)
    for of_row in pairs:
        both = {tuple(pair) for pair in np.concatenate([of_row, ~of_row]).tolist()}
        assert len(both) == 2 * longest
    # Of every beginning, each size has its share (half of it where a set and its complement have the same size).
    for count in (longest // 4, longest // 2, longest):
        size = pairs[:, :count].sum(axis=2)
        found = np.array([(np.minimum(size, n - size) == s).sum(axis=1) for s in range(1, n // 2 + 1)])
        population = np.array([pair_count(n, s) for s in range(1, n // 2 + 1)])
        share = np.array([0.5 if 2 * s == n else 1.0 for s in range(1, n // 2 + 1)])
        level = np.array([min(1.0, count / share.sum() * m / p) for m, p in zip(share, population, strict=True)])
        spare = level < 0.5  # far from exhausted at an even share
        expected = (count - found[~spare].sum(axis=0).mean()) * share[spare] / share[spare].sum()
        np.testing.assert_allclose(found[spare].mean(axis=1), expected, atol=1.0)
    # And each player is in its share of the sets of a size.
    size = pairs.sum(axis=2)
    half = size == n // 2 if n % 2 else size == n // 2 - 1
    share = pairs[half].mean(axis=0)
    np.testing.assert_allclose(share, share.mean(), atol=6 * np.sqrt(0.25 / half.sum()))


def test_rounds_ask_for_nothing_twice_and_end_exactly() -> None:
    values = smooth_game(9, seed=2)
    model = Counting(values)
    game = Game(model, reference=np.zeros(9))
    X = np.ones((3, 9)) * [[1.0], [2.0], [3.0]]
    growing = refinement(game, X, Flat(), 10_000)
    asked = sum(model.calls)
    for size in (32, 64, 128, 510):
        found = growing.estimate(np.arange(3), size)
        assert sum(model.calls) - asked == 3 * size
        assert growing.block.spent is not None
        assert growing.block.spent.tolist() == [size] * 3
    np.testing.assert_allclose(found.values[..., 0], np.tile(shapley_by_permutations(values), (3, 1)), atol=1e-12)
    assert not found.errors.any()
    again = growing.estimate(np.array([1]), 64)  # an earlier round can be asked for again, and costs nothing
    assert sum(model.calls) - asked == 3 * 510
    assert (again.errors > 0).all()


def test_a_row_with_more_pairs_than_are_drawn_is_enumerated() -> None:
    game, X = replicas(smooth_game(8, seed=1), 2)
    growing = refinement(game, X, Flat(), 16)
    growing.estimate(np.arange(2), 32)
    found = growing.estimate(np.arange(2), 254)
    exact = shapley(game, X, "exact", views=0)
    np.testing.assert_allclose(found.values[..., 0], exact.values, atol=1e-12)


def test_pairs_that_agree_by_chance_prove_nothing() -> None:
    """An interaction that a few pairs miss: what is left open keeps a part of the prior's scale."""
    n = 10
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    values = coalitions @ np.linspace(0.5, 1.5, n) + 3.0 * coalitions[:, :4].all(axis=1)
    game, X = replicas(values, 400)
    exact = shapley(game, X[:1], "exact", views=0).values[0]
    growing = refinement(game, X, good(exact, float(exact.std()), len(X), share=0.1), 10_000)
    for size in (32, 64, 128):
        found = growing.estimate(np.arange(len(X)), size)
        ratio = np.abs(found.values[..., 0] - exact) / found.errors[..., 0]
        assert ratio.max() < 100


# Calls ------------------------------------------------------------------------------------------------------


def test_bad_calls() -> None:
    game, X = replicas(smooth_game(6), 2)
    for method in ("amortized", Amortized()):
        with pytest.raises(InputError, match=r"method='amortized' needs explainer=: a fitted cortx.CoRTX.*got none"):
            shapley(game, X, method)
    with pytest.raises(InputError, match=r"prior\(rows, outputs\); got str"):
        shapley(game, X, "amortized", explainer="model")
    for other in ("auto", "kernel", KernelShap()):
        with pytest.raises(InputError, match=r"explainer= belongs to method='amortized'; got method="):
            shapley(game, X, other, explainer=Flat())
        with pytest.raises(InputError, match=r"unbiased= belongs to method='amortized'; got method="):
            shapley(game, X, other, unbiased=True)
    with pytest.raises(BudgetError, match=r"amortized needs at least 9 evaluations per row for 6 players"):
        shapley(game, X, "amortized", explainer=Flat(), unbiased=True, row_budget=8)
    with pytest.raises(BudgetError, match=r"amortized needs at least 3 evaluations per row"):
        shapley(game, X, "amortized", explainer=Flat(), row_budget=2)
    assert game.evaluations == 0
    ones = np.ones((2, 6))
    with pytest.raises(InputError, match=r"prior scales hold NaN, infinity or, as scales, negative numbers"):
        shapley(game, X, "amortized", explainer=Known(ones, -ones), row_budget=20)
    with pytest.raises(InputError, match=r"prior values hold NaN"):
        shapley(game, X, "amortized", explainer=Known(np.nan * ones, ones), row_budget=20)

    class Narrow(Flat):
        def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            values, scales = super().prior(rows, outputs)
            return values[:, :5], scales[:, :5]

    with pytest.raises(InputError, match=r"values have shape \(2, 5, 1\), expected \(2, 6, 1\).*another game\?"):
        shapley(game, X, "amortized", explainer=Narrow(), row_budget=20)


def test_the_estimator_object_and_the_name_are_the_same() -> None:
    game, X = replicas(smooth_game(8), 3)
    for unbiased in (False, True):
        named = shapley(game, X, "amortized", explainer=OfRows(), unbiased=unbiased, row_budget=40)
        given_ = shapley(game, X, Amortized(unbiased=unbiased), explainer=OfRows(), row_budget=40)
        np.testing.assert_array_equal(named.values, given_.values)
    both = shapley(game, X, Amortized(), explainer=OfRows(), unbiased=True, row_budget=40)
    np.testing.assert_array_equal(both.values, given_.values)


def test_the_explainer_sees_the_rows_as_they_were_given() -> None:
    seen = []

    class Watching(Flat):
        def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            seen.append((rows, outputs))
            return super().prior(rows, outputs)

    game, X = replicas(smooth_game(6), 4)
    found = shapley(game, X, "amortized", explainer=Watching(), row_budget=20)
    ((rows, outputs),) = seen
    assert rows is X
    np.testing.assert_array_equal(outputs[:, 0], found.outputs)
    assert found.evaluations == 1 + 4 * (1 + 18)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("goal", [None, 0.05])
def test_results_depend_on_the_row_and_its_prior_alone(unbiased: bool, goal: float | None) -> None:
    """Rows with different active players and a prior of their own, two outputs, in other orders and chunks."""
    n, rng = 9, np.random.default_rng(0)
    X = rng.normal(size=(60, n)) * (rng.random((60, n)) < 0.9)
    weights = rng.normal(size=(n, 2))

    def label(rows: np.ndarray, **options: Any) -> Any:
        game = Game(lambda table: np.tanh(table @ weights), reference=np.zeros(n), **options)
        return shapley(
            game, rows, "amortized", explainer=OfRows(), unbiased=unbiased, row_budget=100, standard_error=goal, seed=7
        )

    whole, order = label(X), rng.permutation(len(X))
    for other, index in (
        (label(X[order]), order),
        (label(X[:5]), np.arange(5)),
        (label(X, memory_budget=2**20), np.arange(60)),
    ):
        np.testing.assert_allclose(other.values, whole.values[index], atol=1e-11)
        np.testing.assert_allclose(other.error_std, whole.error_std[index], atol=1e-9)
    assert (whole.values[X == 0] == 0).all()
