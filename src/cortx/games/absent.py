"""What replaces an absent part of an image: one image for all, or something made from each image itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.errors import InputError
from cortx.images import ImageSchema, Pixels, read_images
from cortx.tables import plain

OWN = ("mean", "blur")
"""References that every image has of its own."""
REMOVED = "removed"
"""Nothing replaces an absent part: the model is told which parts are present, and leaves the others out by itself."""
BLUR_SHARE = 1 / 8
"""The deviation of the blur, as a share of the longer side."""


def fixed_image(reference: Any, schema: ImageSchema) -> Pixels:
    """The reference that all images share, (1, numbers): zero, one image, or the mean of several.

    Of removed parts it is NaN, which no pixel equals: every part of every image is then active.
    """
    if isinstance(reference, str) and reference == REMOVED:
        return np.full((1, schema.n_numbers), np.nan, dtype=np.float32)
    if isinstance(reference, str):
        return np.zeros((1, schema.n_numbers), dtype=np.float32)
    array = plain(reference)
    batch = array[None] if np.shape(array) == schema.shape else array
    images = read_images(batch, schema=schema, what="the pixels of the reference")
    mean: Pixels = images.matrix.mean(axis=0, keepdims=True, dtype=np.float64).astype(np.float32)
    return mean


def own_image(how: str, matrix: Tensor, schema: ImageSchema) -> Tensor:
    """The reference of each image, (images, numbers): its mean colour, or the image blurred."""
    images = channels_first(matrix, schema)
    if how == "mean":
        absent = images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    else:
        absent = _blurred(images, BLUR_SHARE * max(schema.size))
    return (absent if schema.channels == "first" or schema.grey else absent.permute(0, 2, 3, 1)).reshape(matrix.shape)


def channels_first(matrix: Tensor, schema: ImageSchema) -> Tensor:
    """Flat images, (images, numbers), as (images, channels, height, width)."""
    images = matrix.reshape(-1, *schema.shape)
    if schema.grey:
        return images[:, None]
    return images if schema.channels == "first" else images.permute(0, 3, 1, 2)


def _blurred(images: Tensor, deviation: float) -> Tensor:
    """A Gaussian blur, along one axis and then the other; the border is continued by its last pixel."""
    radius = max(1, round(2.5 * deviation))
    place = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    weights = torch.exp(-0.5 * (place / deviation).square())
    weights = weights / weights.sum()
    n, channels, height, width = images.shape
    flat = F.pad(images.reshape(n * channels, 1, height, width), (radius, radius, radius, radius), mode="replicate")
    flat = F.conv2d(F.conv2d(flat, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    return flat.view(n, channels, height, width)


def check_image_reference(reference: Any, background: Any) -> None:
    if background is not None:
        raise InputError(
            "an image game has a reference, not a background; give reference='zero', 'mean', 'blur', 'removed' or an "
            "image"
        )
    if reference is None or (isinstance(reference, str) and reference not in ("zero", *OWN, REMOVED)):
        raise InputError(
            f"the reference of an image game is 'zero', 'mean', 'blur', 'removed' or an image, got {reference!r}"
        )
