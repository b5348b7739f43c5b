"""FastSHAP against known answers, plain loops and its own promises."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
import torch

import cortx
from cortx.errors import BudgetError, InputError, NotFittedError
from cortx.estimators.block import Block
from cortx.rivals.fastshap import (
    FastSHAP,
    PublishedSettings,
    Quadratic,
    StrongSettings,
    _weighted,
    kernel_coalitions,
    size_probabilities,
    squared_residuals,
)
from cortx.training.encoders import EncoderConfig, HeadConfig

WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])
SMALL = StrongSettings(
    encoder=EncoderConfig(width=32, depth=1, latent=32), head=HeadConfig(width=32, depth=1), steps=300, batch_size=64
)
BRIEF = StrongSettings(
    encoder=EncoderConfig(width=8, depth=1, latent=8), head=HeadConfig(width=8, depth=1), steps=3, batch_size=8
)
SHORT = PublishedSettings(width=8, batch_size=4, samples=4, epochs=2, validation_rows=3, validation_samples=4)


def additive(rows: np.ndarray) -> np.ndarray:
    return rows @ WEIGHTS


def curved(rows: np.ndarray) -> np.ndarray:
    return np.stack([rows[:, 0] * rows[:, 1] + rows[:, 2], np.tanh(rows.sum(axis=1))], axis=1)


def table(n_rows: int = 200, n_columns: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_rows, n_columns))


def game_of(function: Any = additive, n_columns: int = 4, **settings: Any) -> cortx.Game:
    return cortx.Game(function, reference=np.zeros(n_columns), output="raw", **settings)


def words(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2**63, size=count).astype(np.uint64)


def probability(n: int, s: int) -> float:
    """Of one coalition of s players, by the definition."""
    total = sum(comb(n, t) * (n - 1) / (comb(n, t) * t * (n - t)) for t in range(1, n))
    return (n - 1) / (comb(n, s) * s * (n - s)) / total


# The loss and its draws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("n", [2, 3, 7])
def test_sizes_are_drawn_from_the_shapley_kernel(n: int, paired: bool) -> None:
    kept = kernel_coalitions(words(4_000), n, 10, stream=3, paired=paired)
    assert kept.shape == (4_000, 10, n)
    counted = np.bincount(kept.sum(axis=2).ravel(), minlength=n + 1) / kept[..., 0].size
    expected = np.array([0.0, *(comb(n, s) * probability(n, s) for s in range(1, n)), 0.0])
    draws = kept[..., 0].size / (2 if paired else 1)
    assert np.abs(counted - expected).max() < 5 / np.sqrt(draws)
    np.testing.assert_allclose(size_probabilities(n), expected[1:-1])


def test_coalitions_of_one_size_are_equally_likely() -> None:
    kept = kernel_coalitions(words(4_000), 5, 10, stream=3, paired=True).reshape(-1, 5)
    pairs = kept[kept.sum(axis=1) == 2]
    counted = [pairs[:, list(members)].all(axis=1).mean() for members in combinations(range(5), 2)]
    assert np.abs(np.array(counted) - 1 / comb(5, 2)).max() < 5 * 0.3 / np.sqrt(len(pairs) / 2)


def test_pairs_are_complements_and_draws_belong_to_the_row() -> None:
    seeds = words(6)
    kept = kernel_coalitions(seeds, 5, 8, stream=1, paired=True)
    assert (kept[:, 0::2] ^ kept[:, 1::2]).all()
    np.testing.assert_array_equal(kernel_coalitions(seeds[::-1], 5, 8, stream=1, paired=True), kept[::-1])
    assert (kernel_coalitions(seeds, 5, 8, stream=2, paired=True) != kept).any()


def loop_loss(phi: np.ndarray, kept: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Squared residuals of every row, coalition and output, one after the other."""
    result = np.zeros(values.shape)
    for row in range(len(phi)):
        for k in range(kept.shape[1]):
            for o in range(phi.shape[2]):
                explained = sum(phi[row, j, o] for j in range(phi.shape[1]) if kept[row, k, j])
                result[row, k, o] = (values[row, k, o] - explained) ** 2
    return result


def test_loss_is_the_mean_squared_residual() -> None:
    rng = np.random.default_rng(1)
    phi, kept, values = rng.normal(size=(3, 4, 2)), rng.random((3, 6, 4)) < 0.5, rng.normal(size=(3, 6, 2))
    found = squared_residuals(*(torch.from_numpy(a.astype(np.float64)) for a in (phi, kept, values)))
    assert float(found) == pytest.approx(loop_loss(phi, kept, values).mean())


@pytest.mark.parametrize("shared", [True, False])
def test_stored_form_is_the_weighted_loss(shared: bool) -> None:
    rng = np.random.default_rng(2)
    active = np.array([[0, 2, 3], [1, 2, 4]])
    kept = np.repeat(rng.random((1, 7, 3)) < 0.5, 2, axis=0) if shared else rng.random((2, 7, 3)) < 0.5
    weights, values = np.repeat(rng.random((1, 7)), 2, axis=0), rng.normal(size=(2, 7, 2))
    forms = Quadratic(torch.zeros(4, 5, 5), torch.zeros(4, 5, 2), torch.zeros(4, 2))
    forms.put(np.array([3, 1]), active, kept[0] if shared else kept, weights[0] if shared else weights, values)
    phi = rng.normal(size=(4, 5, 2))
    found = forms(torch.from_numpy(phi).float()).numpy()
    of_active = np.stack([phi[3, active[0]], phi[1, active[1]]])
    expected = (loop_loss(of_active, kept, values) * weights[..., None]).sum(axis=1)
    np.testing.assert_allclose(found[[3, 1]], expected, rtol=1e-4)
    assert (found[[0, 2]] == 0).all()


@pytest.mark.parametrize(
    ("samples", "paired", "replacement"),
    [(4, True, False), (10, True, False), (6, True, True), (5, False, False), (30, True, False)],
)
def test_weights_make_the_stored_loss_right_on_average(samples: int, paired: bool, replacement: bool) -> None:
    n, n_rows = 5, 4_000
    game = game_of(lambda rows: rows.sum(axis=1), n)
    rows = game.rows(table(n_rows, n))
    block = Block(game, rows, np.tile(np.arange(n), (n_rows, 1)), np.zeros((n_rows, 1)), seed=0)
    kept, weights = _weighted(block, samples, paired=paired, replacement=replacement)
    worth = np.random.default_rng(3).normal(size=2**n)  # any function of coalitions
    codes = (kept << np.arange(n)).sum(axis=-1)
    found = np.broadcast_to((weights * worth[codes]).sum(axis=-1), (n_rows,))
    expected = sum(
        probability(n, s) * worth[sum(2**j for j in members)]
        for s in range(1, n)
        for members in combinations(range(n), s)
    )
    assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(n_rows) + 1e-9


def test_minimum_of_the_stored_form_is_the_shapley_value() -> None:
    game = game_of(curved, 3)
    X = table(6, 3)
    X[0, 1] = 0.0  # a player that equals its reference
    rows = game.rows(X)
    forms = FastSHAP(settings=BRIEF, samples=6)._stored(game, rows, 6)
    truth = cortx.shapley(game, X, "exact", views=0)
    total = truth.outputs - truth.base_values
    for row in range(len(X)):
        members = np.flatnonzero(rows.active[row])
        A = forms.A[row].double().numpy()[np.ix_(members, members)]
        ones = np.ones(len(members))
        system = np.block([[2 * A, ones[:, None]], [ones[None, :], np.zeros((1, 1))]])
        for o in range(2):
            right = np.append(2 * forms.b[row, members, o].double().numpy(), total[row, o])
            np.testing.assert_allclose(np.linalg.solve(system, right)[:-1], truth.values[row, members, o], atol=1e-5)


# The explainer -------------------------------------------------------------------------------------------------


def test_strong_form_recovers_an_additive_game() -> None:
    fitted = FastSHAP(settings=SMALL, samples=8).fit(game_of(), table())
    fresh = table(50, seed=9)
    expected = fresh * WEIGHTS
    error = np.linalg.norm(fitted.explain(fresh).values - expected, axis=1).mean()
    assert error < 0.1 * np.linalg.norm(expected, axis=1).mean()


@pytest.mark.slow
def test_published_form_recovers_an_additive_game() -> None:
    settings = PublishedSettings(epochs=60, learning_rate=2e-3)
    fitted = FastSHAP("published", settings=settings).fit(game_of(), table(2_000))
    fresh = table(50, seed=9)
    expected = fresh * WEIGHTS
    error = np.linalg.norm(fitted.explain(fresh).values - expected, axis=1).mean()
    assert error < 0.1 * np.linalg.norm(expected, axis=1).mean()
    assert min(fitted.history_) < 0.05 * fitted.history_[0]


@pytest.mark.parametrize(("form", "settings"), [("strong", BRIEF), ("published", SHORT)])
def test_values_add_up_when_normalized(form: Any, settings: Any) -> None:
    game = game_of(curved, 3)
    X = table(40, 3)
    explanation = FastSHAP(form, settings=settings, samples=4).fit(game, X).explain(X)
    gap = explanation.outputs - explanation.base_values - explanation.values.sum(axis=1)
    assert explanation.values.shape == (40, 3, 2)
    assert np.abs(gap).max() < 1e-12
    free = FastSHAP(form, settings=settings, samples=4, normalization=False).fit(game, X).explain(X)
    assert np.abs(free.outputs - free.base_values - free.values.sum(axis=1)).max() > 1e-3


def test_strong_form_gives_nothing_to_players_at_their_reference() -> None:
    X = table(60)
    X[:, 2] = np.where(np.arange(60) % 2, X[:, 2], 0.0)
    X[:3] = 0.0  # nobody is active
    X[3:6, 1:] = 0.0  # one alone is
    explanation = FastSHAP(settings=BRIEF, samples=6).fit(game_of(), X).explain(X)
    assert (explanation.values[X == 0.0] == 0.0).all()
    np.testing.assert_allclose(explanation.values[3:6, 0], X[3:6, 0], rtol=1e-9)


def test_efficiency_penalty_closes_the_gap() -> None:
    X = table()

    def gap(weight: float) -> float:
        settings = StrongSettings(**{**vars(SMALL), "efficiency_weight": weight, "steps": 100})
        found = FastSHAP(settings=settings, samples=4, normalization=False).fit(game_of(), X).explain(X)
        return float(np.square(found.outputs - found.base_values - found.values.sum(axis=1)).mean())

    assert gap(10.0) < gap(0.0)


# The budget ----------------------------------------------------------------------------------------------------

GAMES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "plain": (additive, 4, {}),
    "several outputs": (curved, 4, {}),
    "groups": (additive, 4, {"players": {"a": [0, 1], "b": [2]}}),
}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("budget", [60, 333, 5_000])
def test_budget_is_never_exceeded(name: str, paired: bool, budget: int) -> None:
    function, n, extra = GAMES[name]
    X = table(40, n)
    X[::3, 0] = 0.0
    for form, settings in (("strong", BRIEF), ("published", SHORT)):
        game = game_of(function, n, **extra)
        if form == "published" and budget < 100:
            with pytest.raises(BudgetError, match="at least"):
                FastSHAP(form, settings=settings, paired=paired).fit(game, X, budget)  # type: ignore[arg-type]
            continue
        fitted = FastSHAP(form, settings=settings, paired=paired).fit(game, X, budget)  # type: ignore[arg-type]
        assert game.evaluations == fitted.costs_["evaluations"] <= budget
        before = game.evaluations
        explanation = fitted.explain(X)
        assert explanation.evaluations == game.evaluations - before == len(X)
        assert fitted.explain(X, outputs=explanation.outputs).evaluations == 0


def test_background_is_paid_for() -> None:
    game = cortx.Game(additive, background=table(5, seed=3), output="raw")
    fitted = FastSHAP(settings=BRIEF).fit(game, table(30), 2_000)
    assert 1_000 < game.evaluations == fitted.costs_["evaluations"] <= 2_000


def test_strong_form_spends_what_it_may() -> None:
    game = game_of(lambda rows: rows.sum(axis=1), 8)
    FastSHAP(settings=BRIEF).fit(game, table(50, 8), 5_000)
    assert 4_800 < game.evaluations <= 5_000


def test_small_budget_takes_fewer_rows() -> None:
    fitted = FastSHAP(settings=BRIEF, samples=10).fit(game_of(), table(100), 200)
    assert fitted.costs_["samples"] == 10
    assert fitted.costs_["rows"] < 20


def test_memory_bounds_the_rows() -> None:
    settings = StrongSettings(**{**vars(BRIEF), "memory": 4 * 4 * 5 * 10})
    fitted = FastSHAP(settings=settings, samples=4).fit(game_of(), table(100))
    assert fitted.costs_["rows"] + fitted.costs_["validation_rows"] == 10


def test_few_coalitions_are_learned_from_in_fewer_steps() -> None:
    settings = StrongSettings(**{**vars(BRIEF), "noisy_steps": 2})
    few, many = (FastSHAP(settings=settings, samples=samples).fit(game_of(), table(20)) for samples in (4, 32))
    assert (few.costs_["steps"], many.costs_["steps"]) == (2, BRIEF.steps)


def test_given_validation_rows_train_nothing() -> None:
    game = game_of()
    fitted = FastSHAP(settings=BRIEF, samples=4).fit(game, table(30), validation=table(7, seed=4))
    assert (fitted.costs_["rows"], fitted.costs_["validation_rows"]) == (30, 7)


# Settings and seeds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "settings"), [("strong", BRIEF), ("published", SHORT)])
def test_same_seed_same_values(form: Any, settings: Any) -> None:
    X = table(30)

    def values(seed: int) -> np.ndarray:
        return FastSHAP(form, settings=settings, samples=4, seed=seed).fit(game_of(), X).explain(X).values

    state = torch.random.get_rng_state()
    np.testing.assert_array_equal(values(1), values(1))
    assert (values(1) != values(2)).any()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_best_moment_has_the_smallest_validation_loss() -> None:
    fitted = FastSHAP(settings=SMALL, samples=4).fit(game_of(), table())
    assert len(fitted.history_) >= SMALL.validations
    assert min(fitted.history_) < fitted.history_[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "best"}, "published"),
        ({"samples": 3}, "even"),
        ({"samples": 0}, "positive"),
        ({"settings": SHORT}, "StrongSettings"),
        ({"form": "published", "settings": BRIEF}, "PublishedSettings"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FastSHAP(**arguments)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"learning_rate": 0.0}, {"validation_share": 1.0}, {"clip": 0.0}])
def test_bad_strong_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"must be|lies between"):
        StrongSettings(**bad)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"samples": 0}, {"efficiency_weight": -1.0}])
def test_bad_published_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be"):
        PublishedSettings(**bad)


def test_unfitted_use_and_missing_budget_say_what_to_do() -> None:
    with pytest.raises(NotFittedError, match="fit"):
        FastSHAP().explain(table(2))
    with pytest.raises(InputError, match="budget="):
        FastSHAP(settings=BRIEF).fit(game_of(), table(20))
    with pytest.raises(BudgetError, match="at least"):
        FastSHAP(settings=BRIEF).fit(game_of(), table(20), 4)
    with pytest.raises(InputError, match="two players"):
        FastSHAP("published", settings=SHORT).fit(game_of(lambda rows: rows[:, 0], 1), table(20, 1))
