"""What the encoder sees of a row: standardized numbers, one-hot categories, both of numbers that may be codes, and
for functions with steps on which side of thresholds a number lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cortx.games.forest import Forest
from cortx.tables import Column, Matrix, few_whole_values

FARTHEST = 12.0
"""Inputs are clipped here: they must not carry the network away."""
TAIL = 4.0
"""Deviations beyond which inputs grow with the logarithm alone: far values stay apart, and stay small."""
MIDDLE, FENCE = 0.1, 10.0
"""Values farther outside the middle 80% than ten times its width say nothing about where and how wide a column is."""
MOST_STEPS, ALL_STEPS = 64, 4_096
"""Thresholds of a column that are inputs, and of all columns together, at most."""

Steps = Mapping[int, Matrix]
"""Ascending thresholds, (n,), by the position of their column."""


@dataclass(frozen=True)
class FeatureConfig:
    """How columns become inputs."""

    raw: bool = False
    """The paper's inputs: the table's own numbers, nothing else."""
    codes: bool = True
    """Whether columns of few whole numbers, which may be codes of categories, are one-hot inputs beside the number."""


class TableFeatures(nn.Module):
    """Encoded rows, (rows, columns) float64, to inputs, (rows, width) float32. All its state is buffers."""

    numbers: Tensor  # positions of the numeric columns
    centre: Tensor
    scale: Tensor
    farthest: Tensor
    tail: Tensor  # where the logarithm begins; explainers of the first version have none
    missing: Tensor  # positions of the columns that may be NaN
    known_column: Tensor  # category k is the value known_value[k] of column known_column[k]
    known_value: Tensor
    one_hot: Tensor  # whether categories are inputs
    reference: Tensor  # what makes no difference in a column; infinity if everything does
    step_column: Tensor  # step k is whether column step_column[k] is above step_value[k]; only for functions with steps
    step_value: Tensor

    def __init__(self, state: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in state.items():
            self.register_buffer(name, tensor)
        self.has_tail = "tail" in state
        self.has_one_hot = bool(state["one_hot"])
        self.has_steps = "step_value" in state

    @property
    def width(self) -> int:
        known = len(self.known_column) if self.has_one_hot else 0
        return len(self.numbers) + len(self.missing) + known + (len(self.step_column) if self.has_steps else 0)

    @property
    def columns(self) -> Tensor:
        """The column of each input, (width,)."""
        parts = [self.numbers, self.missing]
        parts += [self.known_column] if self.has_one_hot else []
        return torch.cat([*parts, *([self.step_column] if self.has_steps else [])])

    def forward(self, codes: Tensor) -> Tensor:
        numbers = torch.nan_to_num((codes[:, self.numbers] - self.centre) / self.scale, nan=0.0)
        if self.has_tail:
            size = numbers.abs()
            size = torch.minimum(size, self.tail) + (1 + (size - self.tail).clamp(min=0)).log()
            numbers = numbers.sign() * size
        parts = [torch.minimum(torch.maximum(numbers, -self.farthest), self.farthest)]
        if len(self.missing):
            parts.append(torch.isnan(codes[:, self.missing]))
        if self.has_one_hot:
            parts.append(codes[:, self.known_column] == self.known_value)
        if self.has_steps:
            parts.append((codes[:, self.step_column] > self.step_value).to(torch.float32) - 0.5)
        return torch.cat([part.to(torch.float32) for part in parts], dim=1)


def differs(codes: Tensor, reference: Tensor) -> Tensor:
    """True where a value is not its reference; NaN is its own equal."""
    return (codes != reference) & ~(torch.isnan(codes) & torch.isnan(reference))


def robust_scale(numbers: Matrix) -> tuple[float, float]:
    """Centre and scale of known numbers, (n,): mean and standard deviation of those within the fence.

    Usually all are. Where more than half are one value, the others make the fence. A constant has scale 1.
    """
    low, high = numbers.min(), numbers.max()
    if low == high:
        return float(low), 1.0
    usual = np.quantile(numbers, 0.5, method="lower")
    others = numbers[numbers != usual]
    first, last = _middle(others if 2 * len(others) < len(numbers) else numbers)
    first, last = min(first, usual), max(last, usual)
    if first < last:
        reach = FENCE * (last - first)
        numbers = numbers[(numbers >= first - reach) & (numbers <= last + reach)]
    # Shares of the range: squares of these neither overflow nor vanish.
    start, width = numbers.min(), np.ptp(numbers)
    shares = (numbers - start) / width
    return float(start + width * shares.mean()), float(width * shares.std())


def _middle(numbers: Matrix) -> tuple[float, float]:
    """What the middle 80% lie between: values of the column, so that one at the end has no say."""
    low = np.quantile(numbers, MIDDLE, method="higher")
    return float(low), float(np.quantile(numbers, 1 - MIDDLE, method="lower"))


def fit_features(
    matrix: Matrix,
    columns: tuple[Column, ...],
    absent: Matrix,
    config: FeatureConfig,
    scaled_by: Matrix | None = None,
    steps: Steps | None = None,
) -> TableFeatures:
    """Learns the inputs from encoded training rows; `absent` are the reference or background rows.

    Centre and scale of numbers come from `scaled_by`, if it is given. Columns of numbers are compared with the
    thresholds of `steps` besides.
    """
    everything = np.concatenate([matrix, absent])
    scaled_by = matrix if scaled_by is None else scaled_by
    numeric = [j for j, column in enumerate(columns) if not column.categorical or config.raw]
    missing = [j for j in range(len(columns)) if np.isnan(everything[:, j]).any()]
    centre, scale = np.zeros(len(numeric)), np.ones(len(numeric))
    for position, j in enumerate(numeric):
        present = scaled_by[~np.isnan(scaled_by[:, j]), j]
        if present.size and not config.raw:
            centre[position], scale[position] = robust_scale(present)
    known = []
    for j, column in enumerate(columns):
        if column.categorical:
            values: Matrix | None = np.unique(everything[~np.isnan(everything[:, j]), j])
        else:
            values = few_whole_values(matrix[:, j]) if config.codes and not config.raw else None
        known += [] if values is None else [(j, float(value)) for value in values]
    # A value that all absent rows share replaces nothing; where they differ, every value makes a difference.
    constant = (absent == absent[0]).all(axis=0) | np.isnan(absent).all(axis=0)
    reference = np.where(constant, absent[0], np.inf)

    def floats(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.float64))

    def places(items: Any) -> Tensor:
        return torch.tensor(np.asarray(items, dtype=np.int64))

    features = TableFeatures(
        {
            "numbers": places(numeric),
            "centre": floats(centre),
            "scale": floats(scale),
            "farthest": floats(np.inf if config.raw else FARTHEST),
            **({} if config.raw else {"tail": floats(TAIL)}),
            "missing": places(missing),
            "known_column": places([j for j, _ in known]),
            "known_value": floats([value for _, value in known]),
            "one_hot": torch.tensor(not config.raw),
            "reference": floats(reference),
        }
    )
    return with_steps(features, steps) if steps else features


def replace_reference(features: TableFeatures, reference: Tensor) -> TableFeatures:
    """The same inputs of another reference, (columns,), on the processor and in memory of their own."""
    state = {name: tensor.detach().cpu().clone() for name, tensor in features.named_buffers()}
    return TableFeatures({**state, "reference": reference})


def with_steps(features: TableFeatures, steps: Steps) -> TableFeatures:
    """The same inputs, and on which side of thresholds the numbers lie."""
    numeric = set(features.numbers.tolist())
    compared = [(j, float(value)) for j, values in steps.items() if j in numeric for value in values]
    state = {name: tensor.clone() for name, tensor in features.named_buffers()}
    if compared:
        device = features.numbers.device
        state["step_column"] = torch.tensor([j for j, _ in compared], dtype=torch.int64, device=device)
        state["step_value"] = torch.tensor([value for _, value in compared], dtype=torch.float64, device=device)
    return TableFeatures(state)


def forest_steps(forest: Forest) -> dict[int, Matrix]:
    """The thresholds of a forest's splits by column; of columns with many, evenly spread ones of all their splits."""
    found: dict[int, Matrix] = {}
    splits = np.flatnonzero((forest.column >= 0) & (forest.categories < 0) & np.isfinite(forest.threshold))
    columns = np.unique(forest.column[splits])
    most = min(MOST_STEPS, ALL_STEPS // max(1, len(columns)))
    for column in columns.tolist():
        thresholds = forest.threshold[splits[forest.column[splits] == column]]
        different = np.unique(thresholds)
        if len(different) > most:
            places = (np.arange(most) + 0.5) / max(1, most)
            different = np.unique(np.quantile(thresholds, places, method="nearest"))
        found[column] = different
    return found
