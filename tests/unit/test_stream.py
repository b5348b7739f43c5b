"""Learning from fresh labels: they are right on average, everything is paid for once, and a kill changes nothing."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cortx import Game, Patches, Segments
from cortx.errors import ArtifactError, InputError
from cortx.estimators.shapley import shapley
from cortx.estimators.unbiased import Sizes
from cortx.games.players import ImagePlayers
from cortx.images import ImageSchema
from cortx.training.augment import augmented
from cortx.training.checkpoint import Checkpoint
from cortx.training.encoders import EncoderConfig, HeadConfig
from cortx.training.finetune import LabelSet
from cortx.training.image_network import ImageFeatures, ImageNetwork
from cortx.training.pretrain import PretrainConfig, _positives
from cortx.training.stream import (
    LabelledBatches,
    StreamConfig,
    fitting_augmentation,
    image_weights,
    mirrored_evaluations,
    sample_pairs,
    scout,
    train_on_stream,
)

HEIGHT, WIDTH = 4, 6
SHAPES = {"first": (3, HEIGHT, WIDTH), "last": (HEIGHT, WIDTH, 3), "grey": (HEIGHT, WIDTH), "one": (1, HEIGHT, WIDTH)}
FIVE = np.array([[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2], [3, 3, 3, 4, 4, 4], [3, 3, 3, 4, 4, 4]])
every_reference = pytest.mark.parametrize("reference", ["zero", "mean", "blur", "given"])
every_layout = pytest.mark.parametrize("layout", SHAPES)


def make_images(n: int, shape: tuple[int, ...] = SHAPES["first"], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, *shape)).astype(np.float32)


def make_net(n_numbers: int, n_outputs: int = 2, seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(n_numbers, 8), nn.Tanh(), nn.Linear(8, n_outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return net


def make_game(reference: Any = "zero", players: Any = None) -> Game:
    given = make_images(1, seed=9)[0] if isinstance(reference, str) and reference == "given" else reference
    net = make_net(int(np.prod(SHAPES["first"])))
    return Game(net, given, players=Patches((2, 3)) if players is None else players, output="raw")


def make_network(game: Game, seed: int = 0) -> ImageNetwork:
    schema, players = game.schema, game.players
    assert isinstance(schema, ImageSchema)
    assert isinstance(players, ImagePlayers)
    features = ImageFeatures(schema, players, torch.from_numpy(game.absent), game.own_reference)
    encoder, head = EncoderConfig("resnet18", width=4), HeadConfig("decoder", width=8, depth=1)
    return ImageNetwork(features, players, game.n_outputs, encoder=encoder, head=head, seed=seed).eval()


def slow_shapley(game: Game, image: np.ndarray) -> np.ndarray:
    """The mean over all orders of what each player adds, (players, outputs)."""
    rows = game.rows(image[None])
    n = game.n_players
    all_of_them = np.array(list(product([False, True], repeat=n)))
    values = {tuple(kept): value for kept, value in zip(all_of_them, game.values(rows, all_of_them)[0], strict=True)}
    result, count = np.zeros((n, game.n_outputs)), 0
    for order in permutations(range(n)):
        kept = [False] * n
        for player in order:
            before = values[tuple(kept)]
            kept[player] = True
            result[player] += values[tuple(kept)] - before
        count += 1
    return result / count


def flat(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images.reshape(len(images), -1))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


# Labels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [4, 5])
@pytest.mark.parametrize("skewed", [False, True])
@every_reference
def test_labels_are_right_on_average(reference: str, skewed: bool, parts: int) -> None:
    game = make_game(reference, None if parts == 4 else Segments(FIVE))
    image = make_images(1)[0]
    exact = slow_shapley(game, image)
    copies = flat(np.repeat(image[None], 6_000, axis=0))
    sizes = Sizes(torch.tensor([0.85, 0.15]), torch.tensor([0.3, -0.1])) if skewed else None
    sampled = sample_pairs(game, copies, 3, sizes, torch.Generator().manual_seed(0))
    labels = sampled.labels(sizes).double()
    standard_error = labels.std(dim=0) / len(labels) ** 0.5
    assert float(standard_error.max()) < 0.05 * np.abs(exact).max()  # so that a bias would show
    away = np.abs(labels.mean(dim=0).numpy() - exact)
    assert (away / standard_error.numpy().clip(1e-5)).max() < 5
    np.testing.assert_allclose(labels.sum(dim=1), sampled.total, atol=1e-5)
    np.testing.assert_allclose(sampled.total[0], exact.sum(axis=0), atol=1e-5)


def test_a_prediction_leaves_labels_right_on_average() -> None:
    game = make_game()
    image = make_images(1)[0]
    exact = slow_shapley(game, image)
    sampled = sample_pairs(game, flat(np.repeat(image[None], 6_000, axis=0)), 3, None, torch.Generator().manual_seed(0))
    wrong = torch.linspace(-0.2, 0.3, exact.size).view(1, *exact.shape).expand(6_000, -1, -1)
    labels = sampled.labels(None, wrong).double()
    standard_error = labels.std(dim=0) / len(labels) ** 0.5
    away = np.abs(labels.mean(dim=0).numpy() - exact)
    assert (away / standard_error.numpy().clip(1e-5)).max() < 5
    right = sampled.labels(None, torch.from_numpy(exact).float().expand(6_000, -1, -1))
    assert float(right.var(dim=0).sum()) < 0.9 * float(sampled.labels(None).var(dim=0).sum())


def test_images_with_large_values_count_less() -> None:
    values = torch.tensor([1.0, 2.0, 4.0])[:, None, None] * torch.ones(3, 5, 2)
    for evenness in (0.1, 10.0):
        weights = image_weights(values, StreamConfig(evenness=evenness)).tolist()
        square = [5.0, 20.0, 80.0]  # five players
        wanted = [1 / (one + evenness * sum(square) / 3) for one in square]
        mean = sum(wanted) / 3
        assert weights == pytest.approx([one / mean for one in wanted])
    assert image_weights(torch.zeros(3, 5, 2), StreamConfig()).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("reference", "ends"), [("zero", 1), ("blur", 2), ("mean", 2)])
def test_every_evaluation_of_a_label_is_counted(reference: str, ends: int) -> None:
    game, images = make_game(reference), make_images(7)
    game.rows(images)
    _ = game.base_values
    spent = game.evaluations
    drawn = sample_pairs(game, flat(images), 5, None, torch.Generator().manual_seed(0))
    assert game.evaluations - spent == 7 * (2 * 5 + ends)
    rows = game.rows(images)
    np.testing.assert_allclose(drawn.total, game.full_values(rows) - game.empty_values(rows), atol=1e-5)


@every_reference
def test_positives_are_masked_with_the_reference_of_the_game(reference: str) -> None:
    game, images = make_game(reference), make_images(6)
    rows = game.rows(images)
    matrix = flat(images)
    made = _positives(game, rows, game.full_values(rows), matrix, PretrainConfig(n_positives=4), 0, 0).numpy()
    coalitions = np.array(list(product([False, True], repeat=4)))
    for image, copy in zip(matrix, made, strict=True):
        possible = [game.masked_images(image[None], torch.from_numpy(kept[None])).numpy()[0] for kept in coalitions]
        assert min(np.abs(copy - one).max() for one in possible) < 1e-6
    assert np.abs(made - matrix.numpy()).max() > 0.01


# Scales -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reference", "ends"), [("zero", 1), ("blur", 2)])
def test_scout_measures_labels_without_their_noise(reference: str, ends: int) -> None:
    game, images = make_game(reference), make_images(100)
    rows = game.rows(images)
    network = make_network(game)
    exact = shapley(game, images, "exact", views=0)
    total = game.full_values(rows) - game.empty_values(rows)
    network.total_scale.copy_(torch.from_numpy(np.sqrt(np.square(total).mean(axis=0))))
    config = StreamConfig(pairs=16, batch_size=2_000)
    spent = game.evaluations
    sizes = scout(network, game, flat(images), config, seed=0)
    assert game.evaluations - spent == 4 * 100 * (2 * 16 + ends)
    even = np.square(total / game.n_players).mean(axis=0)
    expected = np.sqrt(np.maximum(np.square(exact.values).mean(axis=(0, 1)), even))
    np.testing.assert_allclose(network.attribution.label_scale, expected, rtol=0.25)
    np.testing.assert_allclose(network.attribution.total_scale, np.sqrt(np.square(total).mean(axis=0)), rtol=0.25)
    assert sizes.mass.shape == sizes.curve.shape == (2,)
    assert float(sizes.mass.min()) > 0
    assert float(sizes.mass.sum()) == pytest.approx(1)


def test_scout_of_a_game_that_never_changes() -> None:
    class Constant(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :2] * 0 + 3

    game, images = Game(Constant(), "zero", players=Patches((2, 3)), output="raw"), make_images(10)
    game.rows(images)
    network = make_network(game)
    sizes = scout(network, game, flat(images), StreamConfig(pairs=2, batch_size=8), seed=0)
    assert all(bool(torch.isfinite(part).all()) for part in sizes)
    assert float(network.attribution.label_scale.min()) > 0


# Training -----------------------------------------------------------------------------------------------------


def train(
    game: Game, images: np.ndarray, folder: Path | None = None, steps: int = 12, key: str = "key", **settings: Any
) -> tuple[ImageNetwork, list[float], int]:
    config = StreamConfig(**{"pairs": 2, "batch_size": 16, "validations": 4, "shift": 1, **settings})
    network = make_network(game)
    matrix = flat(images)
    sizes = scout(network, game, matrix, config, seed=0)
    exact = shapley(game, images[:10], "exact", views=0)
    total = torch.from_numpy(exact.values.sum(axis=1)).float()
    labels = torch.from_numpy(exact.values).float()
    validation = LabelSet(matrix[:10], total, network.active(matrix[:10]), labels)
    checkpoint = Checkpoint(folder, key, every_seconds=-1.0)
    history, spent = train_on_stream(
        network, game, matrix, steps, sizes, validation, config, seed=0, checkpoint=checkpoint, show=False
    )
    return network, history, spent


class Killed(Exception):
    pass


class Mortal(Game):
    """A game that is killed after so many calls."""

    left: int | None = None

    def values_of(self, matrix: Tensor, coalitions: Tensor, **settings: Any) -> Tensor:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed
        return super().values_of(matrix, coalitions, **settings)


@pytest.mark.parametrize(("reference", "ends"), [("zero", 1), ("mean", 2)])
def test_a_step_costs_what_the_plan_says(reference: str, ends: int) -> None:
    game, images = make_game(reference), make_images(40)
    game.rows(images)
    _, history, spent = train(game, images)
    assert spent == 12 * 16 * (2 * 2 + ends)
    if reference == "zero":
        assert spent == 12 * StreamConfig(pairs=2, batch_size=16).step_evaluations
    assert len(history) == 4
    game = make_game(reference)
    few = make_images(5)
    game.rows(few)
    assert train(game, np.concatenate([few, few]), batch_size=64)[2] == 12 * 10 * (2 * 2 + ends)


@pytest.mark.parametrize("reference", ["zero", "blur"])
def test_a_killed_training_goes_on_to_the_same_network(tmp_path: Path, reference: str) -> None:
    images = make_images(40)

    def mortal() -> Mortal:
        game = Mortal(make_net(72), reference, players=Patches((2, 3)), output="raw")
        game.rows(images)
        return game

    whole = mortal()
    network, history, spent = train(whole, images)
    game_evaluations = whole.evaluations
    again, same_history, _ = train(mortal(), images)
    assert same_weights(network, again)
    assert history == same_history

    game = mortal()
    calls = count_calls(game, lambda: train(game, images, steps=1))
    doomed = mortal()
    doomed.left = calls - 1 + 8  # all calls before the training, and eight of its twelve steps
    with pytest.raises(Killed):
        train(doomed, images, tmp_path)
    assert (tmp_path / "stream.safetensors").is_file()
    revived = mortal()
    resumed, resumed_history, resumed_spent = train(revived, images, tmp_path)
    assert same_weights(network, resumed)
    assert resumed_history == history
    assert resumed_spent == spent
    assert revived.evaluations < game_evaluations


def count_calls(game: Mortal, do: Any) -> int:
    game.left = 10**9
    do()
    return 10**9 - game.left


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    game, images = make_game(), make_images(20)
    game.rows(images)
    train(game, images, tmp_path)
    with pytest.raises(ArtifactError, match="belongs to another fit"):
        train(game, images, tmp_path, key="another")


def test_the_seed_decides() -> None:
    game, images = make_game(), make_images(20)
    game.rows(images)
    one, other = make_network(game), make_network(game)
    config = StreamConfig(pairs=1, batch_size=8, validations=1)
    for network, seed in ((one, 0), (other, 1)):
        arguments: Any = (network, game, flat(images), 2, None, None, config)
        history, _ = train_on_stream(*arguments, seed=seed, checkpoint=Checkpoint(None, ""), show=False)
        assert history == []  # nothing to validate with
    assert not same_weights(one, other)


@pytest.mark.slow
def test_it_learns_what_no_single_label_says() -> None:
    """Two evaluations of an image are mostly noise; thousands of them are not."""
    game, images = make_game(), make_images(300)
    game.rows(images)
    network, history, _ = train(game, images, steps=800, batch_size=64, pairs=1, flip=False, shift=0, average=0.98)
    exact = shapley(game, images[:10], "exact", views=0).values
    drawn = sample_pairs(game, flat(images[:10]), 1, None, torch.Generator().manual_seed(0)).labels(None).numpy()
    noise = np.square(drawn - exact).sum() / np.square(exact).sum()
    assert history[-1] < 0.3 * noise
    assert history[-1] < 0.5 * history[0]
    assert not network.training


def test_earlier_batches_are_learned_from_again() -> None:
    """Their images and coalitions are drawn again from their numbers, their values are kept, and cost nothing."""
    game, images = make_game("blur"), make_images(30)
    game.rows(images)
    network, config = make_network(game), StreamConfig(pairs=2, batch_size=8, shift=1)
    labelled = LabelledBatches(network, game, flat(images), 5, None, config, seed=3)
    fresh = [labelled.fresh() for _ in range(5)]
    spent = game.evaluations
    found = set()
    for step in range(60):
        again, pairs = labelled.earlier(step)
        number = next(i for i, (one, _) in enumerate(fresh) if torch.equal(one, again))
        for kept, first in zip(pairs, fresh[number][1], strict=True):
            assert torch.equal(kept, first)
        found.add(number)
    assert found == set(range(5))
    assert game.evaluations == spent


def test_as_many_batches_are_kept_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    game, images = make_game(), make_images(30)
    game.rows(images)
    config = StreamConfig(pairs=2, batch_size=8, flip=False, shift=0)
    monkeypatch.setattr("cortx.training.stream.REPLAY_BYTES", 3 * 4 * 8 * (2 + 1) * game.n_outputs)
    labelled = LabelledBatches(make_network(game), game, flat(images), 9, None, config, seed=0)
    fresh = [labelled.fresh()[0] for _ in range(9)]
    again = [labelled.earlier(step)[0] for step in range(40)]
    numbers = {next(i for i, one in enumerate(fresh) if torch.equal(one, image)) for image in again}
    assert numbers == {6, 7, 8}
    held = sum(tensor.numel() * 4 for tensor in labelled.tensors().values())
    assert held == 3 * 4 * 8 * (2 + 1) * game.n_outputs


def test_more_steps_cost_no_more() -> None:
    for replays in (0, 3):
        game, images = make_game(), make_images(40)
        game.rows(images)
        assert train(game, images, replays=replays)[2] == 12 * 16 * (2 * 2 + 1)


# Augmentation -------------------------------------------------------------------------------------------------


def slow_move(image: np.ndarray, layout: str, mirrored: bool, down: int, right: int) -> np.ndarray:
    """Pixel (y, x) comes from (y + down, x + right), or from the nearest pixel of the border."""
    result = np.empty_like(image)
    for y, x in product(range(HEIGHT), range(WIDTH)):
        from_y, from_x = min(max(y + down, 0), HEIGHT - 1), min(max(x + right, 0), WIDTH - 1)
        from_x = WIDTH - 1 - from_x if mirrored else from_x
        if layout in ("first", "one"):
            result[:, y, x] = image[:, from_y, from_x]
        else:
            result[y, x] = image[from_y, from_x]
    return result


@pytest.mark.parametrize(("flip", "shift"), [(True, 0), (False, 1), (True, 1), (True, 2)])
@every_layout
def test_augmented_images_are_mirrored_and_moved(layout: str, flip: bool, shift: int) -> None:
    image = make_images(1, SHAPES[layout])[0]
    schema = ImageSchema(SHAPES[layout], "last" if layout == "last" else "first")
    moves = range(-shift, shift + 1)
    possible = np.stack(
        [
            slow_move(image, layout, mirrored, down, right)
            for mirrored, down, right in product([False, True] if flip else [False], moves, moves)
        ]
    )
    copies = flat(np.repeat(image[None], 60 * len(possible), axis=0))
    made = augmented(copies, schema, flip=flip, shift=shift, generator=torch.Generator().manual_seed(0))
    assert made.shape == copies.shape
    equal = (made.numpy().reshape(-1, 1, *image.shape) == possible).reshape(len(made), len(possible), -1).all(axis=2)
    assert (equal.sum(axis=1) == 1).all()
    counts = equal.sum(axis=0)
    assert counts.min() > 20  # of about sixty
    assert counts.max() < 120


@every_layout
def test_nothing_to_do_changes_nothing(layout: str) -> None:
    schema = ImageSchema(SHAPES[layout], "last" if layout == "last" else "first")
    matrix = flat(make_images(3, SHAPES[layout]))
    assert augmented(matrix, schema, flip=False, shift=0, generator=torch.Generator()) is matrix


class Sided(nn.Module):
    """The brightness of the left half and of the right half, or of both together."""

    def __init__(self, sides: bool) -> None:
        super().__init__()
        self.sides = sides

    def forward(self, images: Tensor) -> Tensor:
        left, right = (part.flatten(1).mean(dim=1) for part in images.chunk(2, dim=images.ndim - 1))
        if not self.sides:
            left = right = (left + right) / 2
        return torch.stack([left, 1 - right], dim=1)


@pytest.mark.parametrize("sides", [True, False])
def test_images_are_mirrored_where_the_model_does_not_mind(sides: bool) -> None:
    game, images = Game(Sided(sides), "zero", players=Patches((2, 3)), output="raw"), make_images(300)
    images[:, :, :, : WIDTH // 2] *= 0.2
    images[:150] *= 0.01  # sorted by class, as folders of images are
    rows = game.rows(images)
    outputs = torch.from_numpy(game.full_values(rows))
    spent = game.evaluations
    config = fitting_augmentation(StreamConfig(), game, flat(images), outputs, seed=0)
    assert config.flip is not sides
    assert game.evaluations - spent == mirrored_evaluations(StreamConfig(), 300) == 256
    assert fitting_augmentation(StreamConfig(flip=False), game, flat(images), outputs, seed=0).flip is False
    assert game.evaluations - spent == 256
    assert mirrored_evaluations(StreamConfig(flip=False), 300) == 0


def test_small_images_are_moved_less() -> None:
    for side, shift in ((8, 0), (16, 1), (32, 2), (224, 2)):
        layout = Patches((side // 2, side // 2))
        game = Game(Sided(False), "zero", players=layout, output="raw")
        images = np.random.default_rng(0).random((3, 1, side, side)).astype(np.float32)
        outputs = torch.from_numpy(game.full_values(game.rows(images)))
        assert fitting_augmentation(StreamConfig(), game, flat(images), outputs, seed=0).shift == shift


# Settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"pairs": 0}, {"batch_size": 0}, {"validations": 0}, {"learning_rate": 0.0}, {"clip": 0.0}, {"average": 1.0},
        {"average": -0.1}, {"shift": -1}, {"evenness": 0.0}, {"replays": -1},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a stream needs"):
        StreamConfig(**wrong)
