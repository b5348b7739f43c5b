"""FastSHAP for images against known answers, plain loops and its own promises."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cortx
from cortx.errors import BudgetError, InputError, NotFittedError
from cortx.games.players import Segments
from cortx.images import ImageSchema
from cortx.rivals import RIVALS
from cortx.rivals.fastshap import FastSHAP, size_probabilities
from cortx.rivals.fastshap_images import (
    ImageFastSHAP,
    ImageFastSHAPSettings,
    UNet,
    _ask,
    _Batch,
    draw_coalitions,
    levels,
    stretch,
)
from cortx.training.augment import moved

SIDE, OUTPUTS = 8, 3
BRIEF: dict[str, Any] = {"batch_size": 4, "epochs": 2, "validation_images": 3, "base_channels": 2, "shift": 1}


class Planted(nn.Module):
    """Every logit is a weighted sum of the means of the 2 x 2 patches; notes how many images each call brings."""

    def __init__(self, layout: str = "first") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weights = nn.Parameter(torch.randn((SIDE // 2) ** 2, OUTPUTS, generator=generator))
        self.layout, self.seen = layout, list[int]()

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        if self.layout == "grey":
            images = images[:, None]
        elif self.layout == "last":
            images = images.permute(0, 3, 1, 2)
        means = nn.functional.avg_pool2d(images.mean(dim=1, keepdim=True), 2).flatten(1)
        return means @ self.weights


def pictures(n: int, seed: int = 0) -> np.ndarray:
    """Patches of random brightness, with a little noise, (n, 3, side, side)."""
    rng = np.random.default_rng(seed)
    bright = np.kron(rng.random((n, 1, SIDE // 2, SIDE // 2)), np.ones((1, 3, 2, 2)))
    return (0.9 * bright + 0.1 * rng.random((n, 3, SIDE, SIDE))).astype(np.float32)


def game_of(network: Any = None, **settings: Any) -> cortx.Game:
    usual: dict[str, Any] = {"reference": "zero", "players": cortx.Patches(2), "output": "raw"}
    return cortx.Game(Planted() if network is None else network, **(usual | settings))


def brief(seed: int = 0, kind: type[ImageFastSHAP] = ImageFastSHAP, **settings: Any) -> ImageFastSHAP:
    return kind(ImageFastSHAPSettings(**(BRIEF | settings)), seed=seed)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Draws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 16])
def test_sizes_are_drawn_from_the_shapley_kernel(n: int) -> None:
    kept = draw_coalitions(10_000, 4, torch.from_numpy(size_probabilities(n)), generator())
    assert kept.shape == (10_000, 4, n)
    assert kept.dtype == torch.bool
    total = sum(1 / (s * (n - s)) for s in range(1, n))
    counted = Counter(kept[:, 0::2].sum(dim=2).flatten().tolist())
    expected = {s: 20_000 / (s * (n - s)) / total for s in range(1, n)}
    assert set(counted) <= set(expected)
    distance = sum((counted[s] - mean) ** 2 / mean for s, mean in expected.items())
    assert distance < (n - 2) + 5 * np.sqrt(2 * max(n - 2, 1))  # chi-square: mean n - 2, variance twice that


def test_players_are_equally_likely_and_pairs_are_complements() -> None:
    kept = draw_coalitions(20_000, 3, torch.from_numpy(size_probabilities(5)), generator(1))
    assert kept.shape == (20_000, 3, 5)
    assert (kept[:, 0] ^ kept[:, 1]).all()
    two = kept[:, 0][kept[:, 0].sum(dim=1) == 2].numpy()
    pairs = Counter(tuple(np.flatnonzero(row)) for row in two)
    assert len(pairs) == 10
    assert np.abs(np.array(list(pairs.values())) / len(two) - 0.1).max() < 5 * 0.3 / np.sqrt(len(two))


def test_images_are_moved_and_mirrored() -> None:
    shift, black = 1, -0.5
    image = np.random.default_rng(2).random((2, 4, 5))
    images = torch.from_numpy(image)[None].repeat(600, 1, 1, 1)
    drawn = moved(images, flip=True, shift=shift, fill=black, generator=generator()).numpy()
    allowed = []
    for mirrored, down, right in product((False, True), range(-shift, shift + 1), range(-shift, shift + 1)):
        one = np.full(image.shape, black)
        for row, column in product(range(4), range(5)):
            if 0 <= row + down < 4 and 0 <= column + right < 5:
                one[:, row, column] = image[:, row + down, column + right]
        allowed.append(one[:, :, ::-1] if mirrored else one)
    found = Counter(next(i for i, one in enumerate(allowed) if np.array_equal(one, image)) for image in drawn)
    assert set(found) == set(range(len(allowed)))
    assert abs(sum(found[i] for i in range(9)) / 600 - 0.5) < 0.1


# The network --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("small", "large"), [(1, 1), (1, 2), (2, 4), (4, 8), (3, 7)])
def test_stretching_is_bilinear_interpolation(small: int, large: int) -> None:
    x = torch.randn(1, 1, small, 1, generator=generator())
    expected = nn.functional.interpolate(x, (large, 1), mode="bilinear", align_corners=True)
    torch.testing.assert_close(stretch(small, large) @ x[0, 0], expected[0, 0])


def test_network_of_two_by_two_patches_is_the_published_one() -> None:
    assert levels((32, 32), (16, 16)) == (2, 1, (1, 1))
    network = UNet(ImageSchema((3, 32, 32)), (16, 16), 10, base_channels=64, generator=generator())
    scales = [(3, 64), *2 * [(64, 64)], (64, 128), *2 * [(128, 128)], *3 * [(128, 128)], (256, 128), *2 * [(128, 128)]]
    counted = sum(9 * before * after + 2 * after for before, after in scales) + 10 * (128 + 1)
    assert sum(weights.numel() for weights in network.parameters()) == counted
    assert network(torch.rand(2, 3 * 32 * 32)).shape == (2, 256, 10)


@pytest.mark.parametrize(
    ("size", "patch"),
    [((8, 8), (1, 1)), ((8, 8), (2, 2)), ((8, 8), (4, 4)), ((16, 16), (8, 8)), ((9, 9), (3, 3)), ((12, 12), (6, 6)),
     ((8, 16), (2, 4)), ((8, 16), (8, 8)), ((28, 28), (4, 4)), ((1, 6), (1, 2)), ((5, 7), (1, 1))],
)  # fmt: skip
def test_every_patch_has_its_place(size: tuple[int, int], patch: tuple[int, int]) -> None:
    grid = size[0] // patch[0], size[1] // patch[1]
    down, up, rest = levels(size, grid)
    assert 0 <= up <= down
    assert rest == (patch[0] >> (down - up), patch[1] >> (down - up))
    network = UNet(ImageSchema((1, *size)), grid, 2, base_channels=2, generator=generator())
    assert network(torch.rand(3, size[0] * size[1])).shape == (3, grid[0] * grid[1], 2)


# The loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", [True, False])
def test_loss_is_the_published_one(normalization: bool) -> None:
    rng = np.random.default_rng(4)
    raw, kept = rng.normal(size=(3, 5, 2)), rng.random((3, 4, 5)) < 0.5
    values, total = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 2))
    rival = ImageFastSHAP(ImageFastSHAPSettings(efficiency_weight=0.3), normalization=normalization)
    residuals, gaps = [], []
    for image, output in product(range(3), range(2)):
        gap = total[image, output] - sum(raw[image, :, output])
        gaps.append(gap**2)
        phi = [raw[image, j, output] + (gap / 5 if normalization else 0) for j in range(5)]
        for k in range(4):
            explained = sum(phi[j] for j in range(5) if kept[image, k, j])
            residuals.append((values[image, k, output] - explained) ** 2)
    found = rival._loss(*(torch.from_numpy(array) for array in (raw, kept, values, total)))
    assert float(found) == pytest.approx(5 * (np.mean(residuals) + 0.3 * np.mean(gaps)))


@pytest.mark.parametrize("reference", ["zero", "mean", "blur"])
def test_what_is_asked_is_what_the_game_says(reference: str) -> None:
    game, images = game_of(reference=reference), pictures(3)
    rows = game.rows(images)
    kept = np.random.default_rng(0).random((3, 4, game.n_players)) < 0.5
    empty = torch.from_numpy(game.base_values).float()
    values, total = _ask(game, torch.from_numpy(rows.table.matrix), torch.from_numpy(kept), empty)
    nothing = game.empty_values(rows)
    np.testing.assert_allclose(values, game.values(rows, kept) - nothing[:, None], atol=1e-5)
    np.testing.assert_allclose(total, game.full_values(rows) - nothing, atol=1e-5)


# Learning -----------------------------------------------------------------------------------------------------


def exact(network: Planted, images: np.ndarray) -> np.ndarray:
    """Of an additive game: the weight of a patch times its mean, (n, players, outputs)."""
    weights = network.weights.detach().numpy()
    result = np.zeros((len(images), len(weights), OUTPUTS))
    for image, (row, column) in product(range(len(images)), product(range(4), range(4))):
        patch = images[image, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        result[image, 4 * row + column] = patch.mean() * weights[4 * row + column]
    return result


def test_it_learns_an_additive_game_and_values_add_up() -> None:
    network = Planted()
    game = game_of(network)
    settings = ImageFastSHAPSettings(
        batch_size=32, samples=16, epochs=12, learning_rate=1e-2, base_channels=8, flip=False, shift=0
    )
    rival = ImageFastSHAP(settings, seed=1).fit(game, pictures(400))
    images = pictures(60, seed=9)
    explanation, known = rival.explain(images), exact(network, images)
    assert explanation.values.shape == (60, 16, OUTPUTS)
    assert np.corrcoef(explanation.values.ravel(), known.ravel())[0, 1] > 0.95
    own = [values - values.mean(axis=0) for values in (explanation.values, known)]  # what one map for all does not know
    assert np.corrcoef(own[0].ravel(), own[1].ravel())[0, 1] > 0.85
    assert rival.history_[-1] < 0.3 * rival.history_[0]
    gap = explanation.values.sum(axis=1) + explanation.base_values - explanation.outputs
    assert np.abs(gap).max() < 1e-12


@pytest.mark.parametrize("reference", ["mean", "blur"])
def test_images_may_be_their_own_reference(reference: str) -> None:
    game, images = game_of(reference=reference), pictures(12)
    rival = brief().fit(game, images)
    n_held = 2  # a fifth
    assert rival.costs_["evaluations"] == 1 + n_held * (4 + 2) + 2 * 2 * 4 * (2 + 2)
    explanation = rival.explain(images)
    np.testing.assert_allclose(explanation.base_values, game.empty_values(game.rows(images)), atol=1e-6)
    assert np.abs(explanation.values.sum(axis=1) + explanation.base_values - explanation.outputs).max() < 1e-12


def test_without_normalization_values_are_as_predicted() -> None:
    images = pictures(20)
    rival = ImageFastSHAP(ImageFastSHAPSettings(**BRIEF), normalization=False).fit(game_of(), images)
    explanation = rival.explain(images)
    expected = rival._network(torch.from_numpy(images.reshape(20, -1)))
    np.testing.assert_allclose(explanation.values, expected, atol=1e-5)


def test_layouts_agree() -> None:
    images = pictures(20)
    first = brief().fit(game_of(), images).explain(images[:3])
    last_images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    game = game_of(Planted("last"), players=cortx.Patches(2, channels="last"))
    last = brief().fit(game, last_images).explain(last_images[:3])
    np.testing.assert_allclose(last.values, first.values, atol=1e-4)
    grey = brief().fit(game_of(Planted("grey")), images[:, 0]).explain(images[:3, 0])
    assert grey.values.shape == first.values.shape


def test_one_output_has_two_axes() -> None:
    images = pictures(20)
    explanation = brief().fit(game_of(target=1), images).explain(images[:5])
    assert explanation.values.shape == (5, 16)
    assert explanation.output_names is None


def test_the_same_seed_gives_the_same_values() -> None:
    images, state = pictures(20), torch.get_rng_state()
    one, again, other = (brief(seed).fit(game_of(), images).explain(images).values for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), state)


class Watched(ImageFastSHAP):
    """Notes the network at every validation."""

    def _validation_loss(self, *arguments: Any) -> float:
        assert not any(part.training for part in self._network.modules())
        value = super()._validation_loss(*arguments)
        self.moments = [*getattr(self, "moments", []), (value, copy.deepcopy(self._network.state_dict()))]
        return value


def test_the_best_epoch_is_kept() -> None:
    rival = brief(kind=Watched, epochs=6, learning_rate=0.3).fit(game_of(), pictures(30))
    assert isinstance(rival, Watched)
    losses = [value for value, _ in rival.moments]
    assert losses == rival.history_
    best = rival.moments[int(np.argmin(losses))][1]
    assert all(torch.equal(tensor, best[name]) for name, tensor in rival._network.state_dict().items())
    assert any(name.endswith("running_mean") and tensor.abs().max() > 0 for name, tensor in best.items())


def test_validation_loss_is_the_mean_over_images_in_any_chunks() -> None:
    rival = brief(kind=Watched).fit(game_of(), pictures(30), validation=pictures(20, seed=5))
    game, flat = rival._game, torch.from_numpy(pictures(20, seed=5).reshape(20, -1))
    assert game is not None
    kept = torch.rand(20, 3, 16, generator=generator()) < 0.5
    values, total = torch.randn(20, 3, OUTPUTS, generator=generator()), torch.randn(20, OUTPUTS, generator=generator())
    rival.settings = ImageFastSHAPSettings(efficiency_weight=0.0)  # base_channels of the default: small chunks
    game.memory_budget = 2**20
    assert rival._chunk(game) < 20
    with torch.no_grad():
        expected = rival._loss(rival._network(flat), kept, values, total)
    assert rival._validation_loss(game, _Batch(flat, kept, values, total)) == pytest.approx(float(expected), rel=1e-5)


class Flat(ImageFastSHAP):
    """Is told that no epoch is better than the first."""

    def _validation_loss(self, *arguments: Any) -> float:
        return 1.0


def test_training_ends_when_nothing_gets_better() -> None:
    rival = brief(kind=Flat, epochs=50, lookback=3).fit(game_of(), pictures(20))
    assert rival.costs_["epochs"] == 1 + 3
    assert rival.history_ == [1.0] * 4


def test_an_image_alone_is_explained_as_in_a_batch() -> None:
    images = pictures(20)
    rival = brief().fit(game_of(), images)
    together = rival.explain(images).values
    np.testing.assert_allclose(rival.explain(images[7:8]).values, together[7:8], atol=1e-5)


# Cost ---------------------------------------------------------------------------------------------------------


def test_every_evaluation_is_counted_and_batches_are_alike() -> None:
    network = Planted()
    game = game_of(network)
    rival = brief(samples=4).fit(game, pictures(25))
    n_held, per_epoch = 3, 22 // 4
    step = 4 * (4 + 1)
    assert rival.costs_["evaluations"] == sum(network.seen) == game.evaluations
    assert network.seen == [1, n_held * (4 + 1), *2 * per_epoch * [step]]
    assert {key: rival.costs_[key] for key in ("rows", "samples", "epochs", "steps", "validation_rows")} == {
        "rows": 22, "samples": 4, "epochs": 2, "steps": 2 * per_epoch, "validation_rows": n_held,
    }  # fmt: skip


@pytest.mark.parametrize("more", [0, 1, 11, 12, 60, 61, 500])
def test_a_budget_is_never_exceeded(more: int) -> None:
    network = Planted()
    least = 1 + 3 * (4 + 1) + 4 * (2 + 1)
    rival = brief(epochs=3).fit(game_of(network), pictures(25), budget=least + more)
    steps = min(1 + more // 12, 3 * (22 // 4))
    assert rival.costs_["evaluations"] == sum(network.seen) == least + 12 * (steps - 1) <= least + more
    assert rival.costs_["steps"] == steps
    assert len(rival.history_) == -(-steps // 5)


@pytest.mark.parametrize("budget", [0, 1, 27])
def test_too_small_a_budget_is_refused(budget: int) -> None:
    network = Planted()
    with pytest.raises(BudgetError, match="at least"):
        brief().fit(game_of(network), pictures(25), budget=budget)
    assert sum(network.seen) <= budget


def test_known_outputs_cost_nothing() -> None:
    game, images = game_of(), pictures(20)
    rival = brief().fit(game, images)
    explanation = rival.explain(images)
    assert explanation.evaluations == 20
    free = rival.explain(images, outputs=explanation.outputs)
    assert free.evaluations == 0
    np.testing.assert_array_equal(free.values, explanation.values)


# What is refused ----------------------------------------------------------------------------------------------


def test_wrong_games_are_refused() -> None:
    images = pictures(20)
    halves = np.repeat([[0], [1]], [4, 4], axis=0).repeat(SIDE, axis=1)
    with pytest.raises(InputError, match="segments"):
        brief().fit(game_of(players=Segments(halves)), images)
    with pytest.raises(InputError, match="use FastSHAP"):
        brief().fit(cortx.Game(lambda rows: rows.sum(axis=1), reference="zero"), np.zeros((5, 3)))
    with pytest.raises(InputError, match="use ImageFastSHAP"):
        FastSHAP().fit(game_of(), images, budget=1_000)
    with pytest.raises(InputError, match="two players"):
        brief().fit(game_of(players=cortx.Patches(SIDE)), images)
    with pytest.raises(InputError, match="out of sight"):
        brief(shift=SIDE).fit(game_of(), images)
    with pytest.raises(InputError, match="two images"):
        brief().fit(game_of(), images[:2])
    with pytest.raises(NotFittedError, match="fit"):
        brief().explain(images)


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 3}, {"samples": 0}, {"batch_size": 1}, {"epochs": 0}, {"shift": -1}, {"learning_rate": 0.0},
     {"smallest_rate": 1.0}, {"rate_factor": 1.0}, {"efficiency_weight": -1.0}, {"base_channels": 0}],
)  # fmt: skip
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ImageFastSHAPSettings(**wrong)


def test_it_has_a_short_name() -> None:
    assert RIVALS["fastshap-images"] is ImageFastSHAP
    assert ImageFastSHAP.name == "fastshap-images"
