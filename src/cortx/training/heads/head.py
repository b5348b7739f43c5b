"""What every head is: a network on latent explanations, with its loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from cortx.training.encoders import HeadConfig, make_network

SMALLEST, LARGEST = 1e-30, 1e30
"""What scales are kept within: float32 holds their product and quotient with outputs."""
NO_SCALE = 1e-12
"""The scale of outputs that are all zero."""


def scale_of(numbers: Tensor, dims: int | tuple[int, ...] = 0) -> Tensor:
    """The root mean square over `dims`, float32; computed in float64, where squares of float32 numbers do not overflow.

    Numbers of any size have the scale they have; those that are all zero get `NO_SCALE`.
    """
    scale = numbers.double().square().mean(dim=dims).sqrt()
    return torch.where(scale == 0, NO_SCALE, scale.clamp(SMALLEST, LARGEST)).to(torch.float32)


class Head(nn.Module, ABC):
    """Shapes: latent (rows, d), total = f(x) - f(reference) (rows, outputs), labels (rows, players, outputs)."""

    total_scale: Tensor
    label_scale: Tensor

    def __init__(
        self, latent: int, n_players: int, n_outputs: int, config: HeadConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.n_players, self.n_outputs, self.config = n_players, n_outputs, config
        inputs = latent + (n_outputs if config.sees_total else 0)
        outputs = self.n_logits(n_players) * n_outputs
        self.layers = make_network(config.kind, inputs, config.width, config.depth, outputs, generator)
        self.register_buffer("total_scale", torch.ones(n_outputs))
        self.register_buffer("label_scale", torch.ones(n_outputs))

    @staticmethod
    @abstractmethod
    def n_logits(n_players: int) -> int:
        """Numbers the head needs for one output of a row."""

    def set_scales(self, total: Tensor, labels: Tensor) -> None:
        """Brings inputs and outputs to about one: the root mean square of totals and of labels, per output."""
        self.total_scale.copy_(scale_of(total))
        self.label_scale.copy_(scale_of(labels, (0, 1)))

    def hidden(self, latent: Tensor, total: Tensor) -> Tensor:
        """Everything before the last linear layer, (rows, hidden)."""
        result = torch.cat([latent, total / self.total_scale], dim=1) if self.config.sees_total else latent
        for layer in list(self.layers)[:-1]:
            result = layer(result)
        return result

    def logits(self, latent: Tensor, total: Tensor) -> Tensor:
        result: Tensor = self.layers[-1](self.hidden(latent, total))
        return result

    @property
    def n_hidden(self) -> int:
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        return last.in_features

    @abstractmethod
    def forward(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        """The head's answer for rows."""

    def for_loss(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        """What the loss compares with labels: the answer, unless a head says otherwise."""
        answer: Tensor = self(latent, total, active)
        return answer

    @abstractmethod
    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """A scalar to minimise."""

    def score(self, output: Tensor, labels: Tensor) -> Tensor:
        """What the validation labels minimise to choose the epoch: the loss, unless a head says otherwise."""
        return self.loss(output, labels)
