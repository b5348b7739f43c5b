"""The processes that torchrun started: each computes its share of every batch, and all take the same step."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed

from cortx.errors import InputError

TIMEOUT = timedelta(minutes=30)
"""How long one process waits for another before it gives up."""
_groups = count()


@dataclass(frozen=True)
class Processes:
    """This process, number `rank` of `world`. Alone, all its methods do nothing and ask nobody.

    What they exchange are numbers only. All processes must call the same methods in the same order.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether it is the one that writes files, logs and shows progress."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.world > 1

    def share(self, whole: int) -> slice:
        """Which of so many rows are this process's: shares follow each other and differ by one row at most."""
        return slice(whole * self.rank // self.world, whole * (self.rank + 1) // self.world)

    def gather(self, own: Tensor, whole: int) -> Tensor:
        """The rows of all processes, (whole, ...), from each one's share of them; gradients find their way back."""
        if not self.several:
            return own
        rows: Tensor = _Gather.apply(own, self.share(whole), whole)  # type: ignore[no-untyped-call]
        return rows

    def gather_array(self, own: npt.NDArray[Any], whole: int) -> Any:
        """The same for an array."""
        if not self.several:
            return own
        numbers = torch.from_numpy(np.ascontiguousarray(own.view(np.uint8) if own.dtype == bool else own))
        found = self.gather(numbers, whole).numpy()
        return found.view(np.bool_) if own.dtype == bool else found

    def total(self, number: int) -> int:
        """The sum of one whole number of each process."""
        if not self.several:
            return number
        sums = torch.tensor([number])
        distributed.all_reduce(sums)
        return int(sums)

    def sum(self, number: float) -> float:
        """The sum of one number of each process."""
        if not self.several:
            return number
        sums = torch.tensor([number], dtype=torch.float64)
        distributed.all_reduce(sums)
        return float(sums)

    def add_gradients(self, parameters: Sequence[Tensor], loss: Tensor) -> Tensor:
        """Adds up the gradients of all processes in place, and their parts of the loss, which is the result."""
        if not self.several:
            return loss
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), loss.reshape(1).to(gradients[0])])
        distributed.all_reduce(flat)
        *sums, loss = torch.split(flat, [*(gradient.numel() for gradient in gradients), 1])
        for parameter, gradient, together in zip(parameters, gradients, sums, strict=True):
            parameter.grad = gradient.copy_(together.view_as(gradient))
        return loss.reshape(())

    def follow_first(self, module: torch.nn.Module) -> None:
        """Gives every process the weights and running means of the first."""
        if self.several:
            for tensor in module.state_dict().values():
                distributed.broadcast(tensor, src=0)

    def numbers_of_first(self, make: Callable[[], npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        """A list of numbers that the first process makes and tells the others."""
        if not self.several:
            return make()
        made = torch.from_numpy(make().copy()) if self.first else torch.empty(0, dtype=torch.float64)
        length = torch.tensor([len(made)])
        distributed.broadcast(length, src=0)
        if not self.first:
            made = torch.empty(int(length), dtype=torch.float64)
        distributed.broadcast(made, src=0)
        return made.numpy()

    def same(self, text: str, otherwise: str) -> None:
        """Raises `otherwise` in every process unless all of them have the same text."""
        if not self._alike(text):
            raise InputError(f"process {self.rank} of {self.world}: {otherwise}")

    def _alike(self, text: str) -> bool:
        """Whether all processes have the same text."""
        if not self.several:
            return True
        word = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
        ends = torch.tensor([word, -word])
        distributed.all_reduce(ends, op=distributed.ReduceOp.MAX)
        return bool(ends[0] == -ends[1])

    def own_device(self, device: str) -> str:
        """Where this process trains: with several on a machine, each on its own GPU."""
        crowded = self._alike(device) and int(os.environ.get("LOCAL_WORLD_SIZE", self.world)) > 1
        if crowded and device.startswith("cuda:"):
            raise InputError(
                f"{self.world} processes cannot all train on {device}; device='cuda' gives each its own GPU"
            )
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if self.several and device == "cuda" else device


ALONE = Processes()


class _Gather(torch.autograd.Function):
    """Everyone's rows, each at its place among zeros, added up; gradients add up on the way back."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, place: slice, whole: int) -> Tensor:
        ctx.place = place
        rows = own.new_zeros((whole, *own.shape[1:]))
        rows[place] = own
        distributed.all_reduce(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        together = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(together)
        return together[ctx.place], None, None


@contextmanager
def processes(device: str = "cpu") -> Iterator[Processes]:
    """The processes of this run: those of torchrun (RANK and WORLD_SIZE in the environment), else this one alone.

    They talk through gloo, on GPUs through NCCL, and part when the block ends, however it does. A process group that
    the caller has made is used as it is, and left alone.
    """
    if distributed.is_available() and distributed.is_initialized():
        yield Processes(distributed.get_rank(), distributed.get_world_size())
        return
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world < 2 or "RANK" not in os.environ:
        yield ALONE
        return
    if not distributed.is_available():
        raise InputError("torchrun started several processes, but this build of torch has no torch.distributed")
    rank, on_gpu = int(os.environ["RANK"]), device.startswith("cuda")
    from torch.distributed.distributed_c10d import PrefixStore

    # One fit after the other in the same processes: each has its own names in the store that they meet at.
    store = PrefixStore(f"cortx-{next(_groups)}", _store())
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    try:
        yield Processes(rank, world)
    finally:
        distributed.destroy_process_group()
        # gloo's threads end with the last reference to the group, which may be part of a cycle. A thread that lets go
        # of a tensor while Python is ending aborts the process.
        gc.collect()


@cache
def _store() -> Any:
    """Where the processes find each other, as the environment says."""
    from torch.distributed.rendezvous import rendezvous

    return next(rendezvous("env://", timeout=TIMEOUT))[0]
