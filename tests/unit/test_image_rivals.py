"""Rivals for images: each against its definition in plain loops, honest cost, no trace in the global generators."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cortx import Game
from cortx.errors import InputError, MissingDependencyError
from cortx.games.players import Patches, Segments
from cortx.rivals import IMAGE_RIVALS, RIVALS
from cortx.rivals.gradients import DeepSHAP, GradCAM, IntegratedGradients, Saliency, SmoothGrad
from cortx.rivals.rise import RISE, draw_masks
from cortx.rivals.sampled import Sampled
from cortx.rivals.xrai import XRAI, rank_regions, segment_images

SIDE, CLASSES, N = 8, 3, 4
SMALL: dict[str, dict[str, Any]] = {"smoothgrad": {"samples": 6}, "rise": {"masks": 24}, "xrai": {"steps": 5}}
SMALL["integrated-gradients"] = {"steps": 8}
every_rival = pytest.mark.parametrize("name", IMAGE_RIVALS)
LAYOUTS = ("first", "last", "grey")


class Network(nn.Module):
    """A small convolutional network for images in any layout."""

    def __init__(self, layout: str = "first", activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.layout = layout
        generator = torch.Generator().manual_seed(7)
        self.features = nn.Sequential(
            nn.Conv2d(1 if layout == "grey" else 3, 5, 3, padding=1),
            activation(),
            nn.AvgPool2d(2),
            nn.Conv2d(5, 4, 3, padding=1),
            activation(),
        )
        self.pool, self.flat, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
        with torch.no_grad():
            for weights in self.parameters():
                weights.normal_(0, 0.7, generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        if self.layout == "grey":
            images = images[:, None]
        elif self.layout == "last":
            images = images.permute(0, 3, 1, 2)
        logits: Tensor = self.head(self.flat(self.pool(self.features(images))))
        return logits


@cache
def pictures(layout: str = "first", n: int = N) -> np.ndarray:
    shape = {"first": (3, SIDE, SIDE), "last": (SIDE, SIDE, 3), "grey": (SIDE, SIDE)}[layout]
    return np.random.default_rng(1).random((n, *shape)).astype(np.float32)


def game_of(network: nn.Module, layout: str = "first", **settings: Any) -> Game:
    channels: Any = "last" if layout == "last" else "first"
    settings = {"reference": "zero", "output": "probability", "players": Patches(2, channels=channels)} | settings
    return Game(network, **settings)


def build(name: str, game: Game, **settings: Any) -> Any:
    maker: Any = RIVALS[name]
    return maker(game, **(SMALL.get(name, {}) | settings))


def by_patch(maps: np.ndarray, layout: str = "first", mean: bool = False) -> np.ndarray:
    """Maps of images in their layout, or of pixels, joined by 2 x 2 patches in plain loops."""
    if maps.ndim == 4:
        maps = maps.sum(axis=1 if layout == "first" else 3)
    result = np.zeros((len(maps), (SIDE // 2) ** 2))
    for n in range(len(maps)):
        for i in range(SIDE):
            for j in range(SIDE):
                result[n, (i // 2) * (SIDE // 2) + j // 2] += maps[n, i, j]
    return result / 4 if mean else result


def gradient(network: nn.Module, image: Tensor, k: int) -> Tensor:
    image = image.clone().requires_grad_()
    network(image[None])[0, k].backward()
    assert image.grad is not None
    network.zero_grad(set_to_none=True)
    return image.grad


def logits_of(network: nn.Module, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network(torch.from_numpy(images)).double().numpy()


# Gradients ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saliency_is_the_absolute_gradient_of_the_logit(layout: str) -> None:
    network, images = Network(layout), pictures(layout)
    classes = logits_of(network, images).argmax(axis=1)
    truth = [gradient(network, torch.from_numpy(x), k).abs().numpy() for x, k in zip(images, classes, strict=True)]
    explanation = Saliency(game_of(network, layout)).explain(images)
    np.testing.assert_allclose(explanation.values, by_patch(np.array(truth), layout), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reference", ["zero", "blur"])
def test_integrated_gradients_follow_the_line_and_add_up(layout: str, reference: str) -> None:
    network, images = Network(layout, nn.Tanh), pictures(layout)
    game = game_of(network, layout, reference=reference)
    classes = np.array([2, 0, 1, 0])
    explanation = IntegratedGradients(game).explain(images, classes=classes)
    absent = np.zeros_like(images) if reference == "zero" else absent_images(game, images)
    steps, truth = 80, np.zeros(images.shape)
    for i, k in enumerate(classes):
        x, start = torch.from_numpy(images[i]), torch.from_numpy(absent[i])
        for step in range(steps):
            point = start + (step + 0.5) / steps * (x - start)
            truth[i] += (gradient(network, point, int(k)) * (x - start)).numpy() / steps
    np.testing.assert_allclose(explanation.values, by_patch(truth, layout), atol=1e-4)
    each = np.arange(N), classes
    rise = logits_of(network, images)[each] - logits_of(network, absent)[each]
    np.testing.assert_allclose(explanation.values.sum(axis=1), rise, atol=1e-4)


def absent_images(game: Game, images: np.ndarray) -> np.ndarray:
    """What the model is shown when every patch is absent."""
    shown: list[Tensor] = []
    hook = game.model.module.register_forward_pre_hook(lambda _, inputs: shown.append(inputs[0]))
    rows = game.rows(images)
    game.values(rows, np.zeros((len(rows), 1, game.n_players), dtype=bool), distinct=True)
    hook.remove()
    return torch.cat(shown)[-len(images) :].float().numpy()


def test_smoothgrad_is_the_mean_saliency_of_noisy_copies() -> None:
    network, images = Network(activation=nn.Tanh), pictures()
    game, classes = game_of(network), np.zeros(N, dtype=int)
    plain = Saliency(game).explain(images, classes=classes)
    little = SmoothGrad(game, samples=3, noise=1e-5).explain(images, classes=classes)
    np.testing.assert_allclose(little.values, plain.values, rtol=1e-3, atol=1e-4)
    samples, noise = 2_000, 0.3
    much = SmoothGrad(game, samples=samples, noise=noise, batch=4_000).explain(images[:1], classes=classes[:1])
    copies = images[0] + noise * np.random.default_rng(0).normal(size=(samples, *images[0].shape)).astype(np.float32)
    inputs = torch.from_numpy(copies).requires_grad_()
    network(inputs)[:, 0].sum().backward()
    assert inputs.grad is not None
    each = by_patch(inputs.grad.abs().numpy())
    spread = each.std(axis=0) * np.sqrt(2 / samples)  # both means are noisy
    assert (np.abs(much.values[0] - each.mean(axis=0)) < 5 * spread).all()
    assert np.abs(much.values[0] - plain.values[0]).max() > 10 * spread.max()


def stretch(small: np.ndarray, side: int) -> np.ndarray:
    """Bilinear: pixel centres on pixel centres, the border continued."""
    large, height = np.zeros((side, side)), len(small)
    for i in range(side):
        for j in range(side):
            y, x = (np.clip((p + 0.5) * height / side - 0.5, 0, height - 1) for p in (i, j))
            top, left = min(int(y), height - 2), min(int(x), height - 2)
            down, right = y - top, x - left
            rows = small[top : top + 2, left : left + 2] @ [1 - right, right]
            large[i, j] = rows @ [1 - down, down]
    return large


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("layer", [None, "features", "features.1"])
def test_gradcam_weighs_the_channels_of_a_layer(layer: str | None, positive: bool) -> None:
    network, images = Network(), pictures()
    cut = 2 if layer == "features.1" else 5  # by default the last map: what `features` gives
    truth = []
    for x in torch.from_numpy(images):
        maps = network.features[:cut](x[None]).detach().requires_grad_()
        rest = network.features[cut:](maps)
        network.head(network.flat(network.pool(rest)))[0, 1].backward()
        assert maps.grad is not None
        total = np.zeros(maps.shape[2:])
        for channel in range(maps.shape[1]):
            total += float(maps.grad[0, channel].mean()) * maps[0, channel].detach().numpy()
        truth.append(stretch(np.maximum(total, 0) if positive else total, SIDE))
    rival = GradCAM(game_of(network), layer=layer, positive=positive)
    explanation = rival.explain(images, classes=np.ones(N, dtype=int))
    np.testing.assert_allclose(explanation.values, by_patch(np.array(truth)), rtol=1e-4, atol=1e-5)


def test_gradcam_says_which_layers_there_are() -> None:
    with pytest.raises(InputError, match=r"no layer 'layer4'; its layers are features, features.0"):
        GradCAM(game_of(Network()), layer="layer4")
    with pytest.raises(InputError, match=r"the layer 'head' gives shape .*; gradcam needs"):
        GradCAM(game_of(Network()), layer="head").explain(pictures())
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, CLASSES))
    with pytest.raises(InputError, match="the network has none"):
        GradCAM(game_of(flat)).explain(pictures())


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_deepshap_adds_up(reference: str) -> None:
    network, images = Network(), pictures()
    game = game_of(network, reference=reference)
    explanation = DeepSHAP(game).explain(images, classes=[0, 1, 2, 0])
    each = np.arange(N), [0, 1, 2, 0]
    rise = logits_of(network, images)[each] - logits_of(network, absent_images(game, images))[each]
    np.testing.assert_allclose(explanation.values.sum(axis=1), rise, atol=1e-5)
    assert np.abs(rise).max() > 0.1


def test_deepshap_of_a_small_network_by_hand() -> None:
    """One nonlinearity: the multiplier of a hidden unit is the slope of its secant."""
    generator = torch.Generator().manual_seed(0)
    hidden, head = nn.Linear(192, 6), nn.Linear(6, CLASSES)
    with torch.no_grad():
        for weights in (*hidden.parameters(), *head.parameters()):
            weights.normal_(generator=generator)
    network, images = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), head), pictures()
    truth = np.zeros(images.shape)
    for i, x in enumerate(images):
        before, after = (hidden(torch.from_numpy(v.ravel())).detach().numpy() for v in (np.zeros_like(x), x))
        for unit in range(6):
            slope = (max(after[unit], 0) - max(before[unit], 0)) / (after[unit] - before[unit])
            through = head.weight[2, unit].item() * slope * hidden.weight[unit].detach().numpy()
            truth[i] += through.reshape(x.shape) * x
    explanation = DeepSHAP(game_of(network)).explain(images, classes=np.full(N, 2))
    np.testing.assert_allclose(explanation.values, by_patch(truth), rtol=1e-3, atol=1e-4)


def test_deepshap_refuses_modules_that_it_cannot_follow() -> None:
    inside = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, CLASSES))
    with pytest.raises(InputError, match=r"in place: '1'; build the network with inplace=False"):
        DeepSHAP(game_of(inside)).explain(pictures())
    relu = nn.ReLU()
    twice = nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu, nn.Flatten(), nn.Linear(64, CLASSES))
    with pytest.raises(InputError, match=r"more than once in a pass: '1'; give each use a module of its own"):
        DeepSHAP(game_of(twice)).explain(pictures())


@pytest.mark.parametrize("name", ["saliency", "integrated-gradients", "gradcam", "deepshap", "rise", "xrai"])
def test_batches_do_not_change_the_result(name: str) -> None:
    game = game_of(Network())
    one = build(name, game, batch=1).explain(pictures())
    for batch in (3, 7, 1_000):
        some = build(name, game, batch=batch).explain(pictures())
        np.testing.assert_allclose(some.values, one.values, rtol=1e-4, atol=1e-5)
        assert some.evaluations <= one.evaluations


# RISE -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["probability", "log-odds", "raw"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rise_is_the_weighted_mean_of_masks(layout: str, output: str) -> None:
    network, images = Network(layout), pictures(layout)
    game = game_of(network, layout, reference="blur", output=output)
    absent, keep, n_masks = absent_images(game, images), 0.4, 10
    explanation = RISE(game, masks=n_masks, grid=3, keep=keep, seed=3, batch=4).explain(images, classes=[2, 1, 0, 2])
    masks = draw_masks(n_masks, (SIDE, SIDE), (3, 3), keep, 3).numpy()
    truth = np.zeros((N, SIDE, SIDE))
    for i, k in enumerate([2, 1, 0, 2]):
        for mask in masks:
            shaped = mask[..., None] if layout == "last" else mask
            logits = logits_of(network, (shaped * images[i] + (1 - shaped) * absent[i])[None])[0]
            truth[i] += np.exp(logits[k]) / np.exp(logits).sum() * mask / (n_masks * keep)
    np.testing.assert_allclose(explanation.values, by_patch(truth, mean=True), rtol=1e-4)


@pytest.mark.parametrize(("size", "grid"), [((32, 32), (8, 8)), ((8, 8), (8, 8)), ((9, 14), (4, 5)), ((5, 5), (7, 7))])
def test_masks_are_smooth_and_kept_with_the_given_probability(size: tuple[int, int], grid: tuple[int, int]) -> None:
    masks = draw_masks(4_000, size, grid, 0.3, 0).numpy()
    assert masks.shape == (4_000, *size)
    assert masks.min() >= 0
    assert masks.max() <= 1
    np.testing.assert_allclose(masks.mean(axis=0), 0.3, atol=5 * np.sqrt(0.3 * 0.7 / 4_000))
    cell = -(-size[0] // grid[0])
    assert np.abs(np.diff(masks, axis=1)).max() <= 1 / cell * (grid[0] + 1) / grid[0] + 1e-6
    assert len(np.unique(masks.reshape(4_000, -1), axis=0)) > 3_000


# XRAI -----------------------------------------------------------------------------------------------------


def planted() -> np.ndarray:
    """Dim noise, and a bright square at rows 8..15 and columns 16..23."""
    images = 0.05 * np.random.default_rng(0).random((3, 3, 32, 32)).astype(np.float32)
    images[:, :, 8:16, 16:24] += 0.9
    return images


class Brightness(nn.Module):
    """Class 1 is how bright the image is."""

    def forward(self, images: Tensor) -> Tensor:
        bright = torch.tanh(images.mean(dim=(1, 2, 3)))
        return torch.stack([-bright, bright], dim=1)


@pytest.mark.parametrize("given", [False, True])
def test_xrai_ranks_a_planted_region_first(given: bool) -> None:
    images = planted()
    segments = segment_images(images) if given else None
    if segments is not None:
        file = io.BytesIO()
        np.savez(file, segments=segments)
        file.seek(0)
        segments = np.load(file)["segments"]
        assert segments.shape == (3, 6, 32, 32)
    game = Game(Brightness(), reference="zero", players=Patches(4), output="probability", target="all")
    # From black a bright pixel counts for its brightness, and from white a dark one lowers less than it could.
    explanation = XRAI(game, segments, steps=8).explain(images, classes=[1, 1, 1])
    inside = np.zeros((8, 8), dtype=bool)
    inside[2:4, 4:6] = True
    for values in explanation.values:
        assert values[inside.ravel()].min() > values[~inside.ravel()].max()


def greedy(attributions: np.ndarray, regions: list[np.ndarray], least: int) -> np.ndarray:
    """XRAI's definition, one region after another."""
    covered, values = np.zeros(attributions.shape, dtype=bool), np.full(attributions.shape, np.nan)
    while True:
        gains = [(attributions[r & ~covered].mean(), i) for i, r in enumerate(regions) if (r & ~covered).sum() >= least]
        if not gains:
            break
        gain, best = max(gains)
        values[regions[best] & ~covered] = gain
        covered |= regions[best]
    if not covered.all():
        values[~covered] = attributions[~covered].mean()
    return values


def dilate(region: np.ndarray) -> np.ndarray:
    grown = region.copy()
    for i, j in np.argwhere(region):
        for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            if 0 <= i + di < region.shape[0] and 0 <= j + dj < region.shape[1]:
                grown[i + di, j + dj] = True
    return grown


@pytest.mark.parametrize("seed", range(4))
def test_regions_are_added_by_their_gain(seed: int) -> None:
    rng = np.random.default_rng(seed)
    attributions = rng.normal(size=(32, 32))
    segments = np.stack([np.kron(rng.integers(0, k, (8, 8)), np.ones((4, 4), dtype=int)) for k in (4, 9, 30)])
    regions = [dilate(scale == k) for scale in segments for k in np.unique(scale)]
    # In proportion to the authors' 224 pixels: 50 pixels to add become one.
    np.testing.assert_allclose(rank_regions(attributions, segments), greedy(attributions, regions, 1), atol=1e-9)


def test_xrai_takes_attributions_and_checks_what_it_gets() -> None:
    network, images = Network(), pictures()
    game, segments = game_of(network), segment_images(pictures())
    maps = np.random.default_rng(0).normal(size=(N, SIDE, SIDE))
    explanation = XRAI(game, segments).explain(images, attributions=maps)
    assert explanation.evaluations == N + 1  # v(all) of each image, and v(none)
    truth = np.stack([rank_regions(*pair) for pair in zip(maps, segments, strict=True)])
    np.testing.assert_allclose(explanation.values, by_patch(truth, mean=True))
    with pytest.raises(InputError, match=r"segments have shape \(4, 6, 8, 8\); expected .* \(2, scales, 8, 8\)"):
        XRAI(game, segments).explain(images[:2])
    with pytest.raises(InputError, match=r"attributions have shape \(4, 8\); expected .*\(4, 8, 8\)"):
        XRAI(game, segments).explain(images, attributions=maps[..., 0])


def test_xrai_averages_black_and_white_and_takes_the_largest_channel() -> None:
    network, images = Network(activation=nn.Tanh), pictures()
    one_each = np.arange(SIDE * SIDE).reshape(1, 1, SIDE, SIDE).repeat(N, 0)  # every pixel a region of its own
    truth = np.zeros((N, SIDE * SIDE))
    for i in range(N):
        maps = np.zeros(images[i].shape)
        for end in (0.0, 1.0):
            x, start = torch.from_numpy(images[i]), torch.full((3, SIDE, SIDE), end)
            for step in range(60):
                maps += (gradient(network, start + (step + 0.5) / 60 * (x - start), 1) * (x - start)).numpy() / 120
        truth[i] = maps.max(axis=0).ravel()
    explanation = XRAI(game_of(network, players=Patches(1)), one_each, steps=20).explain(images, classes=[1] * N)
    np.testing.assert_allclose(explanation.values, truth, atol=1e-4)


@pytest.mark.slow
def test_segments_are_as_many_as_in_enlarged_images() -> None:
    folder = os.environ.get("CORTX_DATA")
    if not folder:
        pytest.skip("CORTX_DATA, the folder with the CIFAR-10 images, is not set")
    file = Path(folder, "cifar-10-jpeg", "cifar10_exact_test.npz")
    if not file.exists():
        pytest.skip(f"there is no {file}")
    from skimage.transform import resize

    with np.load(file) as data:
        images = data["images"][:6]
    large = np.stack([resize(x.transpose(1, 2, 0) / 255, (224, 224), order=3).transpose(2, 0, 1) for x in images])
    few, many = (segment_images(np.clip(x, 0, 1)).max(axis=(2, 3)) + 1.0 for x in (images / 255, large))
    ratio = few.mean(axis=0) / many.mean(axis=0)
    assert ratio.min() > 0.5
    assert ratio.max() < 2


# What all of them promise ---------------------------------------------------------------------------------


@every_rival
def test_the_result_says_what_it_is(name: str) -> None:
    network, images = Network(), pictures()
    game = game_of(network)
    explanation = build(name, game).explain(images)
    full, empty = game.full_values(game.rows(images)), game.base_values
    best = full.argmax(axis=1)
    assert RIVALS[name].name == explanation.method == name
    assert explanation.shape == (N, 16)
    assert explanation.feature_names == game.players.names
    assert explanation.data is images
    assert explanation.seconds > 0
    np.testing.assert_allclose(explanation.outputs, full.max(axis=1))
    np.testing.assert_allclose(explanation.base_values, empty[best])
    named = build(name, game).explain(images, classes=torch.from_numpy(best))
    np.testing.assert_array_equal(named.values, explanation.values)
    other = build(name, game).explain(images, classes=(best + 1) % CLASSES)
    assert (other.values != explanation.values).any()
    np.testing.assert_allclose(other.outputs, full[np.arange(N), (best + 1) % CLASSES])


@every_rival
def test_each_image_has_its_own_empty_value(name: str) -> None:
    game = game_of(Network(), reference="blur")
    explanation = build(name, game).explain(pictures(), classes=[0, 1, 2, 0])
    empty = game.empty_values(game.rows(pictures()))
    np.testing.assert_allclose(explanation.base_values, empty[np.arange(N), [0, 1, 2, 0]])


@every_rival
def test_evaluations_are_counted(name: str) -> None:
    network, seen = Network(), 0

    def count(_: nn.Module, inputs: Any) -> None:
        nonlocal seen
        # captum's DeepLift hands two batches in, which it joins in a hook of its own.
        seen += len(inputs[0])

    network.features.register_forward_pre_hook(count)
    game = game_of(network)
    explanation = build(name, game).explain(pictures())
    assert explanation.evaluations == game.evaluations == seen
    before = game.evaluations
    known = build(name, game).explain(pictures(), game.full_values(game.rows(pictures())))
    np.testing.assert_array_equal(known.values, explanation.values)
    assert known.evaluations == explanation.evaluations - N - 1  # v(all), and v(none), which the game keeps
    assert game.evaluations == before + N + known.evaluations
    with pytest.raises(InputError, match=r"outputs have shape \(2,\)"):
        build(name, game).explain(pictures(), [1.0, 2.0])


def test_what_the_methods_cost() -> None:
    game, images = game_of(Network()), pictures()
    known = game.full_values(game.rows(images))
    _ = game.base_values
    for name, settings, cost in (
        ("saliency", {}, N),
        ("integrated-gradients", {"steps": 9}, 9 * N),
        ("smoothgrad", {"samples": 7}, 7 * N),
        ("gradcam", {}, N + 1),
        ("gradcam", {"layer": "features"}, N),
        ("deepshap", {}, 2 * N + 1),
        ("rise", {"masks": 33}, 33 * N),
        ("xrai", {"steps": 9}, 18 * N),
    ):
        for batch in (4, 100):
            assert build(name, game, batch=batch, **settings).explain(images, known).evaluations == cost


@every_rival
def test_seeds_decide_and_the_global_generators_are_left_alone(name: str) -> None:
    game = game_of(Network())
    np.random.seed(5)
    torch.manual_seed(5)
    before, torch_before = np.random.get_state(legacy=False), torch.get_rng_state()
    first = build(name, game, seed=1).explain(pictures()).values
    after = np.random.get_state(legacy=False)
    np.testing.assert_equal(after, before)
    assert torch.equal(torch_before, torch.get_rng_state())
    torch.manual_seed(6)
    np.testing.assert_array_equal(first, build(name, game, seed=1).explain(pictures()).values)
    other = build(name, game, seed=2).explain(pictures()).values
    assert (other != first).any() == (name in ("smoothgrad", "rise"))


@every_rival
def test_the_network_is_evaluated_as_for_use_and_left_as_it_was(name: str) -> None:
    network = nn.Sequential(Network(), nn.Dropout(0.5))
    network[0].features.eval()
    network.training = network[0].training = network[1].training = True
    states = [part.training for part in network.modules()]
    names, buffers = list(dict(network.named_modules())), dict(vars(network[0].features[1]))
    game = game_of(network)
    explanation = build(name, game).explain(pictures())
    np.testing.assert_array_equal(explanation.values, build(name, game_of(network[0])).explain(pictures()).values)
    assert [part.training for part in network.modules()] == states
    assert list(dict(network.named_modules())) == names
    assert vars(network[0].features[1]).keys() == buffers.keys()
    assert not network[0].features[1]._forward_hooks
    assert all(weights.grad is None for weights in network.parameters())


@every_rival
def test_a_game_of_one_class(name: str) -> None:
    network = Network()
    one = build(name, game_of(network, target=2)).explain(pictures())
    every = build(name, game_of(network)).explain(pictures(), classes=[2] * N)
    np.testing.assert_allclose(one.values, every.values, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(one.outputs, every.outputs)
    same = build(name, game_of(network, target=2)).explain(pictures(), classes=[2] * N)
    np.testing.assert_array_equal(same.values, one.values)
    with pytest.raises(InputError, match="the game explains one output"):
        build(name, game_of(network, target=2)).explain(pictures(), classes=[1] * N)


class Squeezed(Network):
    """One logit for two classes."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)[:, 1]


class Two(Network):
    def forward(self, images: Tensor) -> Tensor:
        logit = super().forward(images)[:, 1]
        return torch.stack([torch.zeros_like(logit), logit], dim=1)


@every_rival
def test_two_classes(name: str) -> None:
    """A game of two classes explains the second, whether the network has two logits or one."""
    one, two = (build(name, game_of(net)).explain(pictures()) for net in (Squeezed(), Two()))
    np.testing.assert_allclose(one.values, two.values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(one.outputs, two.outputs, rtol=1e-6)
    with pytest.raises(InputError, match="one logit for two classes; leave target= out"):
        build(name, game_of(Squeezed(), target=0)).explain(pictures())


@every_rival
def test_segments_are_joined(name: str) -> None:
    rng = np.random.default_rng(2)
    parts = rng.permutation(np.concatenate([np.arange(5), rng.integers(0, 5, SIDE * SIDE - 5)])).reshape(SIDE, SIDE)
    network = Network()
    pixels = build(name, game_of(network, players=Patches(1))).explain(pictures()).values
    joined = build(name, game_of(network, players=Segments(parts))).explain(pictures()).values
    for k in range(5):
        members = pixels[:, parts.ravel() == k]
        expected = members.mean(axis=1) if name in ("rise", "xrai") else members.sum(axis=1)
        np.testing.assert_allclose(joined[:, k], expected, rtol=1e-3, atol=1e-5)


@every_rival
def test_weights_in_double_precision_and_frozen(name: str) -> None:
    network = Network()
    single = build(name, game_of(network)).explain(pictures())
    frozen = Network().double().requires_grad_(False)
    double = build(name, game_of(frozen)).explain(pictures())
    np.testing.assert_allclose(double.values, single.values, rtol=0.2, atol=0.05 if name == "smoothgrad" else 1e-4)


@every_rival
def test_what_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} explains images with a torch module, got a game of tables"):
        build(name, Game(nn.Linear(4, 2), reference="zero"))
    with pytest.raises(InputError, match="got CallableModel"):
        build(name, Game(lambda x: x.mean(axis=(1, 2, 3)), reference="zero", players=Patches(2)))
    game = game_of(Network())
    for batch in (0, 1.5, True):
        with pytest.raises(InputError, match="batch must be a whole number, at least 1"):
            build(name, game, batch=batch)
    for classes in ([0, 1], [0.0] * N, [[0]] * N):
        with pytest.raises(InputError, match="classes must be 4 whole numbers, one for each image"):
            build(name, game).explain(pictures(), classes=classes)
    with pytest.raises(InputError, match=r"classes must be 0..2, got 0 to 3"):
        build(name, game).explain(pictures(), classes=[0, 1, 2, 3])


def test_settings_are_checked() -> None:
    game = game_of(Network())
    for name, settings, message in (
        ("integrated-gradients", {"steps": 0}, "steps must be a whole number"),
        ("smoothgrad", {"samples": 2.5}, "samples must be a whole number"),
        ("smoothgrad", {"noise": 0.0}, "noise must be a positive share"),
        ("rise", {"masks": 0}, "masks must be a whole number"),
        ("rise", {"grid": (2, 2, 2)}, "grid must be a number of cells"),
        ("rise", {"keep": 1.0}, "keep must be a probability"),
        ("xrai", {"steps": -1}, "steps must be a whole number"),
    ):
        with pytest.raises(InputError, match=message):
            build(name, game, **settings)


@pytest.mark.parametrize("name", [name for name in IMAGE_RIVALS if name not in ("rise", "xrai")])
def test_captum_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(MissingDependencyError, match=r"needs captum.*pip install 'cortx-explain\[peers\]'"):
        build(name, game_of(Network()))


def test_xrai_where_libraries_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    game, segments = game_of(Network()), segment_images(pictures())
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    with pytest.raises(MissingDependencyError, match=r"'xrai' without segments= needs scikit-image"):
        XRAI(game)
    with pytest.raises(MissingDependencyError, match="scikit-image"):
        segment_images(pictures())
    assert XRAI(game, segments, steps=2).explain(pictures()).shape == (N, 16)
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(MissingDependencyError, match="'xrai' without attributions= needs captum"):
        XRAI(game, segments).explain(pictures())
    assert XRAI(game, segments).explain(pictures(), attributions=np.ones((N, SIDE, SIDE))).shape == (N, 16)


@pytest.mark.slow
def test_libraries_are_imported_only_when_they_are_used() -> None:
    code = "import sys, cortx.rivals.xrai, cortx.rivals.rise; print({'captum', 'skimage', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_sampling_takes_images_as_well() -> None:
    network = Network()
    game = game_of(network, players=Patches(4))
    explanation = Sampled(game, row_budget=64).explain(pictures())
    assert explanation.shape == (N, 4, CLASSES)
    full, empty = game.full_values(game.rows(pictures())), game.base_values
    np.testing.assert_allclose(explanation.values.sum(axis=1), full - empty, atol=1e-5)
