"""The attribution head for images: feature maps of several scales, decoded to one value for every part of the image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.games.players import ImagePlayers
from cortx.training.attention import GridAttention
from cortx.training.encoders import HeadConfig, linear
from cortx.training.heads.attribution import AttributionHead
from cortx.training.resnet import Block, conv


class DecoderHead(AttributionHead):
    """Maps behind the stages of a `ResNet18` to values, (images, players, outputs).

    Every stage is brought to `width` channels and to the grid of patches, the sum goes through `depth` residual
    blocks and `attention` blocks in which all places see each other, and each place of the grid speaks for its patch.
    Segments are read off a grid of half the image's size.
    The last hidden layer is a map, (images, width, rows, columns); `pooled` is what `Difficulty` looks at.
    """

    part_of: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        players: ImagePlayers,
        n_outputs: int,
        config: HeadConfig,
        generator: torch.Generator,
    ) -> None:
        nn.Module.__init__(self)
        self.n_players, self.n_outputs, self.config = len(players), n_outputs, config
        height, width = players.pixel_player.shape
        self.grid = players.grid or (-(-height // 2), -(-width // 2))
        part_of = torch.zeros(0, dtype=torch.int64)
        if players.grid is None:
            part_of = torch.from_numpy(players.pixel_player).flatten()
        self.register_buffer("part_of", part_of)
        self.taps = nn.ModuleList(conv(width, config.width, 1, generator, bias=True) for width in widths)
        self.of_total = linear(n_outputs, config.width, generator) if config.sees_total else None
        self.start = nn.Sequential(nn.BatchNorm2d(config.width), nn.ReLU())
        self.blocks = nn.Sequential(*(Block(config.width, config.width, 1, generator) for _ in range(config.depth)))
        self.attention: nn.Module = nn.Identity()
        if config.attention:
            self.attention = GridAttention(config.width, config.attention, self.grid, generator)
        self.last = conv(config.width, n_outputs, 1, generator, bias=True)
        with torch.no_grad():
            self.last.weight.mul_(0.1)
        self.image_size = (height, width)
        self.register_buffer("total_scale", torch.ones(n_outputs))
        self.register_buffer("label_scale", torch.ones(n_outputs))

    @property
    def n_hidden(self) -> int:
        return self.config.width

    def decode(self, maps: Sequence[Tensor], total: Tensor) -> Tensor:
        """The last hidden map, (images, width, rows, columns)."""
        x: Tensor | None = None
        for tap, one in zip(self.taps, maps, strict=True):
            if one.shape[2] > self.grid[0]:
                one = F.adaptive_avg_pool2d(one, self.grid)
            one = tap(one)
            if one.shape[2:] != self.grid:
                one = F.interpolate(one, self.grid, mode="bilinear", align_corners=False)
            x = one if x is None else x + one
        assert x is not None
        if self.of_total is not None:
            x = x + self.of_total(total / self.total_scale)[:, :, None, None]
        result: Tensor = self.attention(self.blocks(self.start(x)))
        return result

    def scores(self, hidden: Tensor) -> Tensor:
        maps = self.last(hidden).float()  # (images, outputs, rows, columns)
        if len(self.part_of) == 0:
            scores: Tensor = maps.flatten(2).transpose(1, 2) * self.label_scale
            return scores
        pixels = F.interpolate(maps, self.image_size, mode="bilinear", align_corners=False).flatten(2)
        sums = torch.zeros((*pixels.shape[:2], self.n_players), device=maps.device)
        sums.index_add_(2, self.part_of, pixels)
        scaled: Tensor = sums.transpose(1, 2) * self.label_scale
        return scaled

    @staticmethod
    def pooled(hidden: Tensor) -> Tensor:
        return hidden.float().mean(dim=(2, 3))
