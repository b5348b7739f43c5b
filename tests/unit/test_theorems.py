"""Both sides of the paper's theorems, against plain loops on small games whose constants are known."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import cortx
from cortx.errors import InputError
from cortx.paper.theorems import head_lipschitz, model_lipschitz, theorem_1, theorem_2
from cortx.training.heads.attribution import AttributionHead
from cortx.training.positives import choose_positives
from cortx.training.recipe import Recipe, paper_recipe

Model = Callable[[np.ndarray], np.ndarray]
WEIGHTS = np.array([1.0, -2.0, 0.5, 3.0])


def linear(rows: np.ndarray) -> np.ndarray:
    return rows @ WEIGHTS + 0.7


def bent(rows: np.ndarray) -> np.ndarray:
    return rows[:, 0] * rows[:, 1] + np.tanh(rows[:, 2]) - 0.3 * rows[:, 3] * rows[:, 2]


def some_rows(n: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4))


def loop_value(model: Model, row: np.ndarray, reference: np.ndarray, members: set[int]) -> float:
    masked = np.array([row[i] if i in members else reference[i] for i in range(len(row))])
    return float(model(masked[None])[0])


def loop_shapley(model: Model, row: np.ndarray, reference: np.ndarray) -> np.ndarray:
    phi = np.zeros(len(row))
    orders = list(itertools.permutations(range(len(row))))
    for order in orders:
        for place, i in enumerate(order):
            before = set(order[:place])
            phi[i] += loop_value(model, row, reference, before | {i}) - loop_value(model, row, reference, before)
    return phi / len(orders)


def loop_banzhaf(model: Model, row: np.ndarray, reference: np.ndarray) -> np.ndarray:
    phi = np.zeros(len(row))
    for i in range(len(row)):
        others = [j for j in range(len(row)) if j != i]
        subsets = [set(s) for k in range(len(row)) for s in itertools.combinations(others, k)]
        gains = [loop_value(model, row, reference, s | {i}) - loop_value(model, row, reference, s) for s in subsets]
        phi[i] = sum(gains) / len(gains)
    return phi


def positives(game: cortx.Game, rows: np.ndarray, how: str = "compact", count: int = 5, seed: int = 3) -> np.ndarray:
    ready = game.rows(rows)
    outputs = game.full_values(ready)
    return choose_positives(game, ready, outputs, how=how, count=count, keep=0.5, seed=seed, round_=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [linear, bent])
@pytest.mark.parametrize(("values", "oracle"), [("shapley", loop_shapley), ("banzhaf", loop_banzhaf)])
def test_both_sides_of_theorem_1_are_those_of_plain_loops(model: Model, values: str, oracle: Callable) -> None:  # type: ignore[type-arg]
    rows, reference = some_rows(), np.array([0.2, -0.1, 0.4, 0.0])
    game = cortx.Game(model, reference=reference, output="raw")
    kept = positives(game, rows)
    found = theorem_1(game, rows, values=values, n_positives=5, seed=3, lipschitz=2.5)  # type: ignore[arg-type]
    for k, row in enumerate(rows):
        copy = np.where(kept[k], row, reference)
        phi, phi_copy = oracle(model, row, reference), oracle(model, copy, reference)
        gap = abs(model(row[None])[0] - model(copy[None])[0])
        gamma = 2.5 * math.sqrt(sum(value**2 for value in row))
        assert found.left[k] == pytest.approx(math.sqrt(sum((phi - phi_copy) ** 2)), abs=1e-9)
        assert found.right[k] == pytest.approx((1 + math.sqrt(2) * gamma) * gap + math.sqrt(len(row)) * gamma)
        assert found.assumption[k] == (min(phi_copy) >= -1e-12)
    summary = found.summary()
    assert summary["holds"] == np.mean([a <= b for a, b in zip(found.left, found.right, strict=True)])
    assert summary["left_median"] == np.median(found.left)
    assert summary["lipschitz_model"] == 2.5
    assert summary["evaluations"] > 0


def test_a_linear_model_has_the_known_difference_and_the_known_constant() -> None:
    rows = some_rows()
    rows[1] = rows[0] + 0.3 * WEIGHTS  # the steepest direction is among the pairs
    game = cortx.Game(linear, reference="zero", output="raw")
    steepest = math.sqrt(sum(w**2 for w in WEIGHTS))
    assert model_lipschitz(game, rows) == pytest.approx(steepest)
    found = theorem_1(game, rows, n_positives=5, seed=3)
    dropped = ~positives(game, rows) * rows * WEIGHTS  # attributions of a linear model are w * x
    np.testing.assert_allclose(found.left, np.linalg.norm(dropped, axis=1), atol=1e-9)
    assert found.constants["lipschitz_model"] == pytest.approx(steepest)


def test_the_slope_is_never_above_that_of_a_known_model() -> None:
    game = cortx.Game(lambda rows: np.sin(2 * rows[:, 0]), reference=np.full(4, 0.5), output="raw")
    assert 0 < model_lipschitz(game, some_rows(40)) <= 2


def test_the_slope_sees_copies_that_lack_one_player() -> None:
    """One row has no other row to compare with, and no random copy here: only what each player does alone is left."""
    game = cortx.Game(linear, reference="zero", output="raw")
    assert model_lipschitz(game, some_rows(1), n_copies=0) == pytest.approx(max(abs(WEIGHTS)))


def test_equal_rows_have_no_slope() -> None:
    game = cortx.Game(linear, reference=np.ones(4), output="raw")
    assert model_lipschitz(game, np.ones((3, 4))) == 0


def test_how_often_the_assumption_holds() -> None:
    rows = np.abs(some_rows())
    for weights, always in ((np.ones(4), True), (-np.ones(4), False)):
        game = cortx.Game(lambda rows, w=weights: rows @ w, reference="zero", output="raw")
        share = theorem_1(game, rows, n_positives=5, seed=3).summary()["assumption_holds"]
        empty = (~positives(game, rows)).all(axis=1).mean()  # a copy that keeps nothing has no negative attribution
        assert share == (1.0 if always else empty)


def test_the_least_constant_with_which_the_inequality_holds() -> None:
    game = cortx.Game(bent, reference=np.full(4, 0.3), output="raw")
    rows = some_rows(30)
    needed = theorem_1(game, rows, positives="random").constants["lipschitz_needed"]
    assert 0 < needed < math.inf
    for factor, everywhere in ((1.0001, True), (0.99, False)):
        found = theorem_1(game, rows, positives="random", lipschitz=factor * needed).summary()
        assert (found["holds"] == 1) is everywhere


def test_known_labels_are_used_and_checked() -> None:
    game, rows = cortx.Game(bent, reference=np.full(4, 0.3), output="raw"), some_rows()
    labels = cortx.shapley(game, rows, "exact", views=0)
    whole, saved = theorem_1(game, rows), theorem_1(game, rows, labels=labels)
    np.testing.assert_allclose(saved.left, whole.left)
    assert saved.evaluations < whole.evaluations
    with pytest.raises(InputError, match="same rows"):
        theorem_1(game, rows[:5], labels=labels)


def test_what_the_theorems_do_not_speak_of_is_refused() -> None:
    rows = some_rows()
    with pytest.raises(InputError, match="background"):
        theorem_1(cortx.Game(linear, background=rows, output="raw"), rows)
    with pytest.raises(InputError, match="one output"):
        theorem_1(cortx.Game(lambda x: x[:, :3], reference="zero", output="raw"), rows)
    holes = rows.copy()
    holes[0, 0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        theorem_1(cortx.Game(lambda x: np.nan_to_num(x).sum(axis=1), reference="zero", output="raw"), holes)


def small_paper_recipe() -> Recipe:
    recipe = paper_recipe()
    return replace(
        recipe,
        encoder=replace(recipe.encoder, width=16, latent=8),
        head=replace(recipe.head, width=16),
        pretrain=replace(recipe.pretrain, steps=20, rounds=2, batch_size=64),
        attribution=replace(recipe.attribution, steps=60),
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[cortx.CoRTX, cortx.Game, cortx.Explanation]:
    game = cortx.Game(bent, reference=np.full(4, 0.3), output="raw")
    training = cortx.shapley(game, some_rows(80, seed=1), "exact", views=0)
    explainer = cortx.CoRTX(small_paper_recipe()).fit(game, training.data, labels=training, progress=False)
    return explainer, game, training


def test_both_sides_of_theorem_2_are_those_of_plain_loops(
    fitted: tuple[cortx.CoRTX, cortx.Game, cortx.Explanation],
) -> None:
    explainer, game, training = fitted
    rows, reference = some_rows(10, seed=2), np.full(4, 0.3)
    found = theorem_2(explainer, game, rows, training, n_positives=5, seed=3, lipschitz=1.5)
    kept = positives(game, rows)
    copies = np.where(kept, rows, reference)
    latent, latent_copy = explainer.latent(rows), explainer.latent(copies)
    answer, answer_copy = explainer.explain(rows).values, explainer.explain(copies).values
    errors = [
        math.sqrt(sum((label - value) ** 2))
        for label, value in zip(training.values, explainer.explain(training.data).values, strict=True)
    ]
    above = head_lipschitz(explainer.fitted.network.attribution)
    for k, row in enumerate(rows):
        phi, phi_copy = loop_shapley(bent, row, reference), loop_shapley(bent, copies[k], reference)
        gap = abs(bent(row[None])[0] - bent(copies[k][None])[0])
        gamma = 1.5 * math.sqrt(sum(row**2))
        moved = math.sqrt(sum((latent[k].astype(float) - latent_copy[k]) ** 2))
        right = (1 + math.sqrt(2) * gamma) * gap + math.sqrt(4) * gamma + max(errors) + above * moved
        assert found.left[k] == pytest.approx(math.sqrt(sum((phi - answer[k]) ** 2)), abs=1e-5)
        assert found.right[k] == pytest.approx(right, rel=1e-4)
        close = math.sqrt(sum((phi_copy - answer_copy[k]) ** 2)) <= max(errors)
        assert found.assumption[k] == (close and min(phi_copy) >= -1e-12)
    constants = found.constants
    assert constants["training_error_max"] == pytest.approx(max(errors), rel=1e-4)
    assert constants["training_error_mean"] == pytest.approx(sum(errors) / len(errors), rel=1e-4)
    assert 0 < constants["lipschitz_head_below"] <= constants["lipschitz_head"] * (1 + 1e-5)


def test_the_head_constant_is_a_product_of_norms_and_bounds_the_head(
    fitted: tuple[cortx.CoRTX, cortx.Game, cortx.Explanation],
) -> None:
    head = fitted[0].fitted.network.attribution
    weights = [layer.weight.detach().double().numpy() for layer in head.layers if isinstance(layer, torch.nn.Linear)]
    expected = float(head.label_scale)
    for i, weight in enumerate(weights):
        projection = np.eye(4) - np.full((4, 4), 1 / 4) if i == len(weights) - 1 else np.eye(len(weight))
        expected *= np.linalg.svd(projection @ weight, compute_uv=False)[0]
    assert head_lipschitz(head) == pytest.approx(expected)

    # With the totals of the two sides different, their share of the change is |difference| / sqrt(players).
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 500, 8, generator=draw)
    totals = torch.randn(2, 500, 1, generator=draw)
    everyone = torch.ones(500, 4, dtype=torch.bool)
    with torch.inference_mode():
        change = (head(a, totals[0], everyone) - head(b, totals[1], everyone))[..., 0].norm(dim=1)
    allowed = head_lipschitz(head) * (a - b).norm(dim=1) + (totals[0] - totals[1]).abs()[:, 0] / 2
    assert bool((change <= allowed + 1e-5).all())


def test_theorem_2_wants_the_papers_head(fitted: tuple[cortx.CoRTX, cortx.Game, cortx.Explanation]) -> None:
    _, game, training = fitted
    other = copy.deepcopy(fitted[0])
    head = other.fitted.network.attribution
    head.config = replace(head.config, sees_total=True)
    with pytest.raises(InputError, match="recipe='paper'"):
        theorem_2(other, game, some_rows(), training)
    residual = AttributionHead(8, 4, 1, replace(head.config, kind="residual"), torch.Generator())
    with pytest.raises(InputError, match="ELU"):
        head_lipschitz(residual)
