"""The Census target: an AutoInt in the style of DeepCTR-Torch, with the published weights or new ones to train.

Eight categorical columns (label-encoded, truncated to integers) come first, then five dense ones.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

CATEGORICAL: tuple[tuple[str, int], ...] = (
    ("workclass", 9),
    ("education", 16),
    ("marital-status", 7),
    ("occupation", 15),
    ("relationship", 6),
    ("race", 5),
    ("native-country", 42),
    ("sex", 2),
)
N_DENSE = 5
WIDTH = 4
HEADS = 2


class Interacting(nn.Module):
    """Multi-head self-attention over feature embeddings, unscaled, with a residual projection.

    Works on (fields, width, rows): with rows last, the tiny matrices of every row become long vectors, which
    is 13 times faster on a CPU than batched products of 8 x 2 matrices.
    """

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.W_Query = nn.Parameter(torch.zeros(width, width))
        self.W_key = nn.Parameter(torch.zeros(width, width))
        self.W_Value = nn.Parameter(torch.zeros(width, width))
        self.W_Res = nn.Parameter(torch.zeros(width, width))

    def forward(self, x: Tensor) -> Tensor:
        fields, width, rows = x.shape
        weights = torch.cat([self.W_Query, self.W_key, self.W_Value, self.W_Res], dim=1).t()
        query, key, value, residual = (weights @ x).view(fields, 4, width, rows).unbind(1)

        def split(z: Tensor) -> tuple[Tensor, ...]:  # one (fields, heads, rows) for each number of a head
            return z.view(fields, self.heads, width // self.heads, rows).unbind(2)

        scores = torch.zeros((), dtype=x.dtype, device=x.device)
        for q, k in zip(split(query), split(key), strict=True):
            scores = scores + q[:, None] * k[None]
        scores = torch.exp(scores - scores.amax(dim=1, keepdim=True))  # (fields, fields, heads, rows)
        total = scores.sum(dim=1)
        mixed = torch.stack([(scores * v[None]).sum(dim=1) / total for v in split(value)], dim=2)
        return F.relu(mixed.reshape(fields, width, rows) + residual)


class _Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(len(CATEGORICAL) * WIDTH + N_DENSE, 128), nn.Linear(128, 64)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.linears:
            x = F.relu(layer(x))
        return x


class _Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_dict = nn.ModuleDict({name: nn.Embedding(size, 1) for name, size in CATEGORICAL})
        self.weight = nn.Parameter(torch.zeros(N_DENSE, 1))


class _Out(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))


class AutoInt(nn.Module):
    """Maps (rows, 13) to the (rows,) linear outputs (no sigmoid)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_dict = nn.ModuleDict({name: nn.Embedding(size, WIDTH) for name, size in CATEGORICAL})
        self.linear_model = _Linear()
        self.int_layers = nn.ModuleList([Interacting() for _ in range(3)])
        self.dnn = _Tower()
        self.dnn_linear = nn.Linear(len(CATEGORICAL) * WIDTH + 64, 1, bias=False)
        self.out = _Out()

    def forward(self, x: Tensor) -> Tensor:
        n_cat = len(CATEGORICAL)
        codes = x[:, :n_cat].long()  # truncates towards zero
        dense = x[:, n_cat:]
        fields = [self.embedding_dict[name](codes[:, j]) for j, (name, _) in enumerate(CATEGORICAL)]
        embedded = torch.stack(fields, dim=1)  # (rows, fields, width)
        linear = dense @ self.linear_model.weight
        for j, (name, _) in enumerate(CATEGORICAL):
            linear = linear + self.linear_model.embedding_dict[name](codes[:, j])
        attended = embedded.permute(1, 2, 0).contiguous()
        for layer in self.int_layers:
            attended = layer(attended)
        tower = self.dnn(torch.cat([embedded.flatten(1), dense], dim=1))
        stacked = torch.cat([attended.flatten(0, 1).t(), tower], dim=1)
        result: Tensor = (self.dnn_linear(stacked) + linear + self.out.bias).squeeze(1)
        return result


def load_autoint(path: str | Path) -> AutoInt:
    """The published weights, frozen, in evaluation mode."""
    model = _unfilled()
    model.load_state_dict(load_file(str(path)))  # strict
    return model.eval().requires_grad_(False)


def new_autoint(generator: torch.Generator) -> AutoInt:
    """An untrained AutoInt whose weights are drawn from the generator that is handed in."""
    model = _unfilled()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embedding_dict" in name:
                weight.normal_(0.0, 0.05, generator=generator)
            elif name in ("linear_model.weight", "out.bias"):
                weight.zero_()
            elif name.startswith("int_layers"):
                weight.normal_(0.0, 1 / sqrt(WIDTH), generator=generator)
            else:  # PyTorch's usual uniform weights; a bias takes the bound of its layer
                bound = 1 / sqrt(model.get_submodule(name.rpartition(".")[0]).weight.shape[1])  # type: ignore
                weight.uniform_(-bound, bound, generator=generator)
    return model


def _unfilled() -> AutoInt:
    """Every weight still has to be set; built so, no layer draws from the global generator."""
    with torch.device("meta"):
        model = AutoInt()
    return model.to_empty(device="cpu")
