"""What the encoder sees of a row: standardized numbers and one-hot categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cortx.tables import Column, Matrix

FARTHEST = 100.0
"""Inputs are clipped here: a value this many deviations away is a mistake, and must not carry the network away."""


@dataclass(frozen=True)
class FeatureConfig:
    """How columns become inputs."""

    raw: bool = False
    """The paper's inputs: the table's own numbers, nothing else."""


class TableFeatures(nn.Module):
    """Encoded rows, (rows, columns) float64, to inputs, (rows, width) float32. All its state is buffers."""

    numbers: Tensor  # positions of the numeric columns
    centre: Tensor
    scale: Tensor
    farthest: Tensor
    missing: Tensor  # positions of the columns that may be NaN
    hot_column: Tensor  # one-hot input k is 1 where column hot_column[k] equals hot_value[k]
    hot_value: Tensor
    reference: Tensor

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)

    @property
    def width(self) -> int:
        return len(self.numbers) + len(self.missing) + len(self.hot_column)

    def forward(self, codes: Tensor) -> Tensor:
        numbers = torch.nan_to_num((codes[:, self.numbers] - self.centre) / self.scale, nan=0.0)
        parts = [torch.minimum(torch.maximum(numbers, -self.farthest), self.farthest)]
        if len(self.missing):
            parts.append(torch.isnan(codes[:, self.missing]))
        if len(self.hot_column):
            parts.append(codes[:, self.hot_column] == self.hot_value)
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
    missing = [j for j in numeric if np.isnan(matrix[:, j]).any() or np.isnan(reference[j])]
    for position, j in enumerate(numeric):
        present = matrix[~np.isnan(matrix[:, j]), j]
        if config.raw or present.size == 0:
            continue
        centre[position] = present.mean()
        scale[position] = present.std() or 1.0
    if not config.raw:
        for j, column in enumerate(columns):
            if column.categorical:
                values = np.unique(np.append(matrix[:, j], reference[j]))
                hot += [(j, float(value)) for value in values[~np.isnan(values)]]

    def floats(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.float64))

    def places(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.int64))

    return TableFeatures(
        {
            "numbers": places(numeric),
            "centre": floats(centre),
            "scale": floats(scale),
            "farthest": floats(np.inf if config.raw else FARTHEST),
            "missing": places([] if config.raw else missing),
            "hot_column": places([j for j, _ in hot]),
            "hot_value": floats([value for _, value in hot]),
            "reference": floats(reference),
        }
    )
