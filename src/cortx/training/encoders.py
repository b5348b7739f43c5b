"""Explanation encoders: settings, and the networks for tables. Weights are drawn from the given generator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.errors import InputError

Kind = Literal["mlp", "residual", "sharp", "resnet18", "decoder"]
KINDS = {"encoder": ("mlp", "residual", "resnet18"), "head": ("mlp", "residual", "decoder")}


@dataclass(frozen=True)
class EncoderConfig:
    """The network between a row's inputs and its latent explanation."""

    kind: Kind = "residual"
    width: int = 256
    depth: int = 3
    """Layers of an "mlp", blocks of a "residual" network."""
    latent: int = 256
    """"resnet18" (for images) has 8 times its width instead, and no depth to choose."""
    stride: int | None = None
    """Of the first layer of a "resnet18"; by default 1 for images of up to 64 pixels a side, 4 for 224."""

    def __post_init__(self) -> None:
        _check("encoder", self.kind, self.width, self.depth, self.latent)
        if self.stride is not None and (self.kind != "resnet18" or not isinstance(self.stride, int) or self.stride < 1):
            raise InputError(
                f"stride is a positive whole number for an encoder of kind 'resnet18', got {self.stride!r} for one of "
                f"kind {self.kind!r}"
            )


@dataclass(frozen=True)
class HeadConfig:
    """The network between a latent explanation and a head's answer."""

    kind: Kind = "residual"
    width: int = 256
    depth: int = 2
    sees_total: bool = True
    """Whether f(x) - f(reference) is an input beside the latent explanation."""
    missing_is_zero: bool = True
    """Players that equal their reference get exactly zero, and the efficiency gap goes to the others."""
    normalize_in_loss: bool = True
    """Whether the loss sees attributions that already add up; the paper normalizes only afterwards."""
    attention: int = 0
    """Blocks of a "decoder" in which all parts of the image see each other; they come after its residual blocks."""

    def __post_init__(self) -> None:
        _check("head", self.kind, self.width, self.depth)
        whole = isinstance(self.attention, int) and self.attention >= 0
        if not whole or (self.attention and self.kind != "decoder"):
            raise InputError(
                f"attention is the number of attention blocks of a head of kind 'decoder', got {self.attention} for a "
                f"head of kind {self.kind!r}"
            )


def _check(part: str, kind: str, *sizes: int) -> None:
    if kind not in KINDS[part]:
        raise InputError(f"the {part} must be one of {', '.join(map(repr, KINDS[part]))}, got {kind!r}")
    if min(sizes) < 1:
        raise InputError(f"widths and depths must be positive, got {sizes}")


@dataclass
class _Allowance:
    weights: int
    layers: int


_ALLOWANCE: ContextVar[_Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def at_most(weights: int, layers: int) -> Iterator[None]:
    """Networks that are built inside may have so many weights and layers together; more raise `ValueError`.

    For settings that come from a file: a size that its weights do not back is refused before memory is taken.
    """
    token = _ALLOWANCE.set(_Allowance(weights, layers))
    try:
        yield
    finally:
        _ALLOWANCE.reset(token)


def claim(weights: int) -> None:
    """Called before a layer of so many weights is made."""
    left = _ALLOWANCE.get()
    if left is None:
        return
    left.weights -= weights
    left.layers -= 1
    if left.weights < 0 or left.layers < 0:
        raise ValueError("the settings describe a larger network than the saved weights")


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with PyTorch's usual uniform weights, from a given generator."""
    claim(inputs * outputs)
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")  # no draw from the global generator
    bound = 1 / sqrt(inputs)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def mlp(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ELU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [linear(inputs, outputs, generator), nn.ELU()]
    return nn.Sequential(*layers[:-1])


class SharpSiLU(nn.Module):
    """x sigmoid(10 x): nearly ReLU, and smooth.

    Trained with ReLU itself a network amplifies rounding: values that differ in the seventh digit made other networks.
    """

    sharpness: float = 10.0

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.sharpness * x) / self.sharpness


class ResidualBlock(nn.Module):
    """x + W2 activation(W1 x)."""

    def __init__(self, width: int, generator: torch.Generator, activation: type[nn.Module] = nn.SiLU) -> None:
        super().__init__()
        self.first = linear(width, width, generator)
        self.second = linear(width, width, generator)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.second(self.activation(self.first(x)))
        return result


def make_network(
    kind: Kind, inputs: int, width: int, depth: int, outputs: int, generator: torch.Generator
) -> nn.Sequential:
    """(rows, inputs) to (rows, outputs): `depth` layers of an "mlp", or `depth` residual blocks between two layers.

    A "sharp" network is a residual one of `SharpSiLU`, also behind the first layer.
    """
    if kind == "mlp":
        return mlp([inputs, *[width] * (depth - 1), outputs], generator)
    activation = SharpSiLU if kind == "sharp" else nn.SiLU
    first = linear(inputs, width, generator)
    blocks = [ResidualBlock(width, generator, activation) for _ in range(depth)]
    last = linear(width, outputs, generator)
    if kind == "sharp":
        return nn.Sequential(first, activation(), *blocks, activation(), last)
    return nn.Sequential(first, *blocks, activation(), last)
