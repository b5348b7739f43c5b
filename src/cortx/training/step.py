"""One step of an optimiser, fast where many small kernels would wait for each other's launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from cortx.training.parallel import ALONE, Processes

WARM_UP = 3


def make_optimizer(
    module: torch.nn.Module, learning_rate: float, weight_decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """AdamW whose rate `set_rate` can change, also inside a recorded step."""
    parameters = list(module.parameters())
    return torch.optim.AdamW(
        parameters, weight_decay=weight_decay, betas=betas, **recordable(parameters[0].device, learning_rate)
    )


def recordable(device: torch.device, learning_rate: float) -> dict[str, Any]:
    """The settings with which AdamW can be part of a recorded step: on a GPU its rate is a tensor."""
    on_gpu = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if on_gpu else learning_rate
    return {"lr": rate, "fused": True, "capturable": on_gpu}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Step:
    """Minimises ``loss(*inputs)``: gradients, clipping, update. Inputs keep their shapes from call to call.

    On a GPU the whole step is recorded once as a CUDA graph and replayed: these networks are so small that launching
    their kernels one by one takes ten times as long as computing. Large batches keep a GPU busy as it is (`record`).
    `state` is what else a step changes: the running means of batch normalization. With several processes `loss` is this
    one's part of a sum; their gradients are added up, and all take the same step.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        *,
        record: bool = True,
        state: Iterable[Tensor] = (),
        together: Processes = ALONE,
    ) -> None:
        self.loss, self.optimizer, self.clip, self.together = loss, optimizer, clip, together
        self.record = record and not together.several  # what processes tell each other is not part of a graph
        self.state = list(state)
        self.parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._result = torch.zeros(())

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Does the step; gives the loss before it (on a GPU in a tensor that the next step overwrites)."""
        device = self.parameters[0].device
        if device.type != "cuda":
            return self._eager(inputs)
        if not self.record:
            return self._eager([tensor.to(device) for tensor in inputs])
        with torch.cuda.device(self.parameters[0].device):  # graphs belong to the device that is current
            if self._graph is None:
                self._record(inputs)
            assert self._graph is not None
            for kept, given in zip(self._inputs, inputs, strict=True):
                kept.copy_(given)
            self._graph.replay()
        return self._result

    def _eager(self, inputs: Sequence[Tensor]) -> Tensor:
        loss = self.loss(*inputs)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        loss = self.together.add_gradients(self.parameters, loss.detach())
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss.detach()

    def _record(self, inputs: Sequence[Tensor]) -> None:
        """Records the step on copies of the inputs. The trial steps that this takes leave no trace."""
        self._inputs = [tensor.to(self.parameters[0].device, copy=True) for tensor in inputs]
        changed = [*self.parameters, *self.state]
        before = [tensor.detach().clone() for tensor in changed]
        state_before = {place: tensor.clone() for place, tensor in self._moments()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._eager(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(old)
            for place, tensor in self._moments():
                tensor.copy_(state_before[place] if place in state_before else torch.zeros_like(tensor))
        self._graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph):
            self._result = self._eager(self._inputs)

    def _moments(self) -> list[tuple[tuple[int, str], Tensor]]:
        return [
            ((number, name), tensor)
            for number, parameter in enumerate(self.parameters)
            for name, tensor in self.optimizer.state[parameter].items()
        ]
