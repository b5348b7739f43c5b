"""Interactions as a control variate: what they say has no Shapley value, and rows do not depend on their order."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.contracts.test_estimators import shapley_by_permutations, smooth_game
from tests.contracts.test_tails import GAMES, most, replicas, shares_beyond

import cortx
from cortx.estimators import interactions as inner
from cortx.explainer.store import Ask
from cortx.games.synthetic import interaction_game, interaction_shapley

Array = np.ndarray


def quiet(game: cortx.Game, X: Array, method: str = "odd", **options: object) -> cortx.Explanation:
    return cortx.shapley(game, X, method, views=0, progress=False, **options)  # type: ignore[arg-type]


def test_an_interaction_without_its_mean_has_no_shapley_value() -> None:
    n = 5
    signs = 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).T - 1
    triples = np.array(list(combinations(range(n), 3)))
    for values in inner.interactions(signs[None], triples)[0]:
        assert np.abs(values).max() > 0.5
        np.testing.assert_allclose(shapley_by_permutations(values), 0, atol=1e-12)


def test_coefficients_of_a_pair_come_from_all_others() -> None:
    """The closed form against plain refits without each pair."""
    rng = np.random.default_rng(0)
    n, count = 6, 25
    coalitions = rng.random((1, count, n)) < 0.5
    target = rng.normal(size=(1, count, 2))
    pairs = inner.Pairs(
        coalitions, np.arange(n)[None], target, rng.uniform(0.5, 2, size=(1, count)), np.zeros((1, count)), n
    )
    terms = inner.Terms(np.array([[0, 1, 2], [1, 3, 5], [0, 4, 5]]), np.array([0.5, 0.1, 2.0]), 0.3)
    said, _ = inner._Players.of(pairs).left_out(pairs, terms)
    weight = pairs.weight[0] / pairs.weight[0].mean()
    features = inner.interactions(pairs.signs(), terms.players)[0].T
    scale = inner._Players.of(pairs).scale
    for j in range(count):
        others = np.arange(count) != j
        X = np.concatenate([pairs.design[0], features], axis=1)[others]
        penalty = np.diag([1e-9] * n + list(terms.noise / terms.variance))
        gram = X.T @ (weight[others, None] * X) + penalty
        fit = np.linalg.solve(gram, X.T @ (weight[others, None] * target[0, others] / scale)) * scale
        np.testing.assert_allclose(said[0, j], features[j] @ fit[n:], rtol=1e-5, atol=1e-6)


def test_interactions_of_three_are_found() -> None:
    terms = {(0,): 1.0, (1, 2): -2.0, (3, 4, 5): 3.0, (0, 6, 7): -1.5, (8,): 0.5}
    n = 20
    truth, game = interaction_shapley(n, terms), interaction_game(n, terms)
    for X in (np.ones((1, n)), np.ones((5, n)) * np.arange(1, 6)[:, None]):
        miss = np.square(quiet(game, X[:1], "kernel", row_budget=801).values - truth).mean()
        assert np.square(quiet(game, (X > 0).astype(float), row_budget=801).values - truth).mean() < 1e-6 * miss


def test_values_are_closer_where_they_can_be_and_their_bias_is_smaller_than_their_error() -> None:
    """Games with interactions of every order, some of them rare; like KernelSHAP it is consistent, not unbiased."""
    # Half of all coalitions of a threshold decide nothing that three players could tell: there it gains nothing.
    for kind, factor in {"five-way AND": 0.5, "tanh": 0.9, "threshold": 1.2}.items():
        game, X, truth = replicas(GAMES[kind](10, np.random.default_rng(1)), 150)
        found = quiet(game, X, row_budget=401).values
        plain = quiet(game, X, "kernel", row_budget=401).values
        assert np.abs(found.mean(axis=0) - truth).max() < 0.5 * found.std(axis=0).mean()
        assert np.square(found - truth).mean() < factor * np.square(plain - truth).mean()


@pytest.mark.parametrize("kind", GAMES)
def test_standard_errors_promise_no_more_than_holds(kind: str) -> None:
    unknown, reach, radius = shares_beyond(kind, 9, "odd", 1 + 2 * 150, 100)
    assert unknown == 0
    assert max(reach, radius) <= most(300)


def test_rows_in_any_order_and_chunk_have_the_same_values() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 12))
    X[3, 4] = 0.0  # fewer active players than the others
    X[7] = X[8]

    def model(rows: Array) -> Array:
        return np.stack([rows[:, 0] * rows[:, 1] * rows[:, 2] + rows[:, 3], np.tanh(rows.sum(axis=1))], axis=1)

    plain = quiet(cortx.Game(model, reference=np.zeros(12)), X, row_budget=401)
    order = rng.permutation(30)
    small = cortx.Game(model, reference=np.zeros(12), memory_budget=2**20)
    moved = quiet(small, X[order], row_budget=401)
    np.testing.assert_allclose(moved.values, plain.values[order], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(moved.error_std, plain.error_std[order], rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(plain.values[7], plain.values[8])
    assert moved.evaluations == 1 + np.sum(plain.row_evaluations) <= 1 + 30 * 401


def test_units_and_additive_parts_change_nothing() -> None:
    values, shift = smooth_game(10, seed=4), np.random.default_rng(0).normal(size=10)
    members = (np.arange(2**10)[:, None] >> np.arange(10)) & 1
    game, X, _ = replicas(values, 4)
    other, _, _ = replicas(1e3 * values + members @ shift, 4)
    plain, moved = quiet(game, X, row_budget=401), quiet(other, X, row_budget=401)
    np.testing.assert_allclose(moved.values, 1e3 * plain.values + shift, rtol=1e-5, atol=1e-6)


def test_an_additive_game_is_known_at_once() -> None:
    game = cortx.Game(lambda rows: rows @ np.arange(12.0), reference=np.zeros(12))
    labels = quiet(game, np.ones((3, 12)), row_budget=401)
    np.testing.assert_allclose(labels.values, np.tile(np.arange(12.0), (3, 1)), atol=1e-9)
    assert np.abs(np.asarray(labels.error_std)).max() < 1e-9


def test_auto_is_odd_and_kept_labels_stay_what_they_were() -> None:
    game, X, _ = replicas(smooth_game(10), 3)
    assert quiet(game, X, "auto", row_budget=401).method == "odd"
    assert quiet(game, X, "auto", row_budget=2**10).method == "exact"
    kept = Ask("auto", 401).estimator
    assert quiet(game, X, kept, row_budget=401).method == "kernel"  # type: ignore[arg-type]
    assert Ask("auto", 401).name == "auto-401-0"
    for method in ("odd", "auto"):  # too few pairs to learn from
        np.testing.assert_array_equal(
            quiet(game, X, method, row_budget=201).values, quiet(game, X, "kernel", row_budget=201).values
        )
