"""An optimiser for small networks that learn for long: steps of matrices are made orthogonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor, nn

from cortx.training.step import recordable

MOMENTUM = 0.95
"""Of the running mean of gradients, as Jordan has it."""
ROUNDS = 5
"""Newton-Schulz iterations."""
POLYNOMIAL = (3.4445, -4.775, 2.0315)
"""Of an iteration, as Jordan has it: five bring singular values from a fiftieth of the matrix's norm on near one."""
LIKE_ADAM = 0.2
"""Makes the typical entry of a step as large as one of AdamW's, so that both share a learning rate."""


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al., 2024) for the matrices between hidden layers, AdamW for the first and last ones and vectors.

    A matrix moves along its momentum with all singular values set to one: directions in which gradients are small are
    learned as fast as others (docs/decisions/0014-student.md has what it earns).
    """

    def __init__(
        self, layers: nn.Module, learning_rate: float, weight_decay: float, betas: tuple[float, float]
    ) -> None:
        parameters = list(layers.parameters())
        # The first layer is a table of what each input adds; rare categories would move as fast as all others together.
        _, *matrices, _ = [parameter for parameter in parameters if parameter.ndim == 2]
        chosen = {id(matrix) for matrix in matrices}
        others = [parameter for parameter in parameters if id(parameter) not in chosen]
        settings = recordable(parameters[0].device, learning_rate)
        super().__init__(others, betas=betas, weight_decay=weight_decay, **settings)
        if matrices:
            self.add_param_group({"params": matrices, "orthogonal": True})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step, from the gradients that are there."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if "orthogonal" not in group]
        try:
            result: float | None = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if "orthogonal" in group:
                self._move(group)
        return result

    def _move(self, group: dict[str, Any]) -> None:
        """Moves matrices; those of the same shape together."""
        same_shape: dict[torch.Size, list[Tensor]] = {}
        for matrix in group["params"]:
            same_shape.setdefault(matrix.shape, []).append(matrix)
        for shape, matrices in same_shape.items():
            ahead = []
            for matrix in matrices:
                assert matrix.grad is not None
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                momentum = state["momentum"].lerp_(matrix.grad, 1 - MOMENTUM)
                ahead.append(matrix.grad.lerp(momentum, MOMENTUM))
            steps = orthogonal(torch.stack(ahead)) * (LIKE_ADAM * max(shape) ** 0.5)
            for matrix, step in zip(matrices, steps, strict=True):
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(step * group["lr"])


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices whose singular values are all alike, near one: (k, m, n) to (k, m, n)."""
    if matrices.shape[1] > matrices.shape[2]:
        tall: Tensor = orthogonal(matrices.mT).mT
        return tall
    linear, cubic, quintic = POLYNOMIAL
    result: Tensor = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = result @ result.mT
        result = torch.baddbmm(
            result, torch.baddbmm(square, square, square, beta=cubic, alpha=quintic), result, beta=linear
        )
    return result
