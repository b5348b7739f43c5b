"""Self-attention between the places of a map: what a patch is worth depends on what all others show already."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.training.encoders import linear

HEAD_WIDTH = 32
"""Channels of an attention head."""
MOST_PLACES = 1_024
"""Attention takes memory with the square of the places: maps of more are attended to in larger ones."""


class AttentionBlock(nn.Module):
    """(images, places, width) to the same: what other places show is added, then what two layers make of it."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_heads = max(1, width // HEAD_WIDTH)
        while width % self.n_heads:
            self.n_heads -= 1
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = linear(width, 3 * width, generator)
        """Queries, keys and values."""
        self.join = linear(width, width, generator)
        self.wide, self.narrow = linear(width, 2 * width, generator), linear(2 * width, width, generator)
        self.activation = nn.SiLU()
        with torch.no_grad():  # at first each block adds little
            self.join.weight.mul_(0.1)
            self.narrow.weight.mul_(0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, places, width = x.shape
        parts = self.mix(self.before(x)).view(n, places, 3, self.n_heads, width // self.n_heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (images, heads, places, channels) each
        seen = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(n, places, width)
        x = x + self.join(seen)
        result: Tensor = x + self.narrow(self.activation(self.wide(self.between(x))))
        return result


class GridAttention(nn.Module):
    """Attention blocks on a map, (images, width, rows, columns)."""

    def __init__(self, width: int, depth: int, grid: tuple[int, int], generator: torch.Generator) -> None:
        super().__init__()
        self.grid = attended(grid)
        self.place = nn.Parameter(torch.zeros(1, self.grid[0] * self.grid[1], width))
        self.blocks = nn.Sequential(*(AttentionBlock(width, generator) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        same = x.shape[2:] == self.grid
        coarse = x if same else F.adaptive_avg_pool2d(x, self.grid)
        seen = self.blocks(coarse.flatten(2).transpose(1, 2) + self.place)
        seen = seen.transpose(1, 2).reshape(coarse.shape)
        if same:
            result: Tensor = seen
            return result
        added = F.interpolate(seen - coarse, x.shape[2:], mode="bilinear", align_corners=False)
        return x + added


def attended(grid: tuple[int, int]) -> tuple[int, int]:
    """The grid that attention sees: the same, or a coarser one where it has too many places."""
    rows, columns = grid
    while rows * columns > MOST_PLACES:
        rows, columns = (-(-rows // 2), columns) if rows >= columns else (rows, -(-columns // 2))
    return rows, columns
