"""Images from end to end, on scikit-learn's digits and a processor: as a user would write it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cortx
from cortx.metrics import importance_order, masking_curves, reference_fill
from cortx.paper.cifar10 import load_digits_images

BUDGET = 150_000

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """A small convolutional network, as anybody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(32 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.maps(images).flatten(1))
        return result


def train(images: np.ndarray, labels: np.ndarray) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(300):
        index = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(x[index]), y[index]))
        optimizer.step()
    return net.eval()


@dataclass
class Done:
    """What the whole path leaves behind."""

    net: Net
    surrogate: cortx.Surrogate
    explainer: cortx.CoRTX
    test: np.ndarray
    labels: np.ndarray
    truth: cortx.Explanation
    explained: cortx.Explanation


@pytest.fixture(scope="module")
def done() -> Done:
    images, labels = load_digits_images()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    learned, test = images[:1_500], images[1_500:1_560]
    net = train(learned, labels[:1_500])
    game = cortx.Game(net, reference="zero", players=cortx.Patches(2), output="probability")
    surrogate = cortx.Surrogate(epochs=15, width=16, batch_size=64, flip=False, shift=1).fit(game, learned)
    explainer = cortx.CoRTX("quick").fit(surrogate.game, learned, budget=BUDGET)
    explained = explainer.explain(test, confidence=0.8)
    truth = cortx.shapley(surrogate.game, test, row_budget=2_048)
    return Done(net, surrogate, explainer, test, labels[1_500:1_560], truth, explained)


def of_class(values: Any, classes: np.ndarray) -> np.ndarray:
    return np.take_along_axis(np.asarray(values), classes[:, None, None], axis=2)[..., 0]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(norms, 1e-12)).mean())


def predicted(explained: cortx.Explanation) -> np.ndarray:
    return np.asarray(explained.outputs).argmax(axis=1)


def test_the_model_and_its_surrogate_are_worth_explaining(done: Done) -> None:
    with torch.no_grad():
        said = done.net(torch.from_numpy(done.test)).argmax(dim=1).numpy()
    assert np.mean(said == done.labels) > 0.9
    quality = done.surrogate.quality_
    assert quality["agreement"] > 0.9
    assert quality["masked_agreement"] > quality["model_masked_agreement"] + 0.05
    assert done.explainer.costs_["pretraining"]["from_the_model_itself"]  # from the surrogate's own weights
    assert done.explainer.costs_["total_evaluations"] <= BUDGET


def test_explanations_are_close_to_the_shapley_values(done: Done) -> None:
    classes = predicted(done.explained)
    ours, truth = (of_class(one.values, classes) for one in (done.explained, done.truth))
    np.testing.assert_allclose(
        done.explained.values.sum(axis=1) + done.explained.base_values, done.explained.outputs, atol=1e-9
    )
    even = np.repeat(truth.mean(axis=1, keepdims=True), truth.shape[1], axis=1)
    shuffled = np.random.default_rng(0).permuted(truth, axis=1)
    found, trivial, random = (cosine(one, truth) for one in (ours, even, shuffled))
    print(f"cosine to the Shapley values: {found:.3f}, of even shares {trivial:.3f}, shuffled {random:.3f}")
    assert found > trivial + 0.1
    assert found > random + 0.2
    assert np.linalg.norm(ours - truth, axis=1).mean() < 0.8 * np.linalg.norm(even - truth, axis=1).mean()


def test_bounds_hold_for_about_their_share(done: Done) -> None:
    bound = done.explained.error_bound
    assert bound is not None
    distance = np.linalg.norm(done.explained.values - done.truth.values, axis=1)
    assert (distance <= bound).mean() > 0.7


def test_important_patches_matter_more_than_random_ones(done: Done) -> None:
    classes = predicted(done.explained)
    fill = reference_fill(torch.from_numpy(done.test), 0, done.surrogate.game.image_players.pixel_player)
    random = np.random.default_rng(0).permuted(np.tile(np.arange(16), (len(classes), 1)), axis=1)
    areas = {}
    for name, order in (("ours", importance_order(done.explained, classes)), ("random", random)):
        curves = masking_curves(done.surrogate.network, fill, order, classes)
        areas[name] = (curves.exclusion.auc("top1").mean(), curves.inclusion.auc("top1").mean())
    print("exclusion, inclusion:", areas)
    assert areas["ours"][0] < areas["random"][0] - 0.05
    assert areas["ours"][1] > areas["random"][1] + 0.05


def test_it_is_saved_loaded_and_drawn(done: Done, tmp_path: Path) -> None:
    folder = done.explainer.save(tmp_path / "digits")
    loaded = cortx.load(folder, model=done.surrogate.network)
    explained = loaded.explain(done.test[:8])
    np.testing.assert_allclose(explained.values, done.explained.values[:8], atol=1e-6)
    picture = tmp_path / "digits.png"
    cortx.plots.image(done.test[:8], explained, labels=done.labels[:8], path=picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


def test_the_fit_keeps_to_its_budget(done: Done) -> None:
    assert done.explainer.costs_["total_evaluations"] <= BUDGET
