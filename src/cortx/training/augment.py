"""New images from given ones: mirrored and moved. Their labels and outputs are asked for them, not carried over."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.games.absent import channels_first
from cortx.images import ImageSchema


def augmented(matrix: Tensor, schema: ImageSchema, *, flip: bool, shift: int, generator: torch.Generator) -> Tensor:
    """Flat images, (images, numbers), mirrored by chance and moved by up to `shift` pixels, their border continued."""
    if not flip and not shift:
        return matrix
    device = matrix.device
    images = channels_first(matrix, schema)
    n, n_channels, height, width = images.shape
    if flip:
        mirrored = torch.rand((n, 1, 1, 1), generator=generator, device=device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if shift:
        padded = F.pad(images, (shift,) * 4, mode="replicate")
        down, right = torch.randint(2 * shift + 1, (2, n, 1), generator=generator, device=device)
        rows = (down + torch.arange(height, device=device))[:, None, :, None]
        columns = (right + torch.arange(width, device=device))[:, None, None, :]
        moved = padded.gather(2, rows.expand(-1, n_channels, -1, padded.shape[3]))
        images = moved.gather(3, columns.expand(-1, n_channels, height, -1))
    if schema.channels == "last" and not schema.grey:
        images = images.permute(0, 2, 3, 1)
    return images.reshape(matrix.shape)
