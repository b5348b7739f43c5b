"""What a student's gradients say of a row: a first guess of its attributions for the price of a few passes."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.training.encoders import Kind, ResidualBlock, SharpSiLU, make_network

if TYPE_CHECKING:
    from cortx.training.student import StudentNetwork

FEW_OUTPUTS = 2
"""The most outputs whose gradients are asked for at several points: each has its own, and eight took most of a pass."""


class PathGradients(nn.Module):
    """Integrated gradients of a student's network, on the way from nobody present to everybody.

    All players become present together, to the share t: the network's first layer is a sum over players, so that every
    t between 0 and 1 makes sense. The gradient at a few points t says what each player adds there, and their mean,
    weighted as Gauss and Legendre do, is a first guess of the Shapley values (the diagonal of Owen's multilinear
    extension, with what lies behind the first layer taken at the mean). All its state is buffers and frozen layers.
    """

    base: Tensor  # (inputs,) of the reference
    members: Tensor  # (inputs, players): one where an input is a player's
    scale: Tensor  # (outputs,) of the student's answers
    unit: Tensor  # (outputs,) what contributions are measured by where they are inputs
    points: Tensor  # (k,) between 0 and 1
    weights: Tensor  # (k,) of the points, which add up to one

    def __init__(self, layers: nn.Sequential, buffers: dict[str, Tensor]) -> None:
        """`layers` are a student's, "residual" or "sharp" (`make_network`)."""
        super().__init__()
        self.layers = layers.requires_grad_(False)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.n_players = self.members.shape[1]
        self.averaged = self.parts[0].in_features > len(self.base)
        """Whether who is present is an input: games with a background."""

    @classmethod
    def of(cls, student: StudentNetwork) -> PathGradients:
        """Of a trained student, at as many points as its settings say; at one where gradients of many outputs cost."""
        n_points = student.config.path_points if student.n_outputs <= FEW_OUTPUTS else 1
        points, weights = np.polynomial.legendre.leggauss(n_points)
        along = {"points": (points + 1) / 2, "weights": weights / 2}
        belongs = student.input_player[:, None] == torch.arange(student.n_players, device=student.device)
        buffers = {"base": student.base.clone(), "members": belongs.float(), "scale": student.scale.clone()}
        buffers |= {name: torch.tensor(array, dtype=torch.float32).to(student.device) for name, array in along.items()}
        return cls(copy.deepcopy(student.layers), {**buffers, "unit": torch.ones_like(student.scale)})

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> PathGradients:
        """That of a saved state; every size is one of its tensors'."""
        outer = [tensors[f"layers.{number}.weight"] for number in _numbers(tensors, ".weight", dots=2)]
        if len(outer) != 2:
            raise ValueError("the gradients' network must begin and end with one layer")
        (width, inputs), outputs = outer[0].shape, outer[1].shape[0]
        blocks = _numbers(tensors, ".first.weight", dots=3)
        kind: Kind = "sharp" if blocks[:1] == [2] else "residual"  # one more activation before the first block
        layers = make_network(kind, inputs, width, len(blocks), outputs, torch.Generator())
        names = ("base", "members", "scale", "unit", "points", "weights")
        return cls(layers, {name: tensors[name] for name in names})

    @property
    def parts(self) -> tuple[nn.Linear, list[ResidualBlock], nn.Linear]:
        """The first layer, the blocks, and the last layer."""
        first, *blocks, last = self.layers
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        return first, [block for block in blocks if isinstance(block, ResidualBlock)], last

    @property
    def sharp(self) -> bool:
        """Whether the student's network has sharp bends, also behind its first layer."""
        return isinstance(self.layers[-2], SharpSiLU)

    @property
    def sharpness(self) -> float:
        """The activation is x sigmoid(sharpness x)."""
        return SharpSiLU.sharpness if self.sharp else 1.0

    @property
    def width(self) -> int:
        """Numbers that it says of a row."""
        return len(self.points) * self.n_players * len(self.scale)

    @property
    def row_bytes(self) -> int:
        """Memory that the gradients of a row take on the way, about."""
        widest = max(len(self.base), self.n_players, self.parts[0].out_features)
        return 16 * len(self.scale) * len(self.points) * widest

    @torch.no_grad()
    def forward(self, inputs: Tensor, active: Tensor) -> Tensor:
        """What each player adds at every point, in units, (rows, `width`): inputs of the attribution head.

        From inputs of rows, (rows, inputs), and who is active, (rows, players).
        """
        first, blocks, last = self.parts
        own, presence = first.weight[:, : len(self.base)], first.weight[:, len(self.base) :]
        away, present = inputs - self.base, active.to(inputs.dtype)
        whole = away @ own.T
        if self.averaged:
            away = away * (present @ self.members.T)
            whole = away @ own.T + present @ presence.T
        start = F.linear(self.base, own, first.bias)
        sums = start + self.points[:, None, None] * whole  # (k, rows, width)
        hidden = self.layers[1](sums) if self.sharp else sums
        slopes = []
        for block in blocks:
            inner = block.first(hidden)
            slopes.append(_slope(inner, self.sharpness))
            hidden = hidden + block.second(block.activation(inner))
        gradient = last.weight[:, None, None, :] * _slope(hidden, self.sharpness)  # (outputs, k, rows, width)
        for block, slope in zip(reversed(blocks), reversed(slopes), strict=True):
            gradient = gradient + ((gradient @ block.second.weight) * slope) @ block.first.weight
        if self.sharp:
            gradient = gradient * _slope(sums, self.sharpness)
        added = ((gradient @ own) * away) @ self.members  # (outputs, k, rows, players)
        if self.averaged:
            added = added + (gradient @ presence) * present
        return (added.permute(2, 1, 3, 0) * (self.scale / self.unit)).flatten(1)

    def guess(self, seen: Tensor) -> Tensor:
        """The first guess of the values, (rows, players, outputs), from what `forward` says."""
        added = seen.view(len(seen), len(self.points), self.n_players, len(self.scale))
        return torch.einsum("rkpo,k->rpo", added, self.weights) * self.unit


def _slope(x: Tensor, sharpness: float) -> Tensor:
    """The derivative of x sigmoid(sharpness x)."""
    x = sharpness * x
    share = torch.sigmoid(x)
    return share * (1 + x * (1 - share))


def _numbers(tensors: dict[str, Tensor], end: str, *, dots: int) -> list[int]:
    """The numbers of the layers that have such a tensor, in order."""
    names = [name for name in tensors if name.startswith("layers.") and name.endswith(end) and name.count(".") == dots]
    return sorted(int(name.split(".")[1]) for name in names)
