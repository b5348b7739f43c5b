"""Surrogates: what a model says of whole images, learned from images with parts removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cortx
from cortx import Game, Patches, Segments, Surrogate
from cortx.errors import InputError, NotFittedError
from cortx.paper.cifar10 import load_digits_images
from cortx.training.checkpoint import Checkpoint
from cortx.training.resnet import ResNet18
from cortx.training.stream import StreamConfig
from cortx.training.surrogate import even_coalitions, imitate, own_resnet, quality, start_from


def resnet(seed: int = 0, width: int = 4, n_channels: int = 1, n_outputs: int = 10) -> ResNet18:
    return ResNet18(n_channels, n_outputs, width, generator=torch.Generator().manual_seed(seed))


def small_images(n: int = 40, n_channels: int = 1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, n_channels, 8, 8)).astype(np.float32)


def small_game(reference: Any = "zero", n_outputs: int = 3, **settings: Any) -> Game:
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, n_outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return Game(net, reference, **{"players": Patches(2), "output": "probability", **settings})


def quick(**settings: Any) -> Surrogate:
    return Surrogate(**{"epochs": 2, "width": 4, "batch_size": 16, "shift": 1, "validation_share": 0.2, **settings})


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits_images()
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], labels[order]


@pytest.fixture(scope="module")
def whole_only(digits: tuple[np.ndarray, np.ndarray]) -> ResNet18:
    """A classifier of digits that never saw a masked image."""
    images, labels = (torch.from_numpy(part[:1_200]) for part in digits)
    net = resnet(width=8)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    net.train()
    for _ in range(120):
        index = torch.randint(len(images), (64,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(images[index]), labels[index]))
        optimizer.step()
    return net.eval()


# What it learns -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_keeps_its_mind_where_the_model_loses_it(
    digits: tuple[np.ndarray, np.ndarray], whole_only: ResNet18
) -> None:
    images = digits[0][:1_200]
    game = Game(whole_only, "zero", players=Patches(2), output="probability")
    surrogate = Surrogate(epochs=12, width=8, batch_size=64, shift=0, flip=False, validation_share=0.2)
    surrogate.fit(game, images)
    found = surrogate.quality_
    assert found["agreement"] > 0.9
    assert found["masked_agreement"] > found["model_masked_agreement"] + 0.1
    assert surrogate.history_[-1] < 0.5 * surrogate.history_[0]

    # The same from outside, on images that it never saw: half of the parts removed at random.
    fresh = digits[0][1_200:]
    rows = game.rows(fresh)
    kept = np.random.default_rng(1).permuted(np.tile(np.arange(16) < 8, (len(fresh), 1)), axis=1)[:, None]
    best = game.full_values(rows).argmax(axis=1)
    ours = surrogate.game.values(surrogate.game.rows(fresh), kept)[:, 0].argmax(axis=1)
    models = game.values(rows, kept)[:, 0].argmax(axis=1)
    assert np.mean(ours == best) > np.mean(models == best) + 0.1
    assert np.mean(ours == best) == pytest.approx(found["masked_agreement"], abs=0.12)


def test_quality_counts_as_a_loop_does() -> None:
    game, images = small_game("mean"), small_images(9)
    game.rows(images)
    network = resnet(n_outputs=3).eval()
    matrix = torch.from_numpy(images.reshape(9, -1))
    found = quality(network, game, matrix, seed=0)
    assert set(found) == {"images", "agreement", "masked_agreement", "model_masked_agreement", "masked_divergence"}
    whole = game.full_values(game.rows(images))
    with torch.no_grad():
        said = network(torch.from_numpy(images)).argmax(dim=1).numpy()
    assert found["images"] == 9
    assert found["agreement"] == pytest.approx(np.mean([a == b.argmax() for a, b in zip(said, whole, strict=True)]))
    assert found["masked_divergence"] > 0
    assert all(0 <= found[name] <= 1 for name in found if "agreement" in name)
    assert found == quality(network, game, matrix, seed=0)


def test_a_model_agrees_with_itself() -> None:
    net = resnet(n_outputs=3, seed=2).eval()
    game, images = Game(net, "zero", players=Patches(4), output="probability"), small_images(30)
    game.rows(images)
    found = quality(net, game, torch.from_numpy(images.reshape(30, -1)), seed=0)
    assert found["agreement"] == 1
    assert found["masked_agreement"] == found["model_masked_agreement"]


def test_every_size_is_masked_equally_often() -> None:
    drawn = even_coalitions(20_000, 4, torch.Generator().manual_seed(0), torch.device("cpu"))
    sizes = np.bincount(drawn.sum(dim=1).numpy(), minlength=5) / len(drawn)
    np.testing.assert_allclose(sizes, 0.2, atol=0.02)
    np.testing.assert_allclose(drawn.float().mean(dim=0), 0.5, atol=0.02)


# Where it starts ----------------------------------------------------------------------------------------------


def test_it_starts_from_the_models_own_resnet() -> None:
    own = resnet(seed=5)
    game = Game(nn.Sequential(own, nn.Identity()), "zero", players=Patches(2), output="probability")
    game.rows(small_images())
    other = resnet(seed=6)
    assert not torch.equal(other.stem[0].weight, own.stem[0].weight)
    assert start_from(other, game)
    for (name, mine), theirs in zip(other.state_dict().items(), own.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
        if mine.is_floating_point():
            assert mine.data_ptr() != theirs.data_ptr(), name


@pytest.mark.parametrize("net", ["wider", "two", "none", "function", "outputs"])
def test_it_starts_anew_where_the_model_is_another(net: str) -> None:
    models: dict[str, Any] = {
        "wider": resnet(width=8),
        "two": Twice(),
        "none": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        "function": lambda images: images.reshape(len(images), -1)[:, :10],
        "outputs": resnet(n_outputs=4),
    }
    output: Any = "raw" if net == "function" else "probability"
    game = Game(models[net], "zero", players=Patches(2), output=output)
    game.rows(small_images())
    fresh = resnet(seed=6)
    assert not start_from(fresh, game)
    assert own_resnet(game, **fresh.settings) is None
    assert torch.equal(fresh.stem[0].weight, resnet(seed=6).stem[0].weight)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = resnet(1), resnet(2)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.first(images) + self.second(images)
        return result


@pytest.mark.slow
def test_a_start_from_the_model_shows(digits: tuple[np.ndarray, np.ndarray], whole_only: ResNet18) -> None:
    """One short pass: a network that starts from the model's weights still answers like it, a fresh one does not."""
    images = digits[0][:150]
    game = Game(whole_only, "zero", players=Patches(2), output="probability")
    found = {
        width: Surrogate(epochs=1, width=width, batch_size=60, flip=False, shift=0, validation_share=0.2, seed=0)
        .fit(game, images)
        .quality_["agreement"]
        for width in (4, 8)
    }
    assert found[8] > 0.75
    assert found[8] > found[4] + 0.2


# What it costs, and what it gives -----------------------------------------------------------------------------


def test_every_evaluation_is_counted() -> None:
    game, images = small_game(), small_images(40)
    surrogate = quick(epochs=3, batch_size=10).fit(game, images)
    # 8 images are held out; the 32 others make 3 batches of 10; v(none) tells the number of outputs.
    expected = 1 + 3 * 3 * 10 + 8 * 2
    assert surrogate.costs_["evaluations"] == expected == game.evaluations
    assert surrogate.costs_["rows"] == 32
    assert surrogate.costs_["seconds"] > 0
    assert surrogate.quality_["images"] == 8
    assert len(surrogate.history_) == 3
    assert surrogate.game.evaluations == 0


@pytest.mark.parametrize("reference", ["zero", "mean", "blur", "given"])
def test_its_game_is_that_of_the_model(reference: str) -> None:
    images = small_images(30)
    given: Any = images[0] if reference == "given" else reference
    game = small_game(given, target="all")
    surrogate = quick(epochs=1).fit(game, images)
    ours, rows = surrogate.game, game.rows(images)
    assert ours.players.names == game.players.names
    assert ours.model.output == "probability"
    kept = torch.from_numpy(np.random.default_rng(0).random((30, 16)) < 0.5)
    matrix = torch.from_numpy(rows.table.matrix)
    torch.testing.assert_close(ours.masked_images(matrix, kept), game.masked_images(matrix, kept))
    with torch.no_grad():
        masked = game.masked_images(matrix, kept).reshape(images.shape)
        expected = torch.softmax(surrogate.network(masked).double(), dim=1)
    np.testing.assert_allclose(ours.values(ours.rows(images), kept.numpy()[:, None])[:, 0], expected, atol=1e-5)
    explained = cortx.shapley(ours, images[:2], row_budget=64)
    np.testing.assert_allclose(explained.values.sum(axis=1) + explained.base_values, explained.outputs, atol=1e-6)


def test_it_is_an_inert_module() -> None:
    surrogate = quick(epochs=1).fit(small_game(), small_images(20))
    assert not surrogate.network.training
    assert not any(parameter.requires_grad for parameter in surrogate.network.parameters())


def test_the_same_seed_gives_the_same_network() -> None:
    images, games = small_images(), [small_game() for _ in range(3)]
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, same, other = (quick(seed=seed).fit(game, images) for seed, game in zip((0, 0, 1), games, strict=True))
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])
    for a, b in zip(one.network.state_dict().values(), same.network.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert one.history_ == same.history_
    assert not torch.equal(one.network.head.weight, other.network.head.weight)


@pytest.mark.parametrize("layout", ["last", "grey", "segments"])
def test_images_of_other_layouts(layout: str) -> None:
    shape = {"last": (8, 8, 3), "grey": (8, 8), "segments": (1, 8, 8)}[layout]
    images = np.random.default_rng(0).random((20, *shape)).astype(np.float32)
    players: Any = Patches(4, channels="last") if layout == "last" else Patches(4)
    if layout == "segments":
        players = Segments(np.arange(64).reshape(8, 8) // 24)
    net = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 3))
    game = Game(net, "zero", players=players, output="probability")
    surrogate = quick(epochs=1).fit(game, images)
    outputs = surrogate.game.full_values(surrogate.game.rows(images))
    first = torch.from_numpy(images)
    with torch.no_grad():
        said = surrogate.network(first.permute(0, 3, 1, 2) if layout == "last" else first).double()
    np.testing.assert_allclose(outputs, torch.softmax(said, dim=1), atol=1e-5)


# Errors -------------------------------------------------------------------------------------------------------


def test_a_table_has_no_surrogate() -> None:
    game = Game(nn.Linear(4, 3), np.zeros((1, 4), dtype=np.float32), output="probability")
    with pytest.raises(InputError, match=r"a surrogate needs an image game.*players=cortx.Patches"):
        quick().fit(game, np.zeros((10, 4), dtype=np.float32))
    with pytest.raises(InputError, match="a surrogate needs an image game"):
        quick().fit(nn.Linear(4, 3), small_images())  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"target": 1}, {"output": "raw"}, {"output": "log-odds"}, {"n_outputs": 1}])
def test_it_needs_the_probabilities_of_all_classes(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="learns the probabilities of all classes"):
        quick().fit(small_game(**settings), small_images())


def test_two_images_are_too_few() -> None:
    with pytest.raises(InputError, match="needs at least a few images, got 2"):
        quick().fit(small_game(), small_images(2))


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"width": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"validation_share": 1.0}, {"shift": -1}],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a surrogate needs"):
        Surrogate(**wrong)


def test_before_it_is_fitted() -> None:
    for name in ("game", "network"):
        with pytest.raises(NotFittedError, match=r"call fit\(game, images\)"):
            getattr(quick(), name)


# Imitation ----------------------------------------------------------------------------------------------------


def test_an_encoder_learns_to_answer_for_masked_images(tmp_path: Any) -> None:
    game, images = small_game("blur", output="raw"), small_images(60)
    game.rows(images)
    matrix = torch.from_numpy(images.reshape(60, -1))
    config = StreamConfig(batch_size=16, flip=False, shift=0)
    spent = game.evaluations
    network = resnet(n_outputs=3)
    history = imitate(network, game, matrix, 200, config, seed=0, checkpoint=Checkpoint(tmp_path, "key"), show=False)
    assert game.evaluations - spent == 200 * 16
    assert len(history) == 2
    assert history[1] < 0.8 * history[0]
    spent = game.evaluations
    again = resnet(n_outputs=3, seed=1)
    checkpoint = Checkpoint(tmp_path, "key")
    assert imitate(again, game, matrix, 200, config, seed=0, checkpoint=checkpoint, show=False) == history
    assert game.evaluations == spent
    for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)
