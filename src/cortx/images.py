"""The caller's images as one numeric matrix, and back before the model sees them: what `tables` is for tables.

Images come as arrays or tensors: colour (images, channels, height, width), or with channels last, or grey
(images, height, width). Whole numbers 0..255 (uint8) are divided by 255; floats must lie within `pixels`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.seeding import mix
from cortx.tables import Column, Schema, Table, plain, read_table

Pixels = npt.NDArray[np.float32]
Channels = Literal["first", "last"]
NUMBERS_AT_A_TIME = 2**24
"""Numbers of images that are hashed at a time: 5,000 images of CIFAR-10, 111 of 224 x 224 pixels in colour."""
FEW_CHANNELS = (1, 3, 4)
STATISTICS_NUMBERS = 2**16
"""Numbers of images whose statistics are made at a time."""


@dataclass(frozen=True)
class ImageSchema:
    """The axes of one image, as the caller has them, and the range of its numbers."""

    shape: tuple[int, ...]
    """(channels, height, width), (height, width, channels), or (height, width) for grey images."""
    channels: Channels = "first"
    pixels: tuple[float, float] = (0.0, 1.0)

    @property
    def grey(self) -> bool:
        return len(self.shape) == 2

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        height, width = self.shape if self.grey else self.shape[1:] if self.channels == "first" else self.shape[:2]
        return height, width

    @property
    def n_channels(self) -> int:
        return 1 if self.grey else self.shape[0 if self.channels == "first" else 2]

    @property
    def n_numbers(self) -> int:
        return math.prod(self.shape)  # in Python's numbers, which do not wrap

    @property
    def names(self) -> tuple[str, ...]:
        """One name for each number of an image."""
        return tuple(f"number {j}" for j in range(self.n_numbers))

    def of_pixels(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What belongs to pixels, (height, width), for each number of an image, (numbers,)."""
        if self.grey:
            return pixels.ravel()
        axis = 0 if self.channels == "first" else 2
        return np.repeat(np.expand_dims(pixels, axis), self.n_channels, axis=axis).ravel()

    def to_pixels(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The opposite of `of_pixels`."""
        shaped = numbers.reshape(self.shape)
        return shaped if self.grey else shaped[0] if self.channels == "first" else shaped[..., 0]

    def to_json(self) -> dict[str, Any]:
        return {"image": list(self.shape), "channels": self.channels, "pixels": list(self.pixels)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ImageSchema:
        low, high = data["pixels"]
        return ImageSchema(tuple(int(n) for n in data["image"]), data["channels"], (float(low), float(high)))


@dataclass(frozen=True, eq=False)
class Images:
    """Images as a float32 matrix, (images, numbers), in the order of the caller's axes."""

    matrix: Pixels
    schema: ImageSchema

    def __len__(self) -> int:
        return int(self.matrix.shape[0])

    def take(self, index: npt.NDArray[np.int64] | slice) -> Images:
        return Images(self.matrix[index], self.schema)

    def row_words(self) -> npt.NDArray[np.uint64]:
        """A 64-bit word for each image that depends on its content alone."""
        width = self.matrix.shape[1]
        place = mix(np.arange(-(-width // 2), dtype=np.uint64))
        words = np.empty(len(self), dtype=np.uint64)
        size = max(1, NUMBERS_AT_A_TIME // width)
        for start in range(0, len(self), size):
            part = self.matrix[start : start + size] + np.float32(0)  # -0.0 and 0.0 are one value
            padded = np.zeros((len(part), 2 * len(place)), dtype=np.float32)
            padded[:, :width] = part
            with np.errstate(over="ignore"):
                words[start : start + size] = mix(padded.view(np.uint64) ^ place).sum(axis=1, dtype=np.uint64)
        return words


def read_images(
    data: Any,
    *,
    schema: ImageSchema | None = None,
    channels: Channels = "first",
    pixels: tuple[float, float] = (0.0, 1.0),
    what: str = "the images",
) -> Images:
    """Reads and checks images; with a schema they must have its shape."""
    array = plain(data)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif":
        kind = type(data).__name__ if not isinstance(array, np.ndarray) else f"an array of {array.dtype}"
        raise InputError(f"{what} must be an array or a tensor of numbers, got {kind}")
    expected = schema or _schema_of(array, channels, pixels, what)
    if array.shape[1:] != expected.shape:
        raise InputError(_wrong_shape(array.shape, expected, what))
    if array.size == 0:
        none = "there is no image; give at least one" if len(array) == 0 else "they have no pixels"
        raise InputError(f"{what}: {none} (shape {array.shape})")
    low, high = expected.pixels
    if array.dtype == np.uint8:
        matrix = array.reshape(len(array), -1).astype(np.float32)
        matrix *= np.float32((high - low) / 255)
        matrix += np.float32(low)
        return Images(matrix, expected)
    matrix = np.ascontiguousarray(array.reshape(len(array), -1), dtype=np.float32)
    smallest, largest = float(matrix.min()), float(matrix.max())
    if not np.isfinite(smallest) or not np.isfinite(largest):
        bad = int(np.flatnonzero(~np.isfinite(matrix).all(axis=1))[0])
        raise InputError(f"{what} hold NaN or infinity (first in image {bad}); every pixel needs a number")
    slack = 1e-4 * (high - low)
    if smallest < low - slack or largest > high + slack:
        raise InputError(
            f"{what} have values from {smallest:.4g} to {largest:.4g}, outside {low:g}..{high:g}; "
            + _range_advice(smallest, largest, expected.pixels)
        )
    return Images(matrix, expected)


def _schema_of(array: npt.NDArray[Any], channels: Channels, pixels: tuple[float, float], what: str) -> ImageSchema:
    """The schema that the first images set."""
    shape, pixels = array.shape, (float(pixels[0]), float(pixels[1]))
    if array.ndim == 3:
        if (shape[0] in (1, 3) and shape[1] == shape[2]) or (shape[2] in (1, 3) and shape[0] == shape[1]):
            raise InputError(
                f"{what} have shape {shape}, which looks like one colour image; give a batch, images[None] "
                "(grey images of this shape need a channel axis)"
            )
        return ImageSchema(shape[1:], channels, pixels)
    if array.ndim != 4:
        raise InputError(
            f"{what} have shape {shape}; expected (images, channels, height, width), with channels='last' "
            "(images, height, width, channels), or (images, height, width) for grey images"
        )
    first, middle, last = shape[1:]
    here, there = (first, last) if channels == "first" else (last, first)
    likely = here in FEW_CHANNELS and (here, there) != (4, 3)  # or a square of many channels, as feature maps are
    if there in FEW_CHANNELS and not likely and middle != there:
        other = "last" if channels == "first" else "first"
        raise InputError(
            f"{what} have shape {shape}, that is {here} channels with channels={channels!r}; they look like channels "
            f"{other}: say channels={other!r} in Patches or Segments, or move the axis"
        )
    return ImageSchema(shape[1:], channels, pixels)


def _range_advice(smallest: float, largest: float, pixels: tuple[float, float]) -> str:
    if smallest >= 0 and largest > 2 and pixels == (0.0, 1.0):
        return "divide by 255, or give them as uint8"
    return "put the standardization inside the model (a Sequential), or say pixels=(lowest, highest)"


def _wrong_shape(shape: tuple[int, ...], expected: ImageSchema, what: str) -> str:
    want = ", ".join(map(str, expected.shape))
    if shape == expected.shape:
        return f"{what} have shape {shape}, one image; give a batch, images[None]"
    advice = f"expected (images, {want})"
    if len(shape) == 4 and not expected.grey and sorted(shape[1:]) == sorted(expected.shape):
        advice += f"; the channels must come {expected.channels}"
    elif len(shape) == 3 and not expected.grey:
        advice += "; a grey image becomes one with channels by repeating it"
    return f"{what} have shape {shape}; {advice}"


def read_like(data: Any, schema: Schema | ImageSchema, what: str) -> Table | Images:
    """Rows of the kind that a schema describes: a table, or images."""
    if isinstance(schema, ImageSchema):
        return read_images(data, schema=schema, what=what.replace("table", "images"))
    return read_table(data, schema=schema, what=what)


def statistics(images: Images) -> Table:
    """What can drift in images, as a table: brightness and contrast, and the mean of each of a few channels."""
    schema = images.schema
    # In float32, whose sums NumPy adds up in pairs: in float64 they took longer than an explanation. A part at a time
    # stays in the cache.
    size = max(1, STATISTICS_NUMBERS // schema.n_numbers)
    parts = [_moments(images.matrix[start : start + size]) for start in range(0, len(images), size)]
    brightness, contrast = np.concatenate(parts, axis=1)
    columns = {"brightness": brightness, "contrast": contrast}
    if not schema.grey and 1 < schema.n_channels <= 16:
        axes = (2, 3) if schema.channels == "first" else (1, 2)
        means = images.matrix.reshape(len(images), *schema.shape).mean(axis=axes)
        columns |= {f"channel {k}": means[:, k] for k in range(schema.n_channels)}
    names = tuple(Column(name, False, np.dtype(np.float64)) for name in columns)
    return Table(np.stack(list(columns.values()), axis=1, dtype=np.float64), Schema(names, "numpy"))


def _moments(matrix: Pixels) -> Pixels:
    """The mean and the standard deviation of each row, (2, rows)."""
    mean = matrix.mean(axis=1)
    return np.stack([mean, np.sqrt(np.square(matrix - mean[:, None]).mean(axis=1))])


def described(table: Table | Images) -> Table:
    """What a profile is made of: the table itself, or statistics of images."""
    return statistics(table) if isinstance(table, Images) else table
