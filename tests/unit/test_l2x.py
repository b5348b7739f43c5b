"""L2X finds what matters, and says that its scores are no Shapley values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import cortx
from cortx.errors import BudgetError, InputError, NotFittedError
from cortx.rivals.l2x import L2X, L2XSettings, entropy, likeliest, relaxed_subset, variational_loss

BRIEF = L2XSettings(steps=20, batch_size=16, selector_width=8, predictor_width=8)


def table(n_rows: int = 600, n_columns: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_rows, n_columns))


def two_matter(rows: np.ndarray) -> np.ndarray:
    return 2 * rows[:, 1] - 2 * rows[:, 4]


def probability(rows: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-3 * two_matter(rows)))


def game_of(function: Any = two_matter, output: Any = "raw", n_columns: int = 6, **settings: Any) -> cortx.Game:
    return cortx.Game(function, reference=np.zeros(n_columns), output=output, **settings)


@pytest.mark.parametrize(("function", "output"), [(two_matter, "raw"), (probability, "probability")])
def test_the_two_relevant_features_are_found(function: Any, output: Any) -> None:
    fitted = L2X(k=2, settings=L2XSettings(steps=250, batch_size=128)).fit(game_of(function, output), table())
    fresh = table(200, seed=7)
    found = np.sort(fitted.explain(fresh).top(2), axis=1)
    assert (found == [1, 4]).all(axis=1).mean() > 0.9
    assert min(fitted.history_) < 0.6 * fitted.history_[0]


def test_scores_are_chances_and_say_so() -> None:
    game = game_of()
    X = table(50)
    fitted = L2X(k=2, settings=BRIEF).fit(game, X)
    spent = game.evaluations
    explanation = fitted.explain(X)
    assert "selection" in explanation.method
    assert explanation.outputs is None
    assert explanation.evaluations == 0 == game.evaluations - spent
    assert (explanation.values >= 0).all()
    assert (explanation.values <= 1).all()
    first = 1 - np.sqrt(1 - explanation.values)  # k = 2
    np.testing.assert_allclose(first.sum(axis=1), 1)
    given = fitted.explain(X, outputs=two_matter(X))
    np.testing.assert_array_equal(given.outputs, two_matter(X))


def test_several_outputs_share_their_scores() -> None:
    def classes(rows: np.ndarray) -> np.ndarray:
        return np.stack([probability(rows) / 2, probability(rows) / 2, 1 - probability(rows)], axis=1)

    X = table(50)
    for output in ("probability", "raw"):
        explanation = L2X(k=2, settings=BRIEF).fit(game_of(classes, output), X).explain(X)
        assert explanation.values.shape == (50, 6, 3)
        np.testing.assert_array_equal(explanation.values[..., 0], explanation.values[..., 2])


def test_groups_are_selected_as_one() -> None:
    game = game_of(players={"both": [1, 4]})
    fitted = L2X(k=1, settings=L2XSettings(steps=150, batch_size=128)).fit(game, table())
    explanation = fitted.explain(table(100, seed=3))
    both = explanation.feature_names.index("both")
    assert (explanation.top(1)[:, 0] == both).mean() > 0.9


def test_categories_are_masked_with_their_column() -> None:
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 3, 400), rng.integers(0, 3, 400), rng.normal(size=400)], axis=1).astype(float)

    def model(rows: np.ndarray) -> np.ndarray:
        return np.array([0.0, 3.0, -3.0])[rows[:, 1].astype(int)]

    game = game_of(model, n_columns=3, categorical=[0, 1])
    fitted = L2X(k=1, settings=L2XSettings(steps=400, batch_size=128)).fit(game, X)
    present = X[:, 1] != 0  # at its reference a category looks the same, chosen or not
    assert (fitted.explain(X).top(1)[present, 0] == 1).mean() > 0.9


def test_budget_is_one_evaluation_a_row() -> None:
    game = game_of()
    fitted = L2X(k=2, settings=BRIEF).fit(game, table(50))
    assert game.evaluations == fitted.costs_["evaluations"] == 51  # and v(none)
    game = game_of()
    assert L2X(k=2, settings=BRIEF).fit(game, table(50), 30).costs_["evaluations"] == 30


def test_relaxed_subset_is_the_largest_of_k_softmaxes() -> None:
    rng = np.random.default_rng(4)
    logits, uniforms, temperature = rng.normal(size=(3, 5)), rng.random((3, 2, 5)), 0.5
    found = relaxed_subset(torch.from_numpy(logits), torch.from_numpy(uniforms), temperature).numpy()
    for row in range(3):
        draws = []
        for k in range(2):
            scores = np.exp((logits[row] - np.log(-np.log(uniforms[row, k]))) / temperature)
            draws.append(scores / scores.sum())
        np.testing.assert_allclose(found[row], np.max(draws, axis=0))


def test_cold_draws_choose_at_most_k_by_their_chances() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).repeat(20_000, 1)
    uniforms = torch.rand(20_000, 1, 3, generator=torch.Generator().manual_seed(0))
    chosen = relaxed_subset(logits, uniforms, 1e-3).round()
    assert (chosen.sum(dim=1) <= 1).all()
    np.testing.assert_allclose(chosen.mean(dim=0).numpy(), [0.5, 0.3, 0.2], atol=0.02)
    extremes = torch.tensor([[[0.0, 1 - 2**-24, 0.5]]])
    assert torch.isfinite(relaxed_subset(torch.zeros(1, 3), extremes, 0.1)).all()


def test_likeliest_marks_k() -> None:
    marked = likeliest(torch.tensor([[0.1, 3.0, -1.0, 2.0]]), 2)
    np.testing.assert_array_equal(marked.numpy(), [[0, 1, 0, 1]])


def test_variational_losses_are_cross_entropies() -> None:
    logits, target = np.array([[0.3, -1.0], [2.0, 0.5]]), np.array([[0.2, 0.8], [0.6, 0.4]])
    both = torch.from_numpy(logits), torch.from_numpy(target)
    chance = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(variational_loss(*both, "categorical")) == pytest.approx(-(target * np.log(chance)).sum(1).mean())
    single = 1 / (1 + np.exp(-logits))
    expected = -(target * np.log(single) + (1 - target) * np.log(1 - single)).mean()
    assert float(variational_loss(*both, "bernoulli")) == pytest.approx(expected)
    assert float(variational_loss(*both, "gaussian")) == pytest.approx(((logits - target) ** 2).mean())


def test_entropy_is_the_loss_of_a_perfect_prediction() -> None:
    target = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    assert entropy(target, "categorical") == pytest.approx(float(variational_loss(target.log(), target, "categorical")))
    assert entropy(target, "bernoulli") == pytest.approx(float(variational_loss(target.logit(), target, "bernoulli")))
    assert entropy(target, "gaussian") == 0
    assert entropy(torch.tensor([[0.0], [1.0]]), "bernoulli") == 0


def test_same_seed_same_scores() -> None:
    X = table(40)

    def scores(seed: int) -> np.ndarray:
        return L2X(k=2, settings=BRIEF, seed=seed).fit(game_of(), X).explain(X).values

    state = torch.random.get_rng_state()
    np.testing.assert_array_equal(scores(1), scores(1))
    assert (scores(1) != scores(2)).any()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="at least 1"):
        L2X(k=0)
    with pytest.raises(InputError, match="positive"):
        L2XSettings(temperature=0.0)
    with pytest.raises(NotFittedError, match="fit"):
        L2X().explain(table(2))
    with pytest.raises(InputError, match="k=7"):
        L2X(k=7, settings=BRIEF).fit(game_of(), table(20))
    with pytest.raises(BudgetError, match="two rows"):
        L2X(k=2, settings=BRIEF).fit(game_of(), table(20), 2)
