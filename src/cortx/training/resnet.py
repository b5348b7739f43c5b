"""ResNet-18 (He et al. 2016) in the form used on small images: a 3x3 stem, no pooling before the stages.

The stem has a stride for larger ones, which are then as cheap as small ones.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cortx.training.encoders import claim

PIXEL_SCALE = 4.0
"""Pixels 0..1 are multiplied by this, and not centred: an absent patch of zeros stays zero."""
STAGES = 4
FINEST_SIDE = 64
"""Places along the longer side of the finest stage, at most."""


def conv(
    inputs: int, outputs: int, size: int, generator: torch.Generator, stride: int = 1, *, bias: bool = False
) -> nn.Conv2d:
    """A convolution that keeps the size (but for its stride), with Kaiming-normal weights from a given generator."""
    claim(inputs * outputs * size * size)
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0.0, sqrt(2 / (outputs * size * size)), generator=generator)
        if layer.bias is not None:
            layer.bias.zero_()
    return layer


def settle(module: nn.Module, device: torch.device | str) -> None:
    """Moves a convolutional network to a device, on a GPU in the memory order that it computes fastest in."""
    module.to(device)
    if torch.device(device).type == "cuda":
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def inference_copy(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A faster copy: normalizations are folded into the convolutions before them, and weights have another dtype."""
    made = copy.deepcopy(module).eval().requires_grad_(False)
    for part in [one for one in made.modules() if isinstance(one, nn.Sequential)]:
        for place in range(len(part) - 1):
            layer, norm = part[place], part[place + 1]
            if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                part[place], part[place + 1] = fuse_conv_bn_eval(layer, norm), nn.Identity()
    for layer in made.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.to(dtype)
    return made


def stem_stride(size: tuple[int, int]) -> int:
    """The stride of the stem for images of (height, width): 1 up to 64 pixels a side, 4 for 224."""
    return max(1, -(-max(size) // FINEST_SIDE))


class Block(nn.Module):
    """Two 3x3 convolutions beside a short cut. Every ReLU is a module of its own, as attribution methods need it."""

    def __init__(self, inputs: int, outputs: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Sequential(conv(inputs, outputs, 3, generator, stride), nn.BatchNorm2d(outputs), nn.ReLU())
        self.second = nn.Sequential(conv(outputs, outputs, 3, generator), nn.BatchNorm2d(outputs))
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(conv(inputs, outputs, 1, generator, stride), nn.BatchNorm2d(outputs))
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.second(self.first(x)) + self.short(x))
        return result


class ResNet18(nn.Module):
    """Images (n, channels, height, width) in 0..1, or grey ones (n, height, width), to logits (n, outputs).

    Stages have `width`, 2, 4 and 8 times `width` channels at 1, 1/2, 1/4 and 1/8 of the size behind the stem, which
    divides it by `stride` (`stem_stride`). The stem's kernel grows with the stride: no pixel is passed over.
    """

    def __init__(
        self, n_channels: int = 3, n_outputs: int = 10, width: int = 64, stride: int = 1, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.settings = {"n_channels": n_channels, "n_outputs": n_outputs, "width": width, "stride": stride}
        first = conv(n_channels, width, max(3, 2 * stride - 1), generator, stride)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU())
        self.widths = tuple(width * 2**stage for stage in range(STAGES))
        inputs = width
        stages: OrderedDict[str, nn.Module] = OrderedDict()
        for stage, outputs in enumerate(self.widths):
            stages[f"layer{stage + 1}"] = nn.Sequential(
                Block(inputs, outputs, 1 if stage == 0 else 2, generator), Block(outputs, outputs, 1, generator)
            )
            inputs = outputs
        for name, stage_module in stages.items():
            self.add_module(name, stage_module)
        self.head = nn.Linear(inputs, n_outputs, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            self.head.weight.normal_(0.0, 0.01, generator=generator)
            self.head.bias.zero_()

    def stages(self, images: Tensor) -> list[Tensor]:
        """The feature maps behind each stage, from the finest to the coarsest."""
        if images.ndim == 3:
            images = images[:, None]
        x = self.stem(images * PIXEL_SCALE)
        maps = []
        for stage in range(STAGES):
            x = self.get_submodule(f"layer{stage + 1}")(x)
            maps.append(x)
        return maps

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.head(self.stages(images)[-1].mean(dim=(2, 3)))
        return result
