"""Supervised RTX learns from labels alone, and spends nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cortx
from cortx.errors import InputError, NotFittedError
from cortx.metrics import l2_distance, rank_accuracy
from cortx.rivals import RIVALS, Rival
from cortx.rivals.supervised import Loss, SupervisedRTX
from cortx.training.recipe import Recipe, default_recipe

FORMS = (("paper", "mse"), ("paper", "ce"), ("strong", "mse"))
every_form = pytest.mark.parametrize(("form", "loss"), FORMS)
LABELLED = 200


def shorter(recipe: Recipe, steps: int) -> Recipe:
    """The same losses, inputs and form, with small networks and few steps."""
    return replace(
        recipe,
        encoder=replace(recipe.encoder, width=32, latent=32),
        head=replace(recipe.head, width=32, depth=2),
        attribution=replace(recipe.attribution, steps=min(steps, recipe.attribution.steps), batch_size=64),
        ranking=replace(recipe.ranking, steps=min(steps, recipe.ranking.steps), batch_size=64),
    )


def build(form: Any, loss: Any, steps: int = 300, seed: int = 0) -> SupervisedRTX:
    rival = SupervisedRTX(form, loss=loss, seed=seed)
    rival.explainer.recipe = shorter(rival.explainer.resolved_recipe(), steps)
    return rival


def labels_of(game: cortx.Game, rows: np.ndarray) -> np.ndarray:
    return np.asarray(cortx.shapley(game, rows, "exact", progress=False).values)


@pytest.fixture
def labels(game: cortx.Game, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers in no order, and their values."""
    index = np.random.default_rng(3).permutation(len(table))[:LABELLED]
    return index, labels_of(game, table[index])


@pytest.mark.slow
@every_form
def test_it_learns_what_its_labels_say(
    game: cortx.Game, table: np.ndarray, labels: tuple[np.ndarray, np.ndarray], form: str, loss: str
) -> None:
    fresh = np.random.default_rng(9).normal(size=(150, 6)).astype(np.float32)
    truth = labels_of(game, fresh)
    rival = build(form, loss).fit(game, table, labels=labels, progress=False)
    explanation = rival.explain(fresh)
    if loss == "mse":
        assert explanation.predicted_ranking is None
        assert l2_distance(explanation.values, truth).mean() < 0.5 * np.linalg.norm(truth, axis=1).mean()
    else:
        ranking = explanation.predicted_ranking
        assert ranking is not None
        assert (np.sort(ranking, axis=1) == np.arange(6)).all()
    # What needs no learning: every row gets the order of the mean label.
    constant = np.tile(labels[1].mean(axis=0), (len(fresh), 1))
    exact = cortx.Explanation(truth, np.zeros(len(truth)), explanation.feature_names)
    assert rank_accuracy(explanation, exact).mean() > rank_accuracy(constant, truth).mean() + 0.1


@every_form
def test_nothing_is_asked_but_the_outputs_of_the_rows(
    model: Any, table: np.ndarray, labels: tuple[np.ndarray, np.ndarray], form: str, loss: str
) -> None:
    game = cortx.Game(model, reference=table, output="probability")  # one that has asked for nothing yet
    rival = build(form, loss, steps=2).fit(game, table, labels=labels, progress=False)
    outputs, probes = len(table) + 1, 32  # the reference's too; and rows by whose outputs the model is recognised
    spent = outputs + probes
    assert game.evaluations == spent
    costs = dict(rival.costs_)
    assert costs.pop("total_evaluations") == spent
    paid = {name: part["evaluations"] for name, part in costs.items() if part["evaluations"]}
    assert paid == {"outputs": outputs, "checks": probes}
    assert rival.explainer.history_["pretraining"] == []

    explanation = rival.explain(table[:20])
    assert explanation.method == "supervised" == SupervisedRTX.name
    assert explanation.evaluations == 20 == game.evaluations - spent
    assert explanation.outputs is not None
    total = explanation.outputs - explanation.base_values
    np.testing.assert_allclose(explanation.values.sum(axis=1), total, atol=1e-9)
    known = rival.explain(table[:20], explanation.outputs)
    assert known.evaluations == 0
    np.testing.assert_allclose(known.values, explanation.values, atol=1e-6)


@pytest.mark.slow
def test_the_seed_decides_everything(
    game: cortx.Game, table: np.ndarray, labels: tuple[np.ndarray, np.ndarray]
) -> None:
    one, same, other = (
        build("paper", "mse", 5, seed).fit(game, table, labels=labels, progress=False).explain(table[:9]).values
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-6


def test_forms_are_what_they_say() -> None:
    """The strong one is our default without what labels do not give; the paper's is an MLP on raw inputs."""
    ours, strong = default_recipe(), SupervisedRTX("strong").explainer.resolved_recipe()
    assert (strong.features, strong.encoder, strong.head) == (ours.features, ours.encoder, ours.head)
    assert strong.attribution == replace(ours.attribution, view_share=0.0, rough_share=0.0)
    losses: tuple[Loss, ...] = ("mse", "ce")
    for loss in losses:
        recipe = SupervisedRTX(loss=loss).explainer.resolved_recipe()
        assert recipe.features.raw
        assert recipe.attribution.tune_encoder
        assert recipe.ranking.tune_encoder
        assert not recipe.head.sees_total
    for rival in (SupervisedRTX("strong"), SupervisedRTX(), SupervisedRTX(loss="ce")):
        assert rival.explainer.resolved_recipe().pretrain.steps == 0
        assert rival.explainer.heads == (("attribution",) if rival.loss == "mse" else ("attribution", "ranking"))


def test_the_registry_knows_it() -> None:
    assert RIVALS["supervised"] is SupervisedRTX
    assert issubclass(SupervisedRTX, Rival)


@pytest.mark.parametrize(
    ("form", "loss", "message"),
    [
        ("weak", "mse", "form must be 'paper' or 'strong', .* got 'weak'"),
        ("paper", "l1", "loss 'mse' or 'ce', got 'paper' and 'l1'"),
        ("strong", "ce", "use loss='mse'"),
    ],
)
def test_bad_arguments(form: Any, loss: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SupervisedRTX(form, loss=loss)


def test_bad_labels(game: cortx.Game, table: np.ndarray, labels: tuple[np.ndarray, np.ndarray]) -> None:
    index, values = labels
    for wrong, message in (
        ((index[:5], values[:5]), "5 labels; give at least"),
        ((index, values[:-1]), "the labels have shape"),
        ((index + len(table), values), "but X has 300 rows"),
        ((index, np.full_like(values, np.nan)), "NaN"),
    ):
        with pytest.raises(InputError, match=message):
            build("paper", "mse", 2).fit(game, table, labels=wrong, progress=False)
    with pytest.raises(NotFittedError):
        SupervisedRTX().explain(table)
