"""XRAI (Kapishnikov et al. 2019): regions of the image, ranked by how densely they hold integrated gradients."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError, need
from cortx.explanation import Explanation
from cortx.games import Game
from cortx.games.absent import channels_first
from cortx.images import Channels, read_images
from cortx.rivals.gradients import ImageRival, Pictures, integrated, whole

Maps = npt.NDArray[np.uint16]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

AUTHORS_SIDE = 224
"""The authors enlarge images to this size; theirs are the numbers below. Lengths and areas are taken in proportion."""
SCALES = (50.0, 100.0, 150.0, 250.0, 500.0, 1200.0)
SIGMA = 0.8
"""Pixels of blur before the segmentation."""
LEAST_REGION = 150
"""Pixels of a region."""
LEAST_GAIN = 50
"""Pixels that a region must add."""
DILATION = 5
"""Pixels by which a region grows over its border."""


class XRAI(ImageRival):
    """Regions of six segmentations, added one by one by the highest mean attribution of the pixels they add.

    The attributions are integrated gradients of the logit from a black and from a white image, averaged, and of the
    channels the largest; the reference of the game plays no part. A pixel's value is the mean attribution of what its
    region added; pixels that no region adds share the mean of theirs. A player gets the mean over its pixels.

    `segments` are what `segment_images` gave for the images that will be explained, for machines without scikit-image;
    by default they are made. `attributions`, (n, height, width), may be given to `explain` in place of the integrated
    gradients, which cost 2 x `steps` evaluations for each image.
    """

    name: ClassVar[str] = "xrai"
    library: ClassVar[str | None] = None
    per_player: ClassVar[Literal["sum", "mean"]] = "mean"

    def __init__(
        self, game: Game, segments: Any = None, *, steps: int = 50, batch: int | None = None, seed: int = 0
    ) -> None:
        super().__init__(game, batch=batch, seed=seed)
        self.segments = None if segments is None else np.asarray(segments)
        self.steps = whole(steps, "steps")
        if segments is None:
            _need_skimage()
        self._given: FloatArray | None = None

    def explain(self, X: Any, outputs: Any = None, *, classes: Any = None, attributions: Any = None) -> Explanation:
        self._given = None if attributions is None else np.asarray(attributions, dtype=np.float64)
        try:
            return super().explain(X, outputs, classes=classes)
        finally:
            self._given = None

    def maps(self, pictures: Pictures) -> Tensor:
        schema = pictures.schema
        shape = (len(pictures), *schema.size)
        segments = self.segments
        if segments is None:
            segments = segment_images(pictures.images, channels=schema.channels, pixels=schema.pixels)
        elif segments.ndim != 4 or (len(segments), *segments.shape[2:]) != shape:
            raise InputError(
                f"segments have shape {segments.shape}; expected those of the explained images, ({shape[0]}, scales, "
                f"{shape[1]}, {shape[2]}), from segment_images(images)"
            )
        attributions = self._attributions(pictures) if self._given is None else self._given
        if attributions.shape != shape:
            raise InputError(f"attributions have shape {attributions.shape}; expected one for each pixel, {shape}")
        ranked = [rank_regions(*pair) for pair in zip(attributions, segments, strict=True)]
        return torch.from_numpy(np.stack(ranked))

    def _attributions(self, pictures: Pictures) -> FloatArray:
        try:
            importlib.import_module("captum")
        except ImportError as error:
            raise need("captum", f"the rival {self.name!r} without attributions=", "peers") from error
        parts = []
        for part in pictures.parts(self.batch // self.steps):
            part.images.requires_grad_()
            ends = [torch.full_like(part.images, end).detach() for end in part.schema.pixels]
            total = sum(integrated(part, end, self.steps, self.batch) for end in ends)
            assert isinstance(total, Tensor)
            flat = total.detach().reshape(len(part), -1) / len(ends)
            parts.append(channels_first(flat, part.schema).amax(dim=1))
        return torch.cat(parts).double().cpu().numpy()


def segment_images(images: Any, *, channels: Channels = "first", pixels: tuple[float, float] = (0.0, 1.0)) -> Maps:
    """Felzenszwalb's segmentations of images at six scales: the region of each pixel, (n, 6, height, width) uint16.

    The authors enlarge images to 224 x 224 pixels first. Here they keep their size, for speed, with the authors' scales
    and with blur and least region in proportion, which gives about as many regions.
    """
    _need_skimage()
    from skimage.segmentation import felzenszwalb

    images = images.detach().cpu() if isinstance(images, Tensor) else images
    read = read_images(images, channels=channels, pixels=pixels)
    low, high = (end(read.matrix, axis=1, keepdims=True) for end in (np.min, np.max))
    stretched = 2 * (read.matrix - low) / np.maximum(high - low, 1e-12) - 1  # each image to -1..1, as the authors do
    pictures = channels_first(torch.from_numpy(stretched), read.schema).permute(0, 2, 3, 1).double().numpy()
    ratio = _ratio(read.schema.size)
    result = np.empty((len(read), len(SCALES), *read.schema.size), dtype=np.uint16)
    for i, picture in enumerate(pictures):
        for j, scale in enumerate(SCALES):
            result[i, j] = felzenszwalb(
                picture, scale=scale, sigma=SIGMA * ratio, min_size=max(1, round(LEAST_REGION * ratio**2))
            )
    return result


def rank_regions(attributions: FloatArray, segments: npt.NDArray[Any]) -> FloatArray:
    """The value of each pixel, (height, width), from attributions (height, width) and regions (scales, height, width).

    Greedy: of all regions that still add enough pixels, the one whose added pixels have the highest mean comes next.
    """
    size = attributions.shape
    least = max(1, round(LEAST_GAIN * _ratio(size) ** 2))
    regions = _regions(segments, round(DILATION * _ratio(size))).reshape(-1, attributions.size)
    flat = np.asarray(attributions, dtype=np.float64).ravel()
    # Pixels by rows: what a step covers is then a few whole rows, and each is subtracted once in all.
    by_pixel = np.ascontiguousarray(regions.T)
    counts = regions.sum(axis=1).astype(np.int64)
    sums = regions @ flat
    free = np.ones(flat.size, dtype=bool)
    values = np.empty(flat.size)
    while (counts >= least).any():
        density = np.where(counts >= least, sums / np.maximum(counts, 1), -np.inf)
        best = int(density.argmax())
        added = np.flatnonzero(regions[best] & free)
        values[added] = density[best]
        free[added] = False
        rows = by_pixel[added]
        counts -= rows.sum(axis=0)
        sums -= flat[added] @ rows
    if free.any():
        values[free] = flat[free].mean()
    return values.reshape(size)


def _regions(segments: npt.NDArray[Any], radius: int) -> BoolArray:
    """The regions of all scales, each grown by `radius` pixels, (regions, height, width); no region twice."""
    masks = np.concatenate([scale == np.unique(scale)[:, None, None] for scale in segments])
    grown = masks.copy()
    for _ in range(radius):
        step = grown.copy()
        step[:, 1:] |= grown[:, :-1]
        step[:, :-1] |= grown[:, 1:]
        step[:, :, 1:] |= grown[:, :, :-1]
        step[:, :, :-1] |= grown[:, :, 1:]
        grown = step
    packed = np.packbits(grown.reshape(len(grown), -1), axis=1)
    first = np.unique(packed, axis=0, return_index=True)[1]
    kept: BoolArray = grown[np.sort(first)]
    return kept


def _ratio(size: tuple[int, ...]) -> float:
    return max(size) / AUTHORS_SIDE


def _need_skimage() -> None:
    try:
        importlib.import_module("skimage.segmentation")
    except ImportError as error:
        raise need("scikit-image", "the rival 'xrai' without segments=", "peers") from error
