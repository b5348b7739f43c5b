"""Models that leave absent parts out by themselves: a vision transformer that masks the attention to their tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cortx
from cortx import CoRTX, Game, Patches, Segments, portable
from cortx.errors import FingerprintError, InputError, ModelError
from cortx.paper.cifar10 import load_digits_images
from cortx.rivals.gradients import Saliency
from cortx.training.recipe import Recipe, get_recipe

SIDE, PATCH = 24, 8
"""Digits enlarged: 3 x 3 patches."""
PLAYERS = (SIDE // PATCH) ** 2
WIDTH = 32


class Layer(nn.Module):
    """Attention to the tokens that are shown alone, then two layers for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        inside = self.before(x)
        x = x + self.attention(inside, inside, inside, key_padding_mask=hidden, need_weights=False)[0]
        result: Tensor = x + self.wide(self.between(x))
        return result


class ViT(nn.Module):
    """Patches as tokens, a class token that is never masked, and logits read off it."""

    def __init__(self, n_channels: int = 1, n_outputs: int = 10, pool: str = "class") -> None:
        super().__init__()
        self.embed = nn.Conv2d(n_channels, WIDTH, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, PLAYERS, WIDTH))
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.head, self.pool = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, n_outputs), pool

    def forward(self, images: Tensor, present: Tensor | None = None) -> Tensor:
        tokens = self.embed(images).flatten(2).transpose(1, 2) + self.place
        x = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], dim=1)
        if present is None:
            present = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        hidden = F.pad(~present, (1, 0), value=False)
        for layer in self.layers:
            x = layer(x, hidden)
        result: Tensor = self.head(self.norm(x[:, 0] if self.pool == "class" else x.mean(dim=1)))
        return result


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Digits of 24 x 24 pixels, and which they are."""
    images, labels = load_digits_images()[:2]
    large = F.interpolate(torch.from_numpy(images), (SIDE, SIDE), mode="bilinear").numpy()
    return large, labels


@pytest.fixture(scope="module")
def vit(digits: tuple[np.ndarray, np.ndarray]) -> ViT:
    """Trained for seconds, half of the time with random parts missing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = ViT()
        images, labels = (torch.from_numpy(part) for part in digits)
        optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
        for step in range(200):
            index = torch.randint(len(images), (128,))
            present = torch.rand(128, PLAYERS) < (1.0 if step % 2 else 0.6)
            loss = F.cross_entropy(net(images[index], present), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval().requires_grad_(False)


@pytest.fixture
def images(digits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    some = digits[0][:3].copy()
    some[0, :, :PATCH, :PATCH] = 0  # a part of zeros counts as any other
    return some


def make_game(vit: Any, **settings: Any) -> Game:
    return Game(vit, "removed", players=Patches(PATCH), **{"output": "probability", **settings})


def coalitions(n: int) -> np.ndarray:
    return np.array(list(product([False, True], repeat=n)))


def slow_value(vit: ViT, image: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The model when the tokens of absent parts are not there at all: dropped, not masked."""
    with torch.no_grad():
        tokens = vit.embed(torch.from_numpy(image[None])).flatten(2).transpose(1, 2) + vit.place
        kept = [vit.first[0, 0], *(tokens[0, i] for i in range(PLAYERS) if present[i])]
        x = torch.stack(kept)[None]
        for layer in vit.layers:
            x = layer(x, torch.zeros(1, len(kept), dtype=torch.bool))
        return torch.softmax(vit.head(vit.norm(x[:, 0])).double(), dim=1)[0].numpy()


def slow_shapley(value: Any, n: int) -> np.ndarray:
    found: list[Any] = []
    for i in range(n):
        total = 0.0
        for present in coalitions(n):
            if present[i]:
                continue
            size = int(present.sum())
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            with_i = present.copy()
            with_i[i] = True
            total = total + weight * (value(with_i) - value(present))
        found.append(total)
    return np.array(found)


# Values -------------------------------------------------------------------------------------------------------


def test_the_model_sees_what_is_present(vit: ViT, images: np.ndarray) -> None:
    game = make_game(vit)
    rows = game.rows(images)
    asked = coalitions(PLAYERS)[:: 2**PLAYERS // 16]
    values = game.values(rows, asked)
    for i, image in enumerate(images):
        for k, present in enumerate(asked):
            np.testing.assert_allclose(values[i, k], slow_value(vit, image, present), atol=1e-5)
    own = np.random.default_rng(0).random((3, 5, PLAYERS)) < 0.5
    tensors = game.values_of(torch.from_numpy(rows.table.matrix), torch.from_numpy(own))
    np.testing.assert_allclose(tensors.numpy(), game.values(rows, own), atol=1e-6)
    whole = torch.softmax(vit(torch.from_numpy(images)).double(), dim=1).numpy()
    np.testing.assert_allclose(game.full_values(rows), whole, atol=1e-5)
    np.testing.assert_allclose(game.base_values, slow_value(vit, images[0], np.zeros(PLAYERS, dtype=bool)), atol=1e-5)
    np.testing.assert_array_equal(game.empty_values(rows), np.tile(game.base_values, (3, 1)))
    assert rows.active.all()


def test_functions_get_whole_images_and_the_players_in_order() -> None:
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def model(images: np.ndarray, present: np.ndarray) -> np.ndarray:
        seen.append((images.copy(), present.copy()))
        return np.asarray((present * np.arange(1, 7)).sum(axis=1), dtype=np.float64)

    whole = np.random.default_rng(0).random((2, 4, 6, 3)).astype(np.float32)
    game = Game(model, "removed", players=Patches(2, channels="last"))
    rows = game.rows(whole)
    asked = coalitions(6)
    values = game.values(rows, asked)[..., 0]
    expected = [sum(i + 1 for i in range(6) if present[i]) for present in asked]
    np.testing.assert_array_equal(values, [expected, expected])
    given, present = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    assert present.dtype == np.bool_
    for image in given[-2 * 64 :]:
        assert min(float(np.abs(image - one).max()) for one in whole) == 0
    game.full_values(rows)
    assert seen[-1][1].all()
    np.testing.assert_array_equal(seen[-1][0], whole)
    segments = Game(model, "removed", players=Segments(np.arange(24).reshape(4, 6) // 4, channels="last"))
    np.testing.assert_array_equal(segments.values(segments.rows(whole), asked)[..., 0], values)


def test_calls_side_by_side(vit: ViT, images: np.ndarray) -> None:
    asked = coalitions(PLAYERS)[:40]
    plain, side = make_game(vit), make_game(vit, calls=cortx.Calls(batch=7, workers=3))
    values = side.values(side.rows(images), asked)
    np.testing.assert_allclose(values, plain.values(plain.rows(images), asked), atol=1e-5)
    assert side.evaluations == plain.evaluations

    async def model(images: np.ndarray, present: np.ndarray) -> np.ndarray:
        return np.asarray(images.mean(axis=(1, 2, 3)) * present.mean(axis=1))

    game = Game(model, "removed", players=Patches(PATCH))
    share = game.values(game.rows(images), asked)[..., 0]
    expected = images.mean(axis=(1, 2, 3))[:, None] * asked.mean(axis=1)
    np.testing.assert_allclose(share, expected, atol=1e-6)


def test_evaluations_are_counted(images: np.ndarray) -> None:
    count = 0

    def model(images: np.ndarray, present: np.ndarray) -> np.ndarray:
        nonlocal count
        count += len(images)
        return (images.reshape(len(images), -1)[:, : present.shape[1]] * present).sum(axis=1)

    game = Game(model, "removed", players=Patches(PATCH))
    rows = game.rows(images)
    assert game.evaluations == count == 0
    _ = game.base_values
    assert game.evaluations == count == game.base_evaluations == 3  # images on which v(none) is compared
    game.values(rows, coalitions(PLAYERS))
    assert game.evaluations == count == 3 + 3 * 2**PLAYERS
    for budget in (60, 100):
        count = 0
        fresh = Game(model, "removed", players=Patches(PATCH))
        explained = cortx.shapley(fresh, images, "kernel", budget=budget, progress=False)
        assert budget - 3 * 2 < explained.evaluations == count <= budget


def test_small_memory_changes_nothing(vit: ViT, images: np.ndarray) -> None:
    asked = np.random.default_rng(1).random((3, 9, PLAYERS)) < 0.5
    large, small = make_game(vit), make_game(vit, memory_budget=2**20)
    rows = small.rows(images)
    assert small._chunk < 3 * 9
    values = small.values(rows, asked)
    np.testing.assert_allclose(values, large.values(large.rows(images), asked), atol=1e-6)


# Labels -------------------------------------------------------------------------------------------------------


def test_exact_labels_are_those_of_plain_loops(vit: ViT, images: np.ndarray) -> None:
    explained = cortx.shapley(make_game(vit), images[:2], progress=False)
    assert explained.method == "exact"
    for image, values in zip(images[:2], explained.values, strict=True):
        kept = {present.tobytes(): slow_value(vit, image, present) for present in coalitions(PLAYERS)}
        np.testing.assert_allclose(values, slow_shapley(lambda s, kept=kept: kept[s.tobytes()], PLAYERS), atol=1e-5)
    assert explained.outputs is not None
    np.testing.assert_allclose(explained.values.sum(axis=1) + explained.base_values, explained.outputs, atol=1e-9)
    assert explained.views is None, "an image with zeros in it is not what the model saw"


def test_sampled_labels_agree_with_exact_ones(vit: ViT, images: np.ndarray) -> None:
    exact = cortx.shapley(make_game(vit), images, progress=False).values
    for method in ("kernel", "permutation", "unbiased"):
        sampled = cortx.shapley(make_game(vit), images, method, row_budget=400, progress=False)
        assert np.abs(sampled.values - exact).max() < 0.2 * np.abs(exact).max()
        assert np.corrcoef(sampled.values.ravel(), exact.ravel())[0, 1] > 0.97


def test_what_is_masked_has_no_influence(vit: ViT, images: np.ndarray) -> None:
    """A model for which the first part is never there gives it nothing, whatever its pixels are."""

    class Blind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = vit

        def forward(self, images: Tensor, present: Tensor) -> Tensor:
            unseen = torch.zeros_like(present)
            unseen[:, 0] = True
            result: Tensor = self.inner(images, present & ~unseen)
            return result

    game, noisy = make_game(Blind()), images.copy()
    noisy[:, :, :PATCH, :PATCH] = np.random.default_rng(0).random((3, 1, PATCH, PATCH))
    one, two = (cortx.shapley(game, part, progress=False).values for part in (images, noisy))
    np.testing.assert_allclose(one[:, 0], 0, atol=1e-7)
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert np.abs(one[:, 1:]).max() > 0.01
    kept = torch.ones(3, 1, PLAYERS, dtype=torch.bool)
    kept[..., 4] = False
    free = make_game(vit)
    shown = free.values_of(torch.from_numpy(free.rows(images).table.matrix), kept)
    other = images.copy()
    other[:, :, PATCH : 2 * PATCH, PATCH : 2 * PATCH] = 1.0
    torch.testing.assert_close(free.values_of(torch.from_numpy(free.rows(other).table.matrix), kept), shown)


# Explainers ---------------------------------------------------------------------------------------------------


def small(recipe: Recipe) -> Recipe:
    assert recipe.stream is not None
    return replace(
        recipe,
        encoder=replace(recipe.encoder, width=8),
        head=replace(recipe.head, width=16),
        pretrain=replace(recipe.pretrain, steps=10, n_positives=2),
        stream=replace(recipe.stream, pairs=4, batch_size=64, imitation_steps=100, flip=False, shift=1, replays=1),
    )


@pytest.fixture(scope="module")
def fitted(vit: ViT, digits: tuple[np.ndarray, np.ndarray]) -> CoRTX:
    explainer = CoRTX(recipe=small(get_recipe("quick", images=True)), seed=0)
    return explainer.fit(make_game(vit), digits[0][:400], budget=100_000, progress=False)


@pytest.mark.slow
def test_an_explainer_is_fitted(fitted: CoRTX, vit: ViT, digits: tuple[np.ndarray, np.ndarray]) -> None:
    assert fitted.costs_["total_evaluations"] <= 150_000
    fresh = digits[0][1_500:1_530]
    explained = fitted.explain(fresh, confidence=0.9)
    assert explained.outputs is not None
    np.testing.assert_allclose(explained.values.sum(axis=1) + explained.base_values, explained.outputs, atol=1e-9)
    exact = cortx.shapley(make_game(vit), fresh, progress=False).values
    assert np.corrcoef(explained.values.ravel(), exact.ravel())[0, 1] > 0.7
    assert (explained.values != 0).any(axis=2).all(), "every part takes part, those of zeros too"
    assert explained.lower_bounds is not None
    assert explained.upper_bounds is not None
    inside = ((exact >= explained.lower_bounds) & (exact <= explained.upper_bounds)).all(axis=1)
    assert inside.mean() > 0.7
    values = fitted.attribute(torch.from_numpy(fresh))
    np.testing.assert_allclose(values.numpy(), explained.values, atol=1e-3)


@pytest.mark.slow
def test_it_is_saved_and_loaded(fitted: CoRTX, vit: ViT, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    fresh = digits[0][1_500:1_510]
    before = fitted.explain(fresh, confidence=0.9)
    folder = fitted.save(tmp_path / "vit.cortx")
    alone = cortx.load(folder)
    with_model = cortx.load(folder, model=vit)
    assert before.outputs is not None
    for explained in (alone.explain(fresh, before.outputs, confidence=0.9), with_model.explain(fresh, confidence=0.9)):
        np.testing.assert_allclose(explained.values, before.values, atol=1e-6)
        np.testing.assert_allclose(explained.error_bound, before.error_bound, rtol=1e-4)
    game = with_model.game
    assert game is not None
    assert game.removes
    assert game.absent_words == "nothing, the model leaves absent parts out by itself; 1 evaluation for each v(S)"
    rows, asked = game.rows(fresh), np.random.default_rng(0).random((10, 3, PLAYERS)) < 0.5
    there = make_game(vit)
    np.testing.assert_allclose(game.values(rows, asked), there.values(there.rows(fresh), asked), atol=1e-6)
    assert with_model.evaluate(digits[0][1_520:1_550], row_budget=2**PLAYERS).model.same
    other = ViT()
    with pytest.raises(FingerprintError):
        cortx.load(folder, model=other)
    with pytest.raises(InputError, match="reference='removed' calls the model as model"):
        cortx.load(folder, model=nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 10)))


@pytest.mark.slow
def test_it_is_exported(fitted: CoRTX, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    fresh = digits[0][1_500:1_510]
    before = fitted.explain(fresh, confidence=0.9)
    opened = portable.load(fitted.to_onnx(tmp_path / "portable"))
    found = opened.explain(fresh, before.outputs, confidence=0.9)
    np.testing.assert_allclose(found.values, before.values, atol=1e-4)
    np.testing.assert_allclose(found.error_bound, before.error_bound, rtol=1e-2)


def test_others_see_zeros(vit: ViT, digits: tuple[np.ndarray, np.ndarray]) -> None:
    game = make_game(vit)
    some = digits[0][:60]
    matrix, kept = torch.from_numpy(game.rows(some).table.matrix), torch.rand(60, PLAYERS) < 0.5
    masked = game.masked_images(matrix, kept).reshape(some.shape).numpy()
    for image, seen, present in zip(some, masked, kept.numpy(), strict=True):
        for y, x in product(range(SIDE), range(SIDE)):
            part = (y // PATCH) * (SIDE // PATCH) + x // PATCH
            assert seen[0, y, x] == (image[0, y, x] if present[part] else 0.0)
    surrogate = cortx.Surrogate(epochs=1, width=4, batch_size=20, flip=False, shift=0).fit(game, some)
    assert not surrogate.game.removes
    torch.testing.assert_close(surrogate.game.masked_images(matrix, kept), game.masked_images(matrix, kept))
    explained = cortx.shapley(surrogate.game, some[:2], progress=False)
    assert explained.outputs is not None
    np.testing.assert_allclose(explained.values.sum(axis=1) + explained.base_values, explained.outputs, atol=1e-6)


def test_games_are_told_apart(vit: ViT, images: np.ndarray) -> None:
    from cortx.games.fingerprint import game_key

    zero, removed, again = Game(lambda x: x, "zero", players=Patches(PATCH)), make_game(vit), make_game(vit)
    for game in (zero, removed, again):
        game.rows(images)
    assert game_key(removed) == game_key(again) != game_key(zero)


# Errors -------------------------------------------------------------------------------------------------------


class OneArgument(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :2]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OneArgument(), r"OneArgument\(images.*cannot be called so \(too many positional arguments\)\. Let it take"),
        (lambda images: images, r"`present` true for the parts that count; .*lambda>\(images\) cannot be called so"),
        (lambda a, b, c: a, r"missing a required argument: 'c'"),
    ],
)
def test_a_model_of_one_argument_is_refused(model: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Game(model, "removed", players=Patches(2))


def test_other_kinds_of_models_are_refused() -> None:
    class Estimator:
        def predict(self, X: Any) -> Any:
            return X

    with pytest.raises(InputError, match=r"got a Estimator model, which takes one argument\. Give a torch module"):
        Game(Estimator(), "removed", players=Patches(2))
    with pytest.raises(InputError, match="reference must be a table, a row or 'zero', got 'removed'"):
        Game(ViT(), "removed")
    with pytest.raises(InputError, match="saliency looks at whole or mixed images"):
        Saliency(make_game(ViT()))


def test_a_model_that_sees_what_is_absent_is_refused(images: np.ndarray) -> None:
    for model in (ViT(pool="mean"), lambda images, present: images.mean(axis=(1, 2, 3))):
        game = make_game(model, output="raw")
        rows = game.rows(images)
        with pytest.raises(ModelError, match=r"with no part present the model's output depends on the image: it diff"):
            game.empty_values(rows)


def test_a_model_that_cannot_answer_without_parts_is_told_so(images: np.ndarray) -> None:
    def mean(images: np.ndarray, present: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.asarray(present.sum(axis=1) / present.sum(axis=1))

    game = Game(mean, "removed", players=Patches(PATCH))
    with pytest.raises(ModelError, match=r"with no part present: the model returned NaN.* keep a class token"):
        cortx.shapley(game, images, progress=False)
