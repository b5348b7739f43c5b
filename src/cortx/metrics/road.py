"""ROAD's noisy linear imputation (Rong et al. 2022): removed pixels become what their neighbours suggest.

So a model is not asked about black holes, and the shape of the mask says less than the pixels that are left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.images import Images, ImageSchema
from cortx.metrics.inclusion import ImageFill, checked_images
from cortx.seeding import row_uniforms, stream_seed

STEPS_BETWEEN_LOOKS = 8
NOISE_IMAGES = 256


def road_fill(
    images: Tensor,
    pixel_player: npt.ArrayLike | Tensor,
    *,
    noise: float = 0.01,
    seed: int = 0,
    empty: npt.ArrayLike | Tensor | None = None,
    tolerance: float = 1e-5,
) -> ImageFill:
    """Removed pixels become the weighted mean of their eight neighbours, all at once, plus Gaussian noise.

    `images` (images, channels, height, width) or (images, height, width); `pixel_player` (height, width); `noise` is
    a standard deviation in the unit of the pixels. An image with no pixel left takes the colour `empty`, (channels,),
    by default the mean of all images, which says nothing about this one. Each image has one field of noise, which
    depends on the seed and on its content: the same for every mask, method and chunk.
    """
    images, players = checked_images(images, pixel_player)
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise must be a standard deviation, 0 or more, got {noise}")
    if not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, got {tolerance}")
    colour = images if images.ndim == 4 else images[:, None]
    if empty is None:
        nothing = colour.mean(dim=(0, 2, 3))
    else:
        nothing = torch.as_tensor(empty, dtype=images.dtype, device=images.device).reshape(-1)
        if len(nothing) != colour.shape[1]:
            raise InputError(f"empty must be one colour, ({colour.shape[1]},), got {len(nothing)} numbers")
    fields = noise * normal_fields(colour, seed) if noise else None

    def impute(batch: Tensor, present: Tensor, index: Tensor) -> Tensor:
        filled = linear_imputation(batch, present, nothing, tolerance=tolerance)
        return filled if fields is None else torch.where(present[:, None], filled, filled + fields[index])

    return ImageFill(images, players, impute)


def linear_imputation(
    images: Tensor, present: Tensor, empty: Tensor, *, tolerance: float = 1e-5, steps: int | None = None
) -> Tensor:
    """Solves for the removed pixels of every image: sum_j w_ij (x_i - x_j) = 0 over the neighbours j of i.

    `images` (m, channels, height, width), `present` (m, height, width) bool, `empty` (channels,) the colour of images
    with no pixel left. Weights: 1/6 to the side, 1/12 across the corner; at the border the missing ones just fall out.
    With w symmetric the rows are those of a graph's Laplacian, positive definite once a pixel is known, so conjugate
    gradients solve it. They stop when the residual is `tolerance` of what it was, or after `steps` with an error.
    """
    n, _, height, width = images.shape
    limit = steps or 50 * max(height, width)
    known = present[:, None].to(images.dtype)
    removed = 1 - known
    count = known.sum(dim=(2, 3), keepdim=True)
    mean = (images * known).sum(dim=(2, 3), keepdim=True) / count.clamp_min(1)
    level = torch.where(count > 0, mean, empty.view(1, -1, 1, 1))
    # Around the mean of its known pixels an image is small, so that float32 is enough.
    centred = (images - level) * known
    degree = _spread(torch.ones(height, width, dtype=images.dtype, device=images.device))

    result = torch.zeros_like(images)  # what the removed pixels add to `level`
    alive = torch.arange(n, device=images.device)
    solution = torch.zeros_like(images)
    residual = removed * _spread(centred)
    direction = residual.clone()
    power = _dot(residual, residual)
    rounding = torch.finfo(images.dtype).eps * images.abs().amax(dim=(1, 2, 3), keepdim=True)
    goal = torch.maximum(tolerance**2 * power, height * width * rounding.square())
    tiny = torch.finfo(images.dtype).tiny
    for step in range(limit + 1):
        if step % STEPS_BETWEEN_LOOKS == 0 or step == limit:
            going = (power > goal).any(dim=1).flatten()
            if not bool(going.all()):  # images that are done leave, and cost nothing from here on
                result[alive[~going]] = solution[~going]
                alive, removed, goal = alive[going], removed[going], goal[going]
                solution, residual, direction, power = (part[going] for part in (solution, residual, direction, power))
            if len(alive) == 0:
                break
        pushed = removed * (degree * direction - _spread(direction))
        # An image that is done before the next look may come to 0 / 0, which means: stay.
        length = power / _dot(direction, pushed).clamp_min(tiny)
        solution.addcmul_(length, direction)
        residual.addcmul_(length, pushed, value=-1)
        before, power = power, _dot(residual, residual)
        direction.mul_(power / before.clamp_min(tiny)).add_(residual)
    else:
        raise InputError(f"{len(alive)} of {n} images could not be imputed in {limit} steps; give a larger tolerance")
    return torch.where(present[:, None], images, level + result)


def normal_fields(images: Tensor, seed: int) -> Tensor:
    """Standard normal numbers shaped as the images, for each image from its own stream."""
    flat = images.reshape(len(images), -1)
    stream = stream_seed(seed, "road")
    fields = torch.empty_like(flat)
    for start in range(0, len(flat), NOISE_IMAGES):
        matrix = flat[start : start + NOISE_IMAGES].float().cpu().numpy()
        words = Images(matrix, ImageSchema(tuple(images.shape[1:]))).row_words()
        uniforms = torch.from_numpy(row_uniforms(words, stream, 0, flat.shape[1]))
        normal = torch.special.ndtri(uniforms.clamp_min_(np.finfo(np.float64).tiny))  # never minus infinity
        fields[start : start + NOISE_IMAGES] = normal.to(fields)
    return fields.view(images.shape)


def _spread(field: Tensor) -> Tensor:
    """Each pixel's neighbours and four times itself, (..., height, width): 1 2 1 along one axis, then the other.

    That is 12 x the weights of the neighbours; the four times itself cancels in degree * x - spread(x).
    """
    for axis in (-1, -2):
        length = field.shape[axis] - 1
        total = 2 * field
        total.narrow(axis, 1, length).add_(field.narrow(axis, 0, length))
        total.narrow(axis, 0, length).add_(field.narrow(axis, 1, length))
        field = total
    return field


def _dot(first: Tensor, second: Tensor) -> Tensor:
    """(m, channels, height, width) twice -> (m, channels, 1, 1)."""
    return (first * second).sum(dim=(2, 3), keepdim=True)
