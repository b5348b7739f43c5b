"""Shapley values of free games from two halves of pairs: right on average, and no surer than they may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import cortx
import cortx.training.recipe
from cortx.estimators import free
from cortx.estimators.crossed import CrossedDesign, crossed_design
from cortx.games import Rows

Array = Any


class Triples:
    """A game of `n` players with effects of their own and products of three: v(S), and exact Shapley values."""

    def __init__(self, n: int, rows: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.single = n, rng.normal(size=(rows, n))
        self.triples = np.stack([rng.choice(n, 3, replace=False) for _ in range(2 * n)])
        self.joint = 2 * rng.normal(size=(rows, 2 * n))

    def values(self, coalitions: Array) -> Array:
        """(rows, k)."""
        return self.single @ coalitions.T.astype(float) + self.joint @ coalitions[:, self.triples].all(axis=2).T

    def shapley(self) -> Array:
        """(rows, n): each of three players has a third of what they do together."""
        found = self.single.copy()
        for number, players in enumerate(self.triples):
            found[:, players] += self.joint[:, [number]] / 3
        return found


def design(n: int, seed: int) -> CrossedDesign:
    return crossed_design(n, seed, free.Interactions.unknown(n))


def estimates(game: Triples, seed: int) -> tuple[Array, Array]:
    """Values and variances of one design, (rows, n)."""
    drawn = design(game.n, seed)
    values, variance = drawn.of(torch.from_numpy(game.values(drawn.coalitions))[..., None])
    return values[..., 0].numpy(), variance[..., 0].numpy()


@pytest.mark.parametrize("n", [14, 21, 60])
def test_crossed_designs_are_unbiased_and_know_their_variance(n: int) -> None:
    """14 players: sizes that are drawn to the last pair. Their mean over designs is off as far as chance allows."""
    game = Triples(n, rows=20)
    truth, designs = game.shapley(), 24
    found = [estimates(game, seed) for seed in range(designs)]
    errors = np.stack([values - truth for values, _ in found])
    believed = np.stack([variance for _, variance in found])
    assert 0.85 <= np.square(errors).mean() / believed.mean() <= 1.15
    of_mean = np.square(errors.mean(axis=0)).mean() / (believed.mean() / designs)
    assert of_mean <= 1.5  # with a bias of a fifth of the errors it would be 2
    np.testing.assert_allclose(errors.sum(axis=2), 0, atol=1e-9)  # all adds up


def test_additive_games_are_nearly_exact_and_known_to_be() -> None:
    game = Triples(40, rows=3)
    game.joint[:] = 0
    values, variance = estimates(game, 0)
    np.testing.assert_allclose(values, game.single, atol=1e-3)
    assert np.square(values - game.single).mean() <= 2 * variance.mean() <= 1e-6


def test_designs_of_many_players_stay_small() -> None:
    assert design(900, 0).nbytes < 2**28


class Knows:
    """A student that knows the game itself, but its own Shapley values from samples alone."""

    def __init__(self, game: Triples) -> None:
        self.game = game

    def values(self, rows: Rows, coalitions: Array) -> Array:
        wide = np.broadcast_to(coalitions, (len(rows), *coalitions.shape[-2:]))
        number = rows.table.matrix[:, 0].astype(int) - 1
        return np.stack([self.game.values(each)[i] for i, each in zip(number, wide, strict=True)])[..., None]

    def shapley(self, rows: Rows) -> Array:
        return self.sampled_shapley(rows, 0, 1)[0]

    def sampled_shapley(self, rows: Rows, seed: int, values: int) -> tuple[Array, Array]:
        number = rows.table.matrix[:, 0].astype(int) - 1
        found, variance = estimates(self.game, seed)
        return found[number, :, None], variance[number, :, None]


def played(game: Triples) -> tuple[cortx.Game, Array]:
    """The same game of a model, and its rows, which are told apart by the number that all their columns have."""

    def model(masked: Array) -> Array:
        present = masked != 0
        number = np.abs(masked).max(axis=1).astype(int)
        return np.array(
            [game.values(row[None])[i - 1, 0] if i else 0.0 for row, i in zip(present, number, strict=True)]
        )

    X = np.tile(np.arange(1.0, len(game.single) + 1)[:, None], (1, game.n))
    return cortx.Game(model, reference=np.zeros((1, game.n)), categorical=()), X


@pytest.mark.parametrize("method", ["kernel", "unbiased"])
def test_labels_know_what_a_student_does_not_know_of_itself(method: str) -> None:
    """The student misses nothing of the game, so all that labels are off by is how its own values were sampled."""
    game = Triples(40, rows=30)
    model, X = played(game)
    labels = cortx.shapley(model, X, method, row_budget=400, student=Knows(game), progress=False, views=0)
    assert labels.error_std is not None
    away = np.abs(labels.values - game.shapley())
    assert away.max() > 1e-3
    assert (away > 2 * labels.error_std).mean() <= 0.07
    again = cortx.shapley(model, X, method, row_budget=400, student=Knows(game), progress=False, views=0, seed=1)
    assert not np.allclose(labels.values, again.values)  # other seeds draw anew, so that repeats can be averaged


class Roughly(Knows):
    """The same, which also misses a part of the game."""

    def values(self, rows: Rows, coalitions: Array) -> Array:
        return 0.9 * super().values(rows, coalitions)

    def sampled_shapley(self, rows: Rows, seed: int, values: int) -> tuple[Array, Array]:
        found, variance = super().sampled_shapley(rows, seed, values)
        return 0.9 * found, 0.81 * variance


@pytest.mark.parametrize("student", [Knows, Roughly])
@pytest.mark.parametrize("method", ["auto", "kernel", "unbiased", "permutation"])
def test_rounds_do_not_average_out_what_a_student_is_off_by(method: str, student: type[Knows]) -> None:
    """All rounds have the same of it: errors that a `standard_error` asks for are those that labels have."""
    game = Triples(40, rows=20)
    model, X = played(game)
    labels = cortx.shapley(
        model, X, method, standard_error=0.4, row_budget=4_000, student=student(game), progress=False, views=0
    )
    assert labels.error_std is not None
    away = np.abs(labels.values - game.shapley())
    assert (away > 2 * labels.error_std).mean() <= 0.07
    assert (away > 2 * 0.4).mean() <= 0.07


def test_a_network_is_asked_about_itself_whatever_the_standard_error() -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(1_500, 16)), rng.normal(size=16)
    game = cortx.Game(lambda Z: np.tanh(Z[:, 0] * Z[:, 1]) + Z @ weights, reference=np.zeros((1, 16)), categorical=())
    explainer = cortx.CoRTX(make_small(), seed=0).fit(game, X, budget=12_000, progress=False)
    labels = cortx.shapley(game, X[:20], standard_error=0.02, row_budget=1_000, student=explainer.student_,
                           progress=False, views=0)  # fmt: skip
    truth = cortx.shapley(game, X[:20], "exact", progress=False, views=0)
    assert labels.error_std is not None
    assert np.abs(labels.values - truth.values).max() <= 5 * max(0.02, float(labels.error_std.max()))


def make_small() -> cortx.training.recipe.Recipe:
    """Next to no training: it is the labels that are looked at."""
    recipe = cortx.training.recipe.get_recipe("quick")
    assert recipe.student is not None
    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, steps=5),
        attribution=replace(recipe.attribution, steps=20),
        student=replace(recipe.student, steps=300, label_rows=500, label_asks=50_000, width=32, trees=False),
    )
