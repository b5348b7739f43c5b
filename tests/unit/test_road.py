"""ROAD's imputation against a dense solve written from its definition, pixel by pixel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cortx.errors import InputError
from cortx.metrics import road_fill
from cortx.metrics.road import linear_imputation, normal_fields


def slow_imputation(image: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Each removed pixel of (height, width) is the mean of its neighbours, weighted and renormalised at the border."""
    height, width = image.shape
    unknown = [(i, j) for i in range(height) for j in range(width) if not present[i, j]]
    matrix, right = np.zeros((len(unknown), len(unknown))), np.zeros(len(unknown))
    for row, (i, j) in enumerate(unknown):
        weights = {}
        for di in (-1, 0, 1):
            for dj in (-1, 0, 1):
                inside = 0 <= i + di < height and 0 <= j + dj < width
                if (di or dj) and inside:
                    weights[i + di, j + dj] = 1 / 12 if di and dj else 1 / 6
        matrix[row, row] = 1
        for neighbour, weight in weights.items():
            share = weight / sum(weights.values())
            if present[neighbour]:
                right[row] += share * image[neighbour]
            else:
                matrix[row, unknown.index(neighbour)] -= share
    result = image.copy()
    for pixel, value in zip(unknown, np.linalg.solve(matrix, right), strict=True):
        result[pixel] = value
    return result


def random_images(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def masks(n: int, height: int, width: int, share: float, seed: int = 1) -> torch.Tensor:
    present = torch.rand(n, height, width, generator=torch.Generator().manual_seed(seed)) < share
    present[:, height // 2, 0] = True
    return present


@pytest.mark.parametrize("size", [(7, 9), (1, 6), (5, 1), (2, 2)])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_equals_the_dense_solve(size: tuple[int, int], share: float) -> None:
    images, present = random_images(6, 2, *size), masks(6, *size, share)
    filled = linear_imputation(images, present, torch.zeros(2))
    for image, seen, answer in zip(images.double().numpy(), present.numpy(), filled.numpy(), strict=True):
        for channel in range(2):
            np.testing.assert_allclose(answer[channel], slow_imputation(image[channel], seen), atol=5e-5)


def test_borders_and_corners_alone() -> None:
    """Only the middle is known, or all but the frame: the border's missing neighbours must not pull to zero."""
    images = 0.5 + random_images(3, 1, 6, 6)
    present = torch.zeros(3, 6, 6, dtype=torch.bool)
    present[0, 2:4, 2:4] = True
    present[1, 1:-1, 1:-1] = True
    present[2, 0, 0] = True
    filled = linear_imputation(images, present, torch.zeros(1))
    for k in range(3):
        expected = slow_imputation(images[k, 0].double().numpy(), present[k].numpy())
        np.testing.assert_allclose(filled[k, 0].numpy(), expected, atol=5e-5)
    np.testing.assert_allclose(filled[2].numpy(), images[2, 0, 0, 0].item(), atol=1e-6)  # one pixel paints them all


def test_double_precision_goes_further() -> None:
    images, present = random_images(2, 1, 8, 8).double(), masks(2, 8, 8, 0.2)
    filled = linear_imputation(images, present, torch.zeros(1, dtype=torch.float64), tolerance=1e-12)
    for k in range(2):
        np.testing.assert_allclose(filled[k, 0].numpy(), slow_imputation(images[k, 0].numpy(), present[k].numpy()))


def test_known_pixels_stay_exactly() -> None:
    images, present = random_images(5, 3, 8, 8), masks(5, 8, 8, 0.4)
    filled = linear_imputation(images, present, torch.zeros(3))
    assert torch.equal(filled[present[:, None].expand_as(images)], images[present[:, None].expand_as(images)])
    everything = torch.ones_like(present)
    assert torch.equal(linear_imputation(images, everything, torch.zeros(3)), images)


def test_flat_images_stay_flat() -> None:
    images = torch.tensor([0.0, 1.0, 0.3, 1e-30])[:, None, None, None].expand(4, 1, 8, 8)
    filled = linear_imputation(images, masks(4, 8, 8, 0.2), torch.zeros(1))
    np.testing.assert_allclose(filled.numpy(), images.numpy(), rtol=1e-6)


def test_mixed_batches_do_not_influence_each_other() -> None:
    """Images that need few steps, many, or none, alone and together."""
    images = random_images(8, 3, 16, 16)
    present = torch.cat([masks(2, 16, 16, share) for share in (0.02, 0.5, 0.95, 1.0)])
    together = linear_imputation(images, present, torch.zeros(3))
    alone = [linear_imputation(images[k : k + 1], present[k : k + 1], torch.zeros(3)) for k in range(8)]
    np.testing.assert_allclose(together.numpy(), torch.cat(alone).numpy(), atol=1e-6)


def test_nothing_left() -> None:
    images, players = random_images(4, 3, 4, 4), np.arange(16).reshape(4, 4)
    none, index = torch.zeros(4, 16, dtype=torch.bool), torch.arange(4)
    filled = road_fill(images, players, noise=0)(none, index)
    for channel in range(3):
        np.testing.assert_allclose(filled[:, channel].numpy(), float(images[:, channel].mean()), atol=1e-6)
    black = road_fill(images, players, noise=0, empty=[0.1, 0.2, 0.3])(none, index)
    np.testing.assert_allclose(black[2, :, 1, 1].numpy(), [0.1, 0.2, 0.3], rtol=1e-6)


def test_fill_removes_players_and_adds_noise_only_there() -> None:
    images = random_images(3, 2, 4, 6)
    players = np.arange(4 * 6).reshape(4, 6) // 2  # pairs of pixels
    kept = torch.rand(5, 12, generator=torch.Generator().manual_seed(3)) < 0.5
    index = torch.tensor([2, 0, 1, 2, 2])
    quiet, noisy = road_fill(images, players, noise=0), road_fill(images, players, noise=0.1, seed=5)
    without, with_noise = quiet(kept, index), noisy(kept, index)
    field = (with_noise - without).numpy()
    for m in range(5):
        present = np.array([[bool(kept[m, players[i, j]]) for j in range(6)] for i in range(4)])
        for channel in range(2):
            expected = slow_imputation(images[index[m], channel].double().numpy(), present)
            np.testing.assert_allclose(without[m, channel].numpy(), expected, atol=5e-5)
        assert (field[m][:, present] == 0).all()
        assert (field[m][:, ~present] != 0).all()
    gone = (~kept[3] & ~kept[4]).numpy()[players]  # one image, two masks, one field of noise
    np.testing.assert_allclose(field[3][:, gone], field[4][:, gone], atol=1e-6)


def test_noise_is_normal_and_belongs_to_the_image() -> None:
    images = random_images(40, 3, 16, 16)
    fields = normal_fields(images, seed=1)
    numbers = fields.double().numpy().ravel()
    error = 1 / math.sqrt(len(numbers))
    assert abs(numbers.mean()) < 4 * error
    assert abs(numbers.std() - 1) < 4 * error
    assert abs((np.abs(numbers) < 1).mean() - math.erf(1 / math.sqrt(2))) < 4 * error
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:7]
    assert torch.equal(normal_fields(images[order], seed=1), fields[order])
    assert not torch.equal(normal_fields(images, seed=2), fields)
    assert abs(np.corrcoef(numbers[: 20 * 768], numbers[20 * 768 :])[0, 1]) < 4 * error * math.sqrt(2)


def test_many_images_use_the_same_noise_as_few(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(10, 1, 4, 4)
    fields = normal_fields(images, seed=0)
    monkeypatch.setattr("cortx.metrics.road.NOISE_IMAGES", 3)
    assert torch.equal(normal_fields(images, seed=0), fields)


def test_grey_images() -> None:
    images, players = random_images(3, 4, 4), np.arange(16).reshape(4, 4)
    kept, index = torch.rand(3, 16, generator=torch.Generator().manual_seed(0)) < 0.5, torch.arange(3)
    grey, colour = road_fill(images, players, seed=1), road_fill(images[:, None], players, seed=1)
    assert grey(kept, index).shape == (3, 4, 4)
    assert torch.equal(grey(kept, index), colour(kept, index)[:, 0])


def test_global_generator_is_left_alone() -> None:
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    fill = road_fill(random_images(2, 3, 4, 4), np.zeros((4, 4), dtype=int))
    fill(torch.tensor([[True], [False]]), torch.arange(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()  # type: ignore[index]


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"noise": -0.1}, "0 or more"),
        ({"noise": math.nan}, "0 or more"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"empty": [0.0, 0.0]}, r"one colour, \(3,\)"),
    ],
)
def test_refuses_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        road_fill(random_images(2, 3, 4, 4), np.zeros((4, 4), dtype=int), **settings)


def test_says_when_it_does_not_settle() -> None:
    with pytest.raises(InputError, match="2 of 2 images could not be imputed in 3 steps"):
        linear_imputation(random_images(2, 1, 16, 16), masks(2, 16, 16, 0.1), torch.zeros(1), steps=3)
