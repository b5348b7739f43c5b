"""What the encoder sees of a row: numbers, categories and which features differ from their reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cortx.errors import InputError
from cortx.tables import Column, Matrix

Z_LIMIT = 100.0
"""Inputs are clipped here, so that one wild value cannot carry the network away."""


@dataclass(frozen=True)
class FeatureConfig:
    """How columns become inputs."""

    raw: bool = False
    """The paper's inputs: the table's own numbers, nothing else."""
    bins: int = 0
    """Quantile bins of a piecewise linear encoding of numeric columns; 0 leaves it out."""

    def __post_init__(self) -> None:
        if self.bins < 0:
            raise InputError(f"bins must not be negative, got {self.bins}")


class TableFeatures(nn.Module):
    """Encoded rows, (rows, columns) float64, to inputs, (rows, width) float32. All its state is buffers."""

    numbers: Tensor  # positions of the numeric columns
    centre: Tensor
    scale: Tensor
    missing: Tensor  # positions of the columns that may be NaN
    hot_column: Tensor  # one-hot input k is 1 where column hot_column[k] equals hot_value[k]
    hot_value: Tensor
    bin_column: Tensor  # piecewise linear input k runs from 0 at bin_left[k] to 1 at bin_right[k]
    bin_left: Tensor
    bin_right: Tensor
    present: Tensor  # positions of the columns with a presence bit
    reference: Tensor

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    @property
    def width(self) -> int:
        parts = (self.numbers, self.missing, self.hot_column, self.bin_column, self.present)
        return sum(len(part) for part in parts)

    def forward(self, codes: Tensor) -> Tensor:
        numbers = (codes[:, self.numbers] - self.centre) / self.scale
        parts = [torch.nan_to_num(numbers, nan=0.0).clamp(-Z_LIMIT, Z_LIMIT)]
        if len(self.missing):
            parts.append(torch.isnan(codes[:, self.missing]))
        if len(self.hot_column):
            parts.append(codes[:, self.hot_column] == self.hot_value)
        if len(self.bin_column):
            inside = (codes[:, self.bin_column] - self.bin_left) / (self.bin_right - self.bin_left)
            parts.append(torch.nan_to_num(inside, nan=0.0).clamp(0, 1))
        if len(self.present):
            parts.append(differs(codes[:, self.present], self.reference[self.present]))
        return torch.cat([part.to(torch.float32) for part in parts], dim=1)


def differs(codes: Tensor, reference: Tensor) -> Tensor:
    """True where a value is not its reference; NaN is its own equal."""
    return (codes != reference) & ~(torch.isnan(codes) & torch.isnan(reference))


def fit_features(
    matrix: Matrix, columns: tuple[Column, ...], reference: npt.NDArray[np.float64], config: FeatureConfig
) -> TableFeatures:
    """Learns the inputs from encoded training rows."""
    numeric = [j for j, column in enumerate(columns) if not column.categorical or config.raw]
    centre, scale = np.zeros(len(numeric)), np.ones(len(numeric))
    hot: list[tuple[int, float]] = []
    bins: list[tuple[int, float, float]] = []
    missing = [j for j in numeric if np.isnan(matrix[:, j]).any() or np.isnan(reference[j])]
    for position, j in enumerate(numeric):
        present = matrix[~np.isnan(matrix[:, j]), j]
        if config.raw or present.size == 0:
            continue
        centre[position] = present.mean()
        scale[position] = present.std() or 1.0
        if config.bins:
            edges = np.unique(np.quantile(present, np.linspace(0, 1, config.bins + 1)))
            bins += [(j, float(left), float(right)) for left, right in zip(edges[:-1], edges[1:], strict=True)]
    if not config.raw:
        for j, column in enumerate(columns):
            if column.categorical:
                values = np.unique(np.append(matrix[:, j], reference[j]))
                hot += [(j, float(value)) for value in values[~np.isnan(values)]]
    presence = [] if config.raw else list(range(len(columns)))

    def floats(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.float64))

    def places(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.int64))

    return TableFeatures(
        {
            "numbers": places(numeric),
            "centre": floats(centre),
            "scale": floats(scale),
            "missing": places([] if config.raw else missing),
            "hot_column": places([j for j, _ in hot]),
            "hot_value": floats([value for _, value in hot]),
            "bin_column": places([j for j, _, _ in bins]),
            "bin_left": floats([left for _, left, _ in bins]),
            "bin_right": floats([right for _, _, right in bins]),
            "present": places(presence),
            "reference": floats(reference),
        }
    )
