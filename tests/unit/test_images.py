"""Images become a matrix of pixels, and every image has a word of its own."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from cortx import images as images_module
from cortx.errors import InputError
from cortx.images import Images, ImageSchema, read_images

SCHEMAS = {
    "first": ImageSchema((3, 4, 6), "first"),
    "last": ImageSchema((4, 6, 3), "last", (-1.0, 1.0)),
    "grey": ImageSchema((4, 6), "last"),
    "one": ImageSchema((1, 4, 6), "first"),
}
every_schema = pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)


def make_images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape).astype(np.float32)


# The axes -------------------------------------------------------------------------------------------------


@every_schema
def test_the_axes_of_an_image(schema: ImageSchema) -> None:
    assert schema.size == (4, 6)
    assert schema.n_channels == (3 if 3 in schema.shape else 1)
    assert schema.n_numbers == len(schema.names) == len(set(schema.names)) == 24 * schema.n_channels
    assert schema.grey == (schema.shape == (4, 6))
    assert ImageSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@every_schema
def test_what_belongs_to_a_pixel_belongs_to_its_numbers(schema: ImageSchema) -> None:
    pixels = np.arange(24).reshape(4, 6)
    found = schema.of_pixels(pixels).reshape(schema.shape)
    for channel, y, x in product(range(schema.n_channels), range(4), range(6)):
        place = (y, x) if schema.grey else (channel, y, x) if schema.channels == "first" else (y, x, channel)
        assert found[place] == pixels[y, x]


# Reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        np.asarray,
        np.asfortranarray,
        torch.from_numpy,
        lambda x: torch.from_numpy(x).requires_grad_(),
        np.ndarray.tolist,
        list,
        lambda x: [torch.from_numpy(image) for image in x],
        lambda x: np.repeat(x, 2, axis=3)[..., ::2],
        lambda x: x.astype(np.float64),
    ],
)
def test_images_of_any_kind(make: Any) -> None:
    images = make_images(5, 3, 4, 6)
    found = read_images(make(images))
    np.testing.assert_array_equal(found.matrix, images.reshape(5, -1))
    assert found.matrix.dtype == np.float32
    assert found.matrix.flags.c_contiguous
    assert found.schema == ImageSchema((3, 4, 6))
    assert len(found) == 5
    np.testing.assert_array_equal(found.take(np.array([3, 1])).matrix, images[[3, 1]].reshape(2, -1))


def test_the_axes_stay_as_the_caller_has_them() -> None:
    last = make_images(2, 4, 6, 3)
    found = read_images(last, channels="last")
    np.testing.assert_array_equal(found.matrix.reshape(last.shape), last)
    assert found.schema == ImageSchema((4, 6, 3), "last")
    grey = read_images(last[..., 0])
    assert grey.schema == ImageSchema((4, 6))
    np.testing.assert_array_equal(grey.matrix.reshape(2, 4, 6), last[..., 0])


@pytest.mark.parametrize("pixels", [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0), (0.5, 0.75)])
def test_bytes_fill_the_range(pixels: tuple[float, float]) -> None:
    whole = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    found = read_images(whole, pixels=pixels).matrix[0]
    low, high = pixels
    for number in range(256):
        assert found[number] == pytest.approx(low + number / 255 * (high - low), abs=1e-6 * (high - low))
    assert found[0] == low
    np.testing.assert_array_equal(read_images(torch.from_numpy(whole), pixels=pixels).matrix[0], found)


@pytest.mark.parametrize("kind", [bool, np.int64, np.float16])
def test_black_and_white_of_any_type(kind: Any) -> None:
    images = (make_images(2, 1, 4, 4) > 0.5).astype(kind)
    assert set(read_images(images).matrix.ravel()) == {0.0, 1.0}


def test_rounding_may_leave_the_range() -> None:
    images = np.array([[[[-1e-6, 1 + 1e-6]]]], dtype=np.float32)
    np.testing.assert_array_equal(read_images(images).matrix, images.reshape(1, 2))


@pytest.mark.parametrize(
    ("pixels", "images", "message"),
    [
        ((0.0, 1.0), 255 * make_images(1, 1, 4, 4), r"values from .* to 2\d\d\..*, outside 0\.\.1; divide by 255, or"),
        ((0.0, 1.0), 3 * make_images(1, 1, 4, 4) - 1, r"outside 0\.\.1; put the standardization inside the model"),
        ((-1.0, 1.0), 255 * make_images(1, 1, 4, 4), r"outside -1\.\.1; .*or say pixels=\(lowest, highest\)"),
        ((0.0, 255.0), 300 * make_images(1, 1, 9, 9), r"outside 0\.\.255; .*or say pixels=\(lowest, highest\)"),
        ((0.0, 1.0), np.full((1, 1, 2, 2), 1e39), "NaN or infinity"),
        ((0.0, 1.0), np.full((1, 1, 2, 2), -1), r"values from -1 to -1, outside 0\.\.1"),
    ],
)
def test_values_out_of_range(pixels: tuple[float, float], images: Any, message: str) -> None:
    with pytest.raises(InputError, match=message), np.errstate(over="ignore"):
        read_images(images, pixels=pixels)


def test_numbers_that_are_missing_are_found() -> None:
    images = make_images(7, 3, 4, 4)
    images[4, 2, 1, 1] = np.nan
    images[6, 0, 0, 0] = -np.inf
    with pytest.raises(InputError, match=r"the images hold NaN or infinity \(first in image 4\); every pixel needs"):
        read_images(images)


@pytest.mark.parametrize(
    ("shape", "channels", "accepted"),
    [
        ((32, 32, 3), "first", False),
        ((28, 28, 1), "first", False),
        ((16, 16, 4), "first", False),
        ((4, 6, 3), "first", False),
        ((4, 4, 3), "first", False),
        ((3, 32, 32), "last", False),
        ((1, 28, 20), "last", False),
        ((3, 4, 4), "last", False),
        ((3, 32, 32), "first", True),
        ((3, 32, 3), "first", True),
        ((1, 8, 1), "first", True),
        ((4, 8, 8), "first", True),
        ((2, 8, 8), "first", True),
        ((13, 64, 48), "first", True),
        ((16, 4, 4), "first", True),
        ((3, 3, 16), "last", True),
        ((32, 24, 3), "last", True),
        ((32, 24, 6), "last", True),
    ],
)
def test_the_order_of_channels_is_guarded(shape: tuple[int, ...], channels: Any, accepted: bool) -> None:
    images = make_images(2, *shape)
    if accepted:
        assert read_images(images, channels=channels).schema.shape == shape
        return
    other = {"first": "last", "last": "first"}[channels]
    with pytest.raises(InputError, match=rf"they look like channels {other}: say channels='{other}' in Patches or Seg"):
        read_images(images, channels=channels)


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (8, 8, 3), (8, 8, 1)])
def test_one_image_is_no_batch(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"looks like one colour image; give a batch, images\[None\]"):
        read_images(make_images(*shape))


def test_grey_images_as_many_as_colours_are_taken_once_their_size_is_known() -> None:
    images = make_images(5, 8, 8)
    schema = read_images(images).schema
    for n in (1, 3):
        assert len(read_images(images[:n], schema=schema)) == n


@pytest.mark.parametrize("shape", [(), (8,), (8, 8), (1, 2, 3, 8, 8)])
def test_shapes_that_are_no_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected \(images, channels, height, width\), with channels='last'"):
        read_images(make_images(*shape) if shape else np.array(0.5))


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (0, 8, 8)])
def test_no_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="the pictures: there is no image; give at least one"):
        read_images(np.zeros(shape), what="the pictures")


# Words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 5), (4, 4), (1, 1, 1)])
def test_words_follow_the_content_alone(shape: tuple[int, ...]) -> None:
    images = read_images(make_images(6, *shape))
    words = images.row_words()
    assert words.dtype == np.uint64
    assert len(set(words.tolist())) == 6
    order = np.array([4, 2, 0, 5, 1, 3])
    np.testing.assert_array_equal(images.take(order).row_words(), words[order])
    np.testing.assert_array_equal(images.take(slice(3, 4)).row_words(), words[3:4])


def test_every_number_and_its_place_matter() -> None:
    image = make_images(1, 5, 5)
    word = int(Images(image.reshape(1, -1), ImageSchema((5, 5))).row_words()[0])
    found = {word}
    for j in range(25):
        changed = image.reshape(1, -1).copy()
        changed[0, j] = np.nextafter(changed[0, j], np.float32(2))
        found.add(int(Images(changed, ImageSchema((5, 5))).row_words()[0]))
    for j in range(24):
        swapped = image.reshape(1, -1).copy()
        swapped[0, [j, j + 1]] = swapped[0, [j + 1, j]]
        found.add(int(Images(swapped, ImageSchema((5, 5))).row_words()[0]))
    assert len(found) == 1 + 25 + 24
    pixels = make_images(1, 4, 4).reshape(1, -1)
    turned = [Images(np.roll(pixels, k, axis=1), ImageSchema((4, 4))).row_words()[0] for k in range(16)]
    assert len(set(turned)) == 16


def test_both_zeros_are_one_number() -> None:
    zero = np.zeros((1, 3, 4, 4), dtype=np.float32)
    np.testing.assert_array_equal(read_images(zero).row_words(), read_images(-zero).row_words())


def test_words_of_many_images_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "NUMBERS_AT_A_TIME", 7 * 6)
    images = read_images(make_images(7 + 3, 2, 3))
    words = images.row_words()
    assert len(set(words.tolist())) == len(images)
    for i in (0, 7 - 1, 7, 7 + 2):
        assert images.take(slice(i, i + 1)).row_words()[0] == words[i]
