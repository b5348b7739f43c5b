"""New images from given ones: mirrored and moved. Their labels and outputs are asked for them, not carried over."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.games.absent import channels_first
from cortx.images import ImageSchema


def augmented(
    matrix: Tensor,
    schema: ImageSchema,
    *,
    flip: bool,
    shift: int,
    generator: torch.Generator,
    fill: float | None = None,
) -> Tensor:
    """`moved` for flat images, (images, numbers)."""
    if not flip and not shift:
        return matrix
    images = moved(channels_first(matrix, schema), flip=flip, shift=shift, generator=generator, fill=fill)
    if schema.channels == "last" and not schema.grey:
        images = images.permute(0, 2, 3, 1)
    return images.reshape(matrix.shape)


def moved(images: Tensor, *, flip: bool, shift: int, generator: torch.Generator, fill: float | None = None) -> Tensor:
    """Images (n, channels, height, width), mirrored by chance and moved by up to `shift` pixels.

    What comes in at the border is `fill`, or without one the last pixel continued.
    """
    device = images.device
    n, n_channels, height, width = images.shape
    if flip:
        mirrored = torch.rand((n, 1, 1, 1), generator=generator, device=device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if not shift:
        return images
    sides = (shift,) * 4
    padded = F.pad(images, sides, mode="replicate") if fill is None else F.pad(images, sides, value=fill)
    down, right = torch.randint(2 * shift + 1, (2, n, 1), generator=generator, device=device)
    rows = (down + torch.arange(height, device=device))[:, None, :, None]
    columns = (right + torch.arange(width, device=device))[:, None, None, :]
    padded = padded.gather(2, rows.expand(-1, n_channels, -1, padded.shape[3]))
    return padded.gather(3, columns.expand(-1, n_channels, height, -1))
