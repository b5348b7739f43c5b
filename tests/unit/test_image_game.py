"""Games of images: parts of an image come and go, and loops say what the model must have been given."""

from __future__ import annotations

from itertools import permutations, product
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cortx
from cortx import Game
from cortx.errors import InputError, ModelError
from cortx.games.game import MIB
from cortx.games.models import TorchModel
from cortx.games.players import ImagePlayers, Patches, Segments

HEIGHT, WIDTH = 4, 6
SHAPES = {
    "first": (3, HEIGHT, WIDTH),
    "last": (HEIGHT, WIDTH, 3),
    "grey": (HEIGHT, WIDTH),
    "one": (1, HEIGHT, WIDTH),
}
"""One image, as a caller may have it."""
REFERENCES = ("zero", "mean", "blur", "given")
PARTS = np.array([[0, 0, 1, 1, 1, 2], [0, 3, 3, 1, 2, 2], [0, 3, 3, 3, 2, 2], [0, 0, 0, 3, 3, 2]])

every_layout = pytest.mark.parametrize("layout", SHAPES)
every_reference = pytest.mark.parametrize("reference", REFERENCES)


def make_images(layout: str, n: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, *SHAPES[layout])).astype(np.float32)


def make_net(n_numbers: int, n_outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """A module for images of any layout."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(n_numbers, 8), nn.Tanh(), nn.Linear(8, n_outputs))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return net


def net_for(layout: str, n_outputs: int = 3) -> nn.Sequential:
    return make_net(int(np.prod(SHAPES[layout])), n_outputs)


class Seen:
    """A function on images that keeps what it was given; two outputs."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray] = []

    def __call__(self, images: np.ndarray) -> np.ndarray:
        self.batches.append(images.copy())
        flat = images.reshape(len(images), -1).astype(np.float64)
        return np.stack([np.tanh(flat[:, ::2].sum(axis=1) - flat[:, 1::2].sum(axis=1)), (flat**2).sum(axis=1)], axis=1)

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))


def layout_of(layout: str, kind: str = "patches") -> Patches | Segments:
    channels: Any = "last" if layout == "last" else "first"
    return Patches((2, 3), channels=channels) if kind == "patches" else Segments(PARTS, channels=channels)


def make_game(model: Any, layout: str, reference: str = "zero", kind: str = "patches", **settings: Any) -> Game:
    given: Any = make_images(layout, 1, seed=9)[0] if reference == "given" else reference
    return Game(model, given, players=layout_of(layout, kind), **settings)


# Plain loops ----------------------------------------------------------------------------------------------


def part_of(kind: str, y: int, x: int) -> int:
    return (y // 2) * 2 + x // 3 if kind == "patches" else int(PARTS[y, x])


def place(layout: str, channel: int, y: int, x: int) -> tuple[int, ...]:
    return {"first": (channel, y, x), "last": (y, x, channel), "grey": (y, x), "one": (channel, y, x)}[layout]


def n_channels(layout: str) -> int:
    return 3 if layout in ("first", "last") else 1


def slow_blur(grey: np.ndarray) -> np.ndarray:
    """A Gaussian of an eighth of the longer side, cut at two and a half deviations; outside is the nearest pixel."""
    height, width = grey.shape
    deviation = max(height, width) / 8
    reach = max(1, round(2.5 * deviation))
    result = np.zeros((height, width))
    for y, x in product(range(height), range(width)):
        total = weight = 0.0
        for dy, dx in product(range(-reach, reach + 1), repeat=2):
            w = exp(-(dy * dy + dx * dx) / (2 * deviation**2))
            total += w * float(grey[min(max(y + dy, 0), height - 1), min(max(x + dx, 0), width - 1)])
            weight += w
        result[y, x] = total / weight
    return result


def slow_reference(image: np.ndarray, layout: str, reference: str) -> np.ndarray:
    if reference == "zero":
        return np.zeros_like(image)
    if reference == "given":
        return make_images(layout, 1, seed=9)[0]
    result = np.empty_like(image)
    for channel in range(n_channels(layout)):
        plane = np.empty((HEIGHT, WIDTH))
        for y, x in product(range(HEIGHT), range(WIDTH)):
            plane[y, x] = image[place(layout, channel, y, x)]
        filled = slow_blur(plane) if reference == "blur" else np.full((HEIGHT, WIDTH), plane.mean())
        for y, x in product(range(HEIGHT), range(WIDTH)):
            result[place(layout, channel, y, x)] = filled[y, x]
    return result


def slow_masked(image: np.ndarray, present: Any, layout: str, reference: str, kind: str) -> np.ndarray:
    masked = slow_reference(image, layout, reference)
    for channel, y, x in product(range(n_channels(layout)), range(HEIGHT), range(WIDTH)):
        if present[part_of(kind, y, x)]:
            masked[place(layout, channel, y, x)] = image[place(layout, channel, y, x)]
    return masked


def coalitions(n: int = 4) -> np.ndarray:
    """All of them, nobody first and everybody last."""
    return np.array(list(product([False, True], repeat=n)))


# Masking --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["patches", "segments"])
@every_reference
@every_layout
def test_the_model_is_given_masked_images_in_the_layout_of_the_caller(layout: str, reference: str, kind: str) -> None:
    model, images = Seen(), make_images(layout)
    game = make_game(model, layout, reference, kind)
    rows = game.rows(images)
    _ = game.base_values
    model.batches.clear()
    game.values(rows, coalitions(), distinct=True)
    seen = np.concatenate(model.batches)
    assert seen.dtype == np.float32
    expected = [slow_masked(image, present, layout, reference, kind) for image in images for present in coalitions()]
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    assert np.ptp(seen, axis=0).min() > 0.01  # nothing is masked always


@pytest.mark.parametrize("size", [(16, 8), (5, 5), (1, 1), (3, 40)])
def test_blur_of_other_sizes(size: tuple[int, int]) -> None:
    model = Seen()
    image = np.random.default_rng(1).random((1, 1, *size)).astype(np.float32)
    game = Game(model, "blur", players=Patches(1))
    game.empty_values(game.rows(image))
    np.testing.assert_allclose(model.batches[-1][0, 0], slow_blur(image[0, 0]), atol=1e-6)


def test_several_references_are_averaged() -> None:
    several, images = make_images("first", 5, seed=4), make_images("first")
    game = Game(Seen(), several, players=Patches((2, 3)))
    game.rows(images)
    np.testing.assert_allclose(game.absent, several.mean(axis=0).reshape(1, -1), atol=1e-6)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, lambda x: torch.from_numpy(x).requires_grad_(), list])
def test_a_reference_image_of_any_kind(make: Any) -> None:
    image = make_images("first", 1)[0]
    game = Game(Seen(), make(image), players=Patches((2, 3)))
    game.rows(make_images("first"))
    np.testing.assert_array_equal(game.absent, image.reshape(1, -1))


def test_bytes_are_pixels_of_256_steps() -> None:
    model = Seen()
    whole = np.random.default_rng(0).integers(0, 256, (2, *SHAPES["first"])).astype(np.uint8)
    game = Game(model, whole[1], players=Patches((2, 3)))
    game.full_values(game.rows(whole))
    np.testing.assert_allclose(model.batches[-1], whole / 255, atol=1e-6)
    assert game.rows(whole).active.tolist() == [[True] * 4, [False] * 4]


# Players --------------------------------------------------------------------------------------------------


@every_layout
def test_players_of_patches(layout: str) -> None:
    game = make_game(Seen(), layout)
    with pytest.raises(InputError, match=r"learns the size from the first images; call game.rows\(X\) first"):
        _ = game.players
    rows = game.rows(make_images(layout))
    players = game.players
    assert isinstance(players, ImagePlayers)
    assert players.names == ("patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1")
    assert players.grid == (2, 2)
    assert game.n_players == len(players) == 4
    numbers = np.full(SHAPES[layout], -1)
    for channel, y, x in product(range(n_channels(layout)), range(HEIGHT), range(WIDTH)):
        assert players.pixel_player[y, x] == part_of("patches", y, x)
        numbers[place(layout, channel, y, x)] = part_of("patches", y, x)
    np.testing.assert_array_equal(players.column_player, numbers.ravel())
    np.testing.assert_array_equal(rows.table.matrix, make_images(layout).reshape(3, -1))


def test_players_of_segments() -> None:
    game = make_game(Seen(), "last", kind="segments")
    game.rows(make_images("last"))
    players = game.image_players
    assert players.names == ("segment 0", "segment 1", "segment 2", "segment 3")
    assert players.grid is None
    np.testing.assert_array_equal(players.pixel_player, PARTS)
    np.testing.assert_array_equal(players.column_player.reshape(SHAPES["last"]), np.stack([PARTS] * 3, axis=2))


@pytest.mark.parametrize("make", [np.ndarray.tolist, torch.from_numpy, lambda x: x.astype(np.uint8)])
def test_a_segmentation_of_any_kind(make: Any) -> None:
    game = Game(Seen(), "zero", players=Segments(make(PARTS)))
    game.rows(make_images("first"))
    np.testing.assert_array_equal(game.image_players.pixel_player, PARTS)


def test_a_segmentation_is_kept_as_it_was_given() -> None:
    parts = PARTS.copy()
    game = Game(Seen(), "zero", players=Segments(parts))
    parts[:] = 0
    game.rows(make_images("first"))
    assert game.n_players == 4


@every_layout
def test_a_part_is_active_where_any_of_its_numbers_differs(layout: str) -> None:
    game = make_game(Seen(), layout, "given")
    images = np.stack([make_images(layout, 1, seed=9)[0]] * 3)
    images[1][place(layout, 0, 1, 4)] += 1e-3
    images[2][place(layout, n_channels(layout) - 1, 3, 0)] *= 0.5
    expected = [[False] * 4, [False, True, False, False], [False, False, True, False]]
    assert game.rows(images).active.tolist() == expected


# Values ---------------------------------------------------------------------------------------------------


@every_reference
@every_layout
def test_values_are_the_outputs_for_masked_images(layout: str, reference: str) -> None:
    net, images = net_for(layout), make_images(layout)
    game = make_game(net, layout, reference, output="probability")
    rows = game.rows(images)
    values = game.values(rows, coalitions())
    assert values.shape == (3, 16, 3)
    assert values.dtype == np.float64
    for i, image in enumerate(images):
        for k, present in enumerate(coalitions()):
            masked = torch.from_numpy(slow_masked(image, present, layout, reference, "patches"))
            with torch.no_grad():
                logits = net(masked[None])[0].double().numpy()
            expected = [exp(logit) / sum(map(exp, logits)) for logit in logits]
            np.testing.assert_allclose(values[i, k], expected, atol=1e-6)
    own = np.stack([np.random.default_rng(i).random((5, 4)) < 0.5 for i in range(3)])
    tensors = game.values_of(torch.from_numpy(rows.table.matrix), torch.from_numpy(own))
    assert tensors.shape == (3, 5, 3)
    assert tensors.dtype == torch.float32
    assert tensors.device == game.device == torch.device("cpu")
    assert not tensors.is_inference()  # a loss may use them
    np.testing.assert_allclose(tensors.numpy(), game.values(rows, own), atol=1e-6)
    np.testing.assert_allclose(game.values(rows, coalitions(), distinct=True), values, atol=1e-6)
    np.testing.assert_allclose(game.full_values(rows), values[:, -1], atol=1e-6)
    np.testing.assert_allclose(game.empty_values(rows), values[:, 0], atol=1e-6)
    if reference in ("zero", "given"):
        np.testing.assert_allclose(game.base_values, values[0, 0], atol=1e-6)
    else:
        assert np.ptp(game.empty_values(rows), axis=0).min() > 1e-5


def test_evaluations_are_counted() -> None:
    for reference in REFERENCES:
        model, images = Seen(), make_images("first")
        images[2, :, :2, :3] = 0.0
        game = make_game(model, "first", reference)
        rows = game.rows(images)
        assert game.evaluations == model.count == 0
        assert game.evaluations_per_value == 1
        assert game.n_outputs == 2
        assert game.evaluations == model.count == 1  # the reference, once
        game.full_values(rows)
        assert game.evaluations == model.count == 1 + 3
        game.empty_values(rows)
        own = 3 if reference in ("mean", "blur") else 0
        assert game.evaluations == model.count == 4 + own
        game.values(rows, coalitions(), distinct=True)
        assert game.evaluations == model.count == 4 + own + 3 * 16
        game.values_of(torch.from_numpy(rows.table.matrix), torch.ones(3, 2, 4, dtype=torch.bool))
        assert game.evaluations == model.count == 4 + own + 3 * 16 + 6
        before = game.evaluations
        game.values(rows, np.concatenate([coalitions(), coalitions()]))
        different = sum(2 ** int(active.sum()) for active in rows.active)
        assert game.evaluations - before == model.count - before == different
        assert different == (2 * 16 + 8 if reference == "zero" else 3 * 16)


def test_outputs_and_targets() -> None:
    images, net = make_images("first"), net_for("first")
    everything = make_game(net, "first", output="probability")
    rows = everything.rows(images)
    values = everything.values(rows, coalitions())
    assert everything.output_names == ("0", "1", "2")
    for target in range(3):
        game = make_game(net, "first", output="probability", target=target)
        found = game.values(game.rows(images), coalitions())
        assert game.output_names is None
        np.testing.assert_allclose(found, values[..., [target]], atol=1e-6)
    game = make_game(net, "first", output="probability", target="all")
    np.testing.assert_array_equal(game.values(game.rows(images), coalitions()), values)
    odds = make_game(net, "first", output="log-odds")
    np.testing.assert_allclose(
        odds.values(odds.rows(images), coalitions()), np.log(values) - np.log(1 - values), atol=1e-5
    )
    raw = make_game(net, "first")
    np.testing.assert_allclose(
        raw.full_values(raw.rows(images)), net(torch.from_numpy(images)).detach().numpy(), atol=1e-6
    )
    with pytest.raises(InputError, match=r"target must be 'all' or one of 0\.\.2, got 3"):
        cortx.shapley(make_game(net, "first", target=3), images, progress=False)


def test_two_classes_are_one_output_unless_both_are_wanted() -> None:
    images = make_images("grey")
    one = make_game(net_for("grey", 2), "grey", output="probability")
    both = make_game(net_for("grey", 2), "grey", output="probability", target="all")
    probability = torch.softmax(net_for("grey", 2)(torch.from_numpy(images)), 1).detach().numpy()
    np.testing.assert_allclose(one.full_values(one.rows(images)), probability[:, 1:], atol=1e-6)
    np.testing.assert_allclose(both.full_values(both.rows(images)), probability, atol=1e-6)
    single = make_game(net_for("grey", 1), "grey", output="probability", target="all")
    found = single.full_values(single.rows(images))
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    logit = net_for("grey", 1)(torch.from_numpy(images)).detach().numpy()[:, 0]
    np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-logit)), atol=1e-6)


@every_layout
def test_functions_take_and_give_arrays(layout: str) -> None:
    kinds = []

    def brightness(images: Any) -> Any:
        kinds.append((type(images), images.dtype, images.shape[1:]))
        images += 100  # its own copy
        return images.reshape(len(images), -1).mean(axis=1) - 100

    images = make_images(layout)
    game = make_game(brightness, layout)
    rows = game.rows(images)
    np.testing.assert_allclose(game.full_values(rows)[:, 0], images.reshape(3, -1).mean(axis=1), atol=1e-4)
    game.values(rows, coalitions())
    np.testing.assert_array_equal(rows.table.matrix, make_images(layout).reshape(3, -1))
    np.testing.assert_array_equal(images, make_images(layout))
    assert game.absent.max() == 0
    assert set(kinds) == {(np.ndarray, np.dtype(np.float32), SHAPES[layout])}


def test_probabilities_of_a_function_are_checked() -> None:
    game = make_game(lambda images: images.sum(axis=(1, 2, 3)), "first", output="probability")
    with pytest.raises(InputError, match="use output='raw' to explain them as they are"):
        game.full_values(game.rows(make_images("first")))


def test_a_module_is_evaluated_as_for_use_and_left_as_it_was() -> None:
    norm, drop = nn.BatchNorm2d(3), nn.Dropout(0.9)
    net = nn.Sequential(norm, drop, net_for("first"))
    net.train()
    norm.training = False  # a frozen layer stays frozen
    game = make_game(net, "first")
    rows = game.rows(make_images("first"))
    first = game.values(rows, coalitions())
    np.testing.assert_array_equal(first, game.values(rows, coalitions()))
    assert net.training
    assert drop.training
    assert not norm.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert norm.running_mean is not None
    assert norm.running_mean.abs().max() == 0


def test_weights_in_double_and_half_precision() -> None:
    images = make_images("first")
    plain = make_game(net_for("first"), "first", output="probability")
    expected = plain.full_values(plain.rows(images))
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.bfloat16, 0.05)):
        game = make_game(net_for("first").to(dtype), "first", output="probability")
        np.testing.assert_allclose(game.full_values(game.rows(images)), expected, atol=tolerance)
        assert game.full_values(game.rows(images)).dtype == np.float64


def test_reduced_precision_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * HEIGHT * WIDTH, 3))
    images = make_images("first")
    full, reduced = (make_game(net, "first", output="probability", precision=p) for p in (None, "bfloat16"))
    exact, same = (game.values(game.rows(images), coalitions()) for game in (full, reduced))
    np.testing.assert_array_equal(same, exact)  # on a CPU it would only be slower
    monkeypatch.setattr(TorchModel, "reduces", True)
    near = reduced.values(reduced.rows(images), coalitions())
    np.testing.assert_allclose(near, exact, atol=0.03)
    assert (near != exact).any()
    np.testing.assert_allclose(near.sum(axis=2), 1, atol=1e-6)  # the softmax itself is not reduced
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("reference", ["zero", "blur"])
def test_chunks_change_nothing(reference: str) -> None:
    images = make_images("first", 40)
    values, calls = [], []
    for budget in (MIB, 256 * MIB):
        model = Seen()
        game = make_game(model, "first", reference, memory_budget=budget)
        rows = game.rows(images)
        parts = [
            game.values(rows, coalitions()),
            game.values(rows, coalitions(), distinct=True),
            game.values(rows, np.stack([coalitions()] * 40), distinct=True),
            game.full_values(rows)[:, None],
            game.values_of(torch.from_numpy(rows.table.matrix), torch.from_numpy(np.stack([coalitions()] * 40))),
        ]
        values.append([np.asarray(part) for part in parts])
        calls.append([len(batch) for batch in model.batches])
        assert game.evaluations == model.count == 4 * 40 * 16 + 40 + 1
    for small, large in zip(*values, strict=True):
        np.testing.assert_allclose(small, large, rtol=1e-6, atol=1e-6)
    assert max(calls[0]) * images[0].nbytes < MIB
    assert max(calls[0]) < max(calls[1]) == 640


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
def test_an_onnx_file_on_images(kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    element = getattr(onnx.TensorProto, kind.upper())
    given = onnx.helper.make_tensor_value_info("images", element, ["n", *SHAPES["first"]])
    made = onnx.helper.make_tensor_value_info("colours", element, ["n", 3])
    node = onnx.helper.make_node("ReduceMean", ["images"], ["colours"], axes=[2, 3], keepdims=0)
    graph = onnx.helper.make_graph([node], "mean", [given], [made])
    opset = [onnx.helper.make_opsetid("", 13)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "mean.onnx")
    images = make_images("first")
    game = make_game(tmp_path / "mean.onnx", "first")
    tolerance = 1e-3 if kind == "float16" else 1e-6
    np.testing.assert_allclose(game.full_values(game.rows(images)), images.mean(axis=(2, 3)), atol=tolerance)
    values = cortx.shapley(game, images, "exact", views=0, progress=False).values
    parts = [images[:, :, y : y + 2, x : x + 3].sum(axis=(2, 3)) / (HEIGHT * WIDTH) for y in (0, 2) for x in (0, 3)]
    np.testing.assert_allclose(values, np.stack(parts, axis=1), atol=2 * tolerance)


# Exact Shapley values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["patches", "segments"])
@every_reference
def test_exact_values_are_the_mean_over_all_orders(reference: str, kind: str) -> None:
    images, net = make_images("first", 2), net_for("first")
    game = make_game(net, "first", reference, kind, output="probability")
    explanation = cortx.shapley(game, images, "exact", views=0, progress=False)
    assert explanation.values.shape == (2, 4, 3)
    for i, image in enumerate(images):
        known: dict[frozenset[int], np.ndarray] = {}

        def value(
            present: frozenset[int], image: np.ndarray = image, known: dict[frozenset[int], np.ndarray] = known
        ) -> np.ndarray:
            if present not in known:
                masked = slow_masked(image, [j in present for j in range(4)], "first", reference, kind)
                with torch.no_grad():
                    known[present] = torch.softmax(net(torch.from_numpy(masked)[None]), 1)[0].double().numpy()
            return known[present]

        total = np.zeros((4, 3))
        orders = list(permutations(range(4)))
        for order in orders:
            for position, j in enumerate(order):
                before = frozenset(order[:position])
                total[j] += value(before | {j}) - value(before)
        np.testing.assert_allclose(explanation.values[i], total / len(orders), atol=1e-5)
        np.testing.assert_allclose(explanation.base_values[i], value(frozenset()), atol=1e-6)
        gap = explanation.values[i].sum(axis=0) - (value(frozenset(range(4))) - value(frozenset()))
        np.testing.assert_allclose(gap, 0, atol=1e-6)


@every_reference
@pytest.mark.parametrize("method", ["exact", "kernel", "permutation"])
def test_a_patch_that_equals_the_reference_gets_zero(method: str, reference: str) -> None:
    images = make_images("one", 2)
    if reference in ("zero", "given"):
        images[:, :, 2:, 3:] = slow_reference(images[0], "one", reference)[:, 2:, 3:]
        null = [3]
    else:  # one colour: its mean, and as smooth as it can be
        images[:] = 0.25
        null = [0, 1, 2, 3]
    game = make_game(net_for("one"), "one", reference)
    explanation = cortx.shapley(game, images, method, views=0, progress=False)
    np.testing.assert_allclose(explanation.values[:, null], 0, atol=1e-6)
    others = [j for j in range(4) if j not in null]
    assert (np.abs(explanation.values[:, others]) > 1e-4).all()


def test_labels_of_an_image_do_not_depend_on_its_neighbours() -> None:
    images = make_images("first", 6)
    model = Seen()
    game = Game(model, "zero", players=Patches((1, 2)))  # twelve players: sampled
    together = cortx.shapley(game, images, "kernel", row_budget=100, progress=False).values
    reverse = cortx.shapley(game, images[::-1], "kernel", row_budget=100, progress=False).values
    alone = cortx.shapley(game, images[2:3], "kernel", row_budget=100, progress=False).values
    np.testing.assert_allclose(reverse[::-1], together, atol=1e-9)
    np.testing.assert_allclose(alone[0], together[2], atol=1e-9)


# Saving ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["patches", "segments"])
@every_reference
@every_layout
def test_a_game_comes_back_from_its_spec(layout: str, reference: str, kind: str) -> None:
    net, images = net_for(layout), make_images(layout)
    game = make_game(net, layout, reference, kind, output="probability", target=1)
    rows = game.rows(images)
    again = Game.from_spec(net, game.spec(rows.table.schema))
    assert again.of_images
    assert again.players.names == game.players.names
    assert again.image_players.grid == game.image_players.grid
    assert again.own_reference == game.own_reference
    for ours, theirs in zip(game.identity(), again.identity(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(again.image_players.pixel_player, game.image_players.pixel_player)
    again_rows = again.rows(images)
    np.testing.assert_array_equal(again_rows.active, rows.active)
    np.testing.assert_array_equal(again_rows.words, rows.words)
    np.testing.assert_array_equal(again.values(again_rows, coalitions()), game.values(rows, coalitions()))
    with pytest.raises(InputError, match=r"expected \(images, "):
        again.rows(make_images(layout)[..., 1:])


def test_a_spec_keeps_precision_and_the_range_of_pixels() -> None:
    images = 2 * make_images("first") - 1
    game = Game(net_for("first"), "zero", players=Patches((2, 3), pixels=(-1.0, 1.0)), precision="bfloat16")
    rows = game.rows(images)
    again = Game.from_spec(net_for("first"), game.spec(rows.table.schema))
    np.testing.assert_array_equal(again.full_values(again.rows(images)), game.full_values(rows))
    assert again.spec(rows.table.schema).precision == "bfloat16"


def test_other_references_and_parts_have_another_identity() -> None:
    identities = []
    for layout, kind in ((Patches((2, 3)), "zero"), (Patches((2, 3)), "mean"), (Patches(2), "zero")):
        game = Game(net_for("first"), kind, players=layout)
        game.rows(make_images("first"))
        identities.append([np.asarray(part).tolist() for part in game.identity()])
    assert identities[0] != identities[1]
    assert identities[0] != identities[2]


# What is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Patches(0), r"a patch is a positive whole number of pixels, or \(height, width\), got 0"),
        (lambda: Patches(-2), "positive whole number of pixels"),
        (lambda: Patches(True), "got True"),
        (lambda: Patches(2.0), r"got 2\.0"),  # type: ignore[arg-type]
        (lambda: Patches(None), "got None"),  # type: ignore[arg-type]
        (lambda: Patches("2"), "got '2'"),  # type: ignore[arg-type]
        (lambda: Patches((2, 2, 2)), r"got \(2, 2, 2\)"),  # type: ignore[arg-type]
        (lambda: Patches((2, False)), r"got \(2, False\)"),
        (lambda: Patches((2, 0.5)), r"got \(2, 0\.5\)"),  # type: ignore[arg-type]
        (lambda: Patches(2, channels="middle"), "channels must be 'first' or 'last', got 'middle'"),  # type: ignore[arg-type]
        (lambda: Patches(2, pixels=(1.0, 0.0)), r"pixels must be \(lowest, highest\), got \(1\.0, 0\.0\)"),
        (lambda: Patches(2, pixels=(0.0, float("inf"))), r"pixels must be \(lowest, highest\)"),
        (lambda: Patches(2, pixels=255), r"pixels must be \(lowest, highest\), got 255"),  # type: ignore[arg-type]
        (lambda: Patches(2, pixels=("0", "1")), r"pixels must be \(lowest, highest\)"),  # type: ignore[arg-type]
        (lambda: Segments(PARTS.astype(float)), r"map of whole numbers, \(height, width\), got .* of float64"),
        (lambda: Segments(PARTS > 0), "of bool"),
        (lambda: Segments(PARTS[0]), r"got shape \(6,\)"),
        (lambda: Segments(np.stack([PARTS] * 3)), r"got shape \(3, 4, 6\)"),
        (lambda: Segments(PARTS[:0]), r"got shape \(0, 6\)"),
        (lambda: Segments([[0, 1], [0]]), "rows of one length"),
        (lambda: Segments(PARTS * 2), r"numbered 0, 1, 2, \.\.\. without gaps"),
        (lambda: Segments(PARTS + 1), "without gaps"),
        (lambda: Segments(PARTS - 1), "without gaps"),
        (lambda: Segments(PARTS * 10**12), "without gaps"),
        (lambda: Segments(PARTS, channels="none"), "channels must be"),  # type: ignore[arg-type]
    ],
)
def test_parts_are_checked(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reference": "median"}, "an image game is 'zero', 'mean', 'blur', 'removed' or an image, got 'median'"),
        ({}, "'zero', 'mean', 'blur', 'removed' or an image, got None"),
        ({"background": make_images("first")}, "an image game has a reference, not a background; give reference="),
        ({"reference": "zero", "background": make_images("first")}, "a reference, not a background"),
        ({"reference": "zero", "precision": "float8"}, "precision must be 'float16', 'bfloat16' or None, got 'float8'"),
        ({"reference": "zero", "precision": "bfloat16"}, "precision='bfloat16' is for torch modules, got a Seen"),
        ({"reference": "zero", "memory_budget": 1_000}, "memory_budget is in bytes and at least"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Game(Seen(), players=Patches(2), **settings)


WRONG = {
    "channels last": (make_images("last"), r"say channels='last' in Patches or Segments, or move the axis"),
    "one image": (np.zeros((3, 4, 4)), r"looks like one colour image; give a batch, images\[None\]"),
    "one image, channels last": (np.zeros((4, 4, 3)), r"looks like one colour image; give a batch, images\[None\]"),
    "one grey image": (np.zeros((4, 6)), r"expected \(images, channels, height, width\).* for grey images"),
    "a table": (np.zeros((7, 72)), r"expected \(images, channels, height, width\)"),
    "video": (np.zeros((1, 2, 3, 4, 6)), r"expected \(images, channels, height, width\)"),
    "no image": (np.zeros((0, 3, 4, 6)), "there is no image; give at least one"),
    "no pixels": (np.zeros((2, 3, 0, 6)), "have no pixels"),
    "not divisible": (np.zeros((1, 3, 5, 6)), "5 x 6 pixels cannot be divided into patches of 2 x 3; choose a patch"),
    "not divisible across": (np.zeros((1, 3, 4, 7)), "a width that divides 7, or pad the images"),
    "0..255": (255 * make_images("first"), "outside 0..1; divide by 255, or give them as uint8"),
    "whole numbers": (np.full((1, 3, 4, 6), 200), "divide by 255, or give them as uint8"),
    "standardized": (
        4 * make_images("first") - 2,
        r"put the standardization inside the model \(a Sequential\), or say",
    ),
    "a little too bright": (1.2 * make_images("first"), r"outside 0..1; .* say pixels=\(lowest, highest\)"),
    "NaN": (np.full((2, 3, 4, 6), np.nan), r"hold NaN or infinity \(first in image 0\)"),
    "infinity": (np.stack([np.zeros((3, 4, 6)), np.full((3, 4, 6), np.inf)]), r"\(first in image 1\)"),
    "objects": (make_images("first").astype(object), "array or a tensor of numbers, got an array of object"),
    "complex": (make_images("first").astype(complex), "of numbers, got an array of complex128"),
    "text": (make_images("first").astype(str), "of numbers, got an array of <U"),
    "a dictionary": ({"image": make_images("first")}, "of numbers, got dict"),
    "a name": ("cat.png", "of numbers, got str"),
    "nothing": (None, "of numbers, got NoneType"),
    "lists of other lengths": ([[[[0.0, 1.0]]], [[[0.0]]]], "one length"),
}


@pytest.mark.parametrize(("images", "message"), WRONG.values(), ids=WRONG)
def test_images_are_checked(images: Any, message: str) -> None:
    game = make_game(Seen(), "first")
    with pytest.raises(InputError, match=message):
        game.rows(images)
    assert len(game.rows(make_images("first"))) == 3  # what was refused has left no trace


@pytest.mark.parametrize(
    ("layout", "images", "message"),
    [
        ("last", make_images("first"), "say channels='first' in Patches or Segments, or move the axis"),
        ("grey", np.zeros((1, 4, 7)), "cannot be divided"),
        ("one", np.zeros((1, 6, 4, 1)), "say channels='last'"),
    ],
)
def test_other_layouts_are_checked(layout: str, images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_game(Seen(), layout).rows(images)


@pytest.mark.parametrize(
    ("layout", "images", "message"),
    [
        ("first", np.zeros((1, 3, 8, 6)), r"have shape \(1, 3, 8, 6\); expected \(images, 3, 4, 6\)"),
        ("first", make_images("last"), r"expected \(images, 3, 4, 6\); the channels must come first"),
        ("last", make_images("first"), r"expected \(images, 4, 6, 3\); the channels must come last"),
        ("first", make_images("first")[0], r"one image; give a batch, images\[None\]"),
        ("grey", make_images("grey")[0], r"one image; give a batch, images\[None\]"),
        ("first", make_images("grey", 2), "a grey image becomes one with channels by repeating it"),
        ("grey", make_images("first"), r"expected \(images, 4, 6\)"),
        ("first", np.zeros((0, 3, 4, 6)), "there is no image"),
    ],
)
def test_later_images_are_like_the_first(layout: str, images: Any, message: str) -> None:
    game = make_game(Seen(), layout)
    game.rows(make_images(layout))
    with pytest.raises(InputError, match=message):
        game.rows(images)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (np.zeros((3, 8, 6)), r"the reference .* shape \(3, 8, 6\); expected .*3, 4, 6"),
        (make_images("last")[0], r"the reference .* shape \(4, 6, 3\); expected .*3, 4, 6"),
        (np.full((3, 4, 6), 200.0), "the reference .* divide by 255, or give them as uint8"),
        (np.full((3, 4, 6), np.nan), "the reference .* NaN"),
        (0.5, "the reference must be an array or a tensor of numbers, got float"),
        (np.array(0.5), r"the reference .* shape \(\); expected .*3, 4, 6"),
        ({"a": 1}, "the reference must be an array or a tensor of numbers, got dict"),
    ],
)
def test_a_reference_that_does_not_fit(reference: Any, message: str) -> None:
    game = Game(Seen(), reference, players=Patches((2, 3)))
    with pytest.raises(InputError, match=message):
        game.rows(make_images("first"))


def test_a_segmentation_of_another_size() -> None:
    game = Game(Seen(), "zero", players=Segments(PARTS.T))
    with pytest.raises(InputError, match=r"the segmentation is \(6, 4\), the images are \(4, 6\) pixels"):
        game.rows(make_images("first"))


def test_a_module_on_two_devices() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.Linear(4, 3, device="meta"))
    with pytest.raises(InputError, match=r"weights lie on several devices \(cpu, meta\); move it to one"):
        make_game(net, "first")


class Always(nn.Module):
    """A module that returns what it is told."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, images: torch.Tensor) -> Any:
        return self.answer(images)


def bad_outputs(kind: str) -> dict[str, Any]:
    def failing(images: Any) -> Any:
        raise RuntimeError("out of colours")

    zeros = torch.zeros if kind == "module" else np.zeros
    return {
        "NaN": (lambda images: zeros((len(images), 2)) * float("nan"), "NaN or infinity"),
        "infinity": (lambda images: zeros((len(images), 2)) + float("inf"), "NaN or infinity"),
        "a map for each image": (lambda images: zeros((len(images), 2, 2)), r"returned shape \(\d+, 2, 2\) for \d+"),
        "another count": (lambda images: zeros((len(images) + 1, 2)), r"returned shape \(\d+, 2\) for \d+"),
        "no outputs": (lambda images: zeros((len(images), 0)), r"returned shape \(\d+, 0\) for \d+"),
        "one for all": (lambda images: zeros((2,)), r"returned shape \(2,?( 1)?\) for \d+"),
        "a tuple": (lambda images: (images, {}), "the mod(el|ule) returned tuple, expected"),
        "text": (lambda images: "cat", "the mod(el|ule) returned str, expected"),
        "nothing": (lambda images: None, "returned (NoneType, expected|shape)|NaN"),
        "an error": (failing, "the model raised RuntimeError on a batch of .*: out of colours"),
    }


@pytest.mark.parametrize("fault", bad_outputs("module"))
@pytest.mark.parametrize("kind", ["module", "function"])
def test_a_bad_model_is_named(kind: str, fault: str) -> None:
    answer, message = bad_outputs(kind)[fault]
    game = make_game(Always(answer) if kind == "module" else answer, "first")
    rows = game.rows(make_images("first"))
    with pytest.raises(ModelError, match=message):
        game.full_values(rows)
    with pytest.raises(ModelError, match=message):
        cortx.shapley(game, make_images("first"), progress=False)


def test_a_module_for_another_layout_is_named() -> None:
    game = make_game(nn.Conv2d(3, 2, 3), "last")
    rows = game.rows(make_images("last"))
    with pytest.raises(ModelError, match=r"the model raised RuntimeError .* to have 3 channels, but got 4 channels"):
        game.full_values(rows)


def test_a_module_that_squeezes() -> None:
    game = make_game(Always(lambda images: images.mean(dim=(1, 2, 3)).squeeze()), "first")
    images = make_images("first")
    np.testing.assert_allclose(game.full_values(game.rows(images))[:, 0], images.mean(axis=(1, 2, 3)), atol=1e-6)
    np.testing.assert_allclose(game.full_values(game.rows(images[:1]))[:, 0], images[:1].mean(), atol=1e-6)


def test_a_game_as_a_user_writes_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 4, 10))
    images = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    game = cortx.Game(net, reference="zero", players=cortx.Patches(2), output="probability")
    explanation = cortx.shapley(game, images, progress=False)
    assert explanation.method == "exact"
    assert explanation.values.shape == (2, 4, 10)
    assert explanation.feature_names == ("patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1")
    assert explanation.outputs is not None
    np.testing.assert_allclose(explanation.values.sum(axis=1), explanation.outputs - explanation.base_values, atol=1e-6)
