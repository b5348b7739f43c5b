"""RISE (Petsiuk et al. 2018): how probable the class stays behind random masks."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.games import Game
from cortx.games.models import TorchModel, probability_from_logits
from cortx.rivals.gradients import ImageRival, Pictures, whole
from cortx.seeding import torch_generator


class RISE(ImageRival):
    """The mean of random masks M, weighted by the probability of the class behind them.

    S = sum_i f(x_{M_i}) M_i / (N p), where x_M = M x + (1 - M) x_r mixes the image and the game's reference. A mask
    is a `grid` of cells (8 x 8, as in the authors' code; one number, or rows and columns), each kept with probability
    `keep` (p), stretched bilinearly to an image that is larger by a cell, from which a window is cut at random. The
    `masks` (N) are drawn once and shared by all images. A player gets the mean over its pixels. `masks` evaluations
    for each image, forward only and in the game's precision.
    """

    name: ClassVar[str] = "rise"
    default_batch: ClassVar[tuple[int, int]] = (256, 8_192)
    per_player: ClassVar[Literal["sum", "mean"]] = "mean"

    def __init__(
        self,
        game: Game,
        *,
        masks: int = 2_048,
        grid: int | tuple[int, int] = 8,
        keep: float = 0.5,
        batch: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(game, batch=batch, seed=seed)
        if not 0 < keep < 1:
            raise InputError(f"keep must be a probability between 0 and 1, got {keep!r}")
        both: tuple[Any, ...] = grid if isinstance(grid, tuple) else (grid, grid)
        if len(both) != 2:
            raise InputError(f"grid must be a number of cells, or (rows, columns), got {grid!r}")
        self.masks, self.keep = whole(masks, "masks"), float(keep)
        self.grid = whole(both[0], "grid"), whole(both[1], "grid")

    def maps(self, pictures: Pictures) -> Tensor:
        size = pictures.schema.size
        masks = draw_masks(self.masks, size, self.grid, self.keep, self.seed).to(self.game.device)
        images, absent = (self._channels_last(part, pictures) for part in (pictures.images, pictures.absent))
        saliency = masks.new_zeros(len(pictures), size[0] * size[1])
        n_masks = min(self.batch, len(masks))
        for some in torch.split(masks, n_masks):
            for start in range(0, len(pictures), self.batch // n_masks):
                part = slice(start, start + self.batch // n_masks)
                weights = some[None, ..., None].to(images.dtype)  # (1, masks, height, width, 1)
                mixed = torch.lerp(
                    absent[part, None], images[part, None], weights
                )  # (n, masks, height, width, channels)
                chances = self._chances(mixed.flatten(0, 1), pictures).view(len(mixed), len(some), -1)
                place = pictures.classes[part, None, None].expand(-1, len(some), 1)
                saliency[part] += chances.gather(2, place)[..., 0] @ some.flatten(1)
        return (saliency / (self.masks * self.keep)).view(-1, *size)

    def _chances(self, images: Tensor, pictures: Pictures) -> Tensor:
        """The probability of each output of the game, (n, outputs); images come with channels last."""
        schema, model = pictures.schema, self.game.model
        assert isinstance(model, TorchModel)
        if schema.grey:
            images = images[..., 0]
        elif schema.channels == "first":
            images = images.permute(0, 3, 1, 2)
        self.game.count(len(images))
        outputs = model.tensors(images.contiguous(), len(images))
        if model.output == "raw":
            outputs = probability_from_logits(outputs)
        elif model.output == "log-odds":
            outputs = torch.sigmoid(outputs)
        return pictures.net.columns(outputs).float()

    @staticmethod
    def _channels_last(images: Tensor, pictures: Pictures) -> Tensor:
        if pictures.schema.grey:
            return images[..., None]
        return images.permute(0, 2, 3, 1) if pictures.schema.channels == "first" else images


def draw_masks(n: int, size: tuple[int, int], grid: tuple[int, int], keep: float, seed: int) -> Tensor:
    """Random smooth masks in 0..1, (n, height, width) float32, always drawn on the CPU: the same on every device."""
    generator = torch_generator(seed, "rise")
    cells = (torch.rand(n, 1, *grid, generator=generator) < keep).float()
    tall, wide = (-(-side // count) for side, count in zip(size, grid, strict=True))
    large = torch.nn.functional.interpolate(
        cells, ((grid[0] + 1) * tall, (grid[1] + 1) * wide), mode="bilinear", align_corners=False
    )
    down = torch.randint(0, tall, (n, 1), generator=generator) + torch.arange(size[0])  # (n, height)
    right = torch.randint(0, wide, (n, 1), generator=generator) + torch.arange(size[1])
    large = large.clamp_(0, 1)  # rounding
    return large[torch.arange(n)[:, None, None], 0, down[:, :, None], right[:, None, :]]
