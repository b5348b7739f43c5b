"""Targets trained here from the public tables: AutoInt for Census, an MLP for Bankruptcy. Both answer with logits."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cortx.errors import InputError
from cortx.paper.autoint import AutoInt, new_autoint
from cortx.paper.download import file_sha256
from cortx.paper.sources import Table
from cortx.progress import progress_bar
from cortx.seeding import numpy_generator, torch_generator
from cortx.training.encoders import linear

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class TargetConfig:
    """AdamW on binary cross entropy, one-cycle rate; the epoch with the least loss on held-out training rows wins."""

    epochs: int
    learning_rate: float
    weight_decay: float
    batch_size: int
    validation_share: float
    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers of an MLP; AutoInt has its own."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or self.learning_rate <= 0 or self.weight_decay < 0:
            raise InputError(
                f"epochs, batch size and learning rate must be positive and the decay not negative: {self}"
            )
        if not 0 < self.validation_share < 1:
            raise InputError(f"validation_share must be between 0 and 1, got {self.validation_share}")
        if any(width < 1 for width in self.hidden):
            raise InputError(f"widths must be positive, got {self.hidden}")


AUTOINT = TargetConfig(epochs=12, learning_rate=1e-2, weight_decay=0.1, batch_size=512, validation_share=0.1)
MLP = TargetConfig(
    epochs=40, learning_rate=2e-3, weight_decay=1.0, batch_size=256, validation_share=0.2, hidden=(64, 64)
)


@dataclass(frozen=True)
class Report:
    """How good a target is (area under the ROC curve) and what it took. The test rows chose nothing."""

    auc_train: float
    auc_validation: float
    auc_test: float
    epoch: int
    """The epoch that was kept, from 1."""
    seconds: float
    seed: int


@dataclass(frozen=True, eq=False)
class Target(Generic[M]):
    """A trained model, frozen, in evaluation mode: rows to logits (rows,)."""

    model: M
    report: Report


class BankruptcyMLP(nn.Module):
    """Linear layers with ReLU between them; maps (rows, features) to one logit for each row, (rows,)."""

    def __init__(self, features: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((features, *hidden, 1)):
            layers += [linear(inputs, outputs, generator), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits.squeeze(1)


def train_autoint(table: Table, seed: int = 0, config: TargetConfig = AUTOINT) -> Target[AutoInt]:
    """An AutoInt for the Census table of `load_adult`."""
    return _train(_new_autoint(table, seed, config), table, seed, config)


def train_mlp(table: Table, seed: int = 0, config: TargetConfig = MLP) -> Target[BankruptcyMLP]:
    """An MLP for a table of numbers, such as that of `load_bankruptcy`."""
    return _train(_new_mlp(table, seed, config), table, seed, config)


def load_or_train_autoint(
    table: Table, folder: str | Path, seed: int = 0, config: TargetConfig = AUTOINT
) -> Target[AutoInt]:
    """`train_autoint`, whose result is kept in `folder` and read from there the next time."""
    return _load_or_train("autoint", _new_autoint, table, Path(folder), seed, config)


def load_or_train_mlp(
    table: Table, folder: str | Path, seed: int = 0, config: TargetConfig = MLP
) -> Target[BankruptcyMLP]:
    """`train_mlp`, whose result is kept in `folder` and read from there the next time."""
    return _load_or_train("mlp", _new_mlp, table, Path(folder), seed, config)


def roc_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The chance that a row of class 1 scores above one of class 0, ties counting half; (rows,), (rows,)."""
    y, s = np.asarray(labels).astype(bool), np.asarray(scores, dtype=np.float64)
    if y.shape != s.shape or y.ndim != 1:
        raise InputError(f"labels and scores must be two lists of the same length, got {y.shape} and {s.shape}")
    ones, zeros = int(y.sum()), int((~y).sum())
    if not (ones and zeros) or not np.isfinite(s).all():
        raise InputError(f"the AUC needs finite scores and rows of both classes, got {zeros} of 0 and {ones} of 1")
    _, place, count = np.unique(s, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share the mean of their ranks
    return float((rank[y].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def _new_autoint(table: Table, seed: int, config: TargetConfig) -> AutoInt:
    return new_autoint(torch_generator(seed, "autoint", "weights"))


def _new_mlp(table: Table, seed: int, config: TargetConfig) -> BankruptcyMLP:
    return BankruptcyMLP(table.x_train.shape[1], config.hidden, torch_generator(seed, "mlp", "weights"))


def _hold_out(y: npt.NDArray[np.int8], share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Row numbers to learn from and to choose by; the share is taken from each class, for positives can be few."""
    generator = numpy_generator(seed, "target", "validation")
    learn, choose = [], []
    for label in (0, 1):
        rows = generator.permutation(np.flatnonzero(y == label))
        n = round(share * len(rows))
        if not 0 < n < len(rows):
            raise InputError(f"{len(rows)} training rows of class {label} are too few to hold out a share of {share}")
        choose.append(rows[:n])
        learn.append(rows[n:])
    return torch.from_numpy(np.sort(np.concatenate(learn))), torch.from_numpy(np.sort(np.concatenate(choose)))


def _train(model: M, table: Table, seed: int, config: TargetConfig) -> Target[M]:
    began = time.perf_counter()
    x, y = torch.from_numpy(table.x_train), torch.from_numpy(table.y_train).float()
    learn, choose = _hold_out(table.y_train, config.validation_share, seed)
    order = torch_generator(seed, "target", "order")
    batches = max(1, len(learn) // config.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.epochs * batches, pct_start=0.2
    )
    least, best, kept = float("inf"), copy.deepcopy(model.state_dict()), 0
    with progress_bar(f"training the {table.name} target", config.epochs) as advance:
        for epoch in range(1, config.epochs + 1):
            model.train()
            for batch in learn[torch.randperm(len(learn), generator=order)].tensor_split(batches):
                optimizer.zero_grad()
                F.binary_cross_entropy_with_logits(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            loss = float(F.binary_cross_entropy_with_logits(_logits(model, x[choose]), y[choose]))
            if loss < least:
                least, best, kept = loss, copy.deepcopy(model.state_dict()), epoch
            advance(1, f"validation loss {loss:.4f}")
    model.load_state_dict(best)
    model.eval().requires_grad_(False)
    report = Report(
        auc_train=roc_auc(y[learn], _logits(model, x[learn])),
        auc_validation=roc_auc(y[choose], _logits(model, x[choose])),
        auc_test=roc_auc(table.y_test, _logits(model, torch.from_numpy(table.x_test))),
        epoch=kept,
        seconds=time.perf_counter() - began,
        seed=seed,
    )
    return Target(model, report)


def _logits(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    with torch.no_grad():
        return torch.cat([model(x[start : start + 8192]) for start in range(0, len(x), 8192)])


def _load_or_train(
    kind: str, new: Callable[[Table, int, TargetConfig], M], table: Table, folder: Path, seed: int, config: TargetConfig
) -> Target[M]:
    name = f"{kind}-{_key(kind, table, seed, config)}"
    weights, note = folder / f"{name}.safetensors", folder / f"{name}.json"
    model = new(table, seed, config)
    if weights.exists() and note.exists():
        try:
            return _read(model, weights, note)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            warnings.warn(f"{weights} or its .json is damaged ({error}); the target is trained again", stacklevel=3)
            model = new(table, seed, config)
    target = _train(model, table, seed, config)
    _keep(target, weights, note)
    return target


def _key(kind: str, table: Table, seed: int, config: TargetConfig) -> str:
    """A hash of all the result depends on: kind, settings, seed and data."""
    settings = {"form": 1, "kind": kind, "seed": seed, "config": asdict(config), "names": table.feature_names}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for array in (table.x_train, table.y_train, table.x_test, table.y_test):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:20]


def _read(model: M, weights: Path, note: Path) -> Target[M]:
    facts: dict[str, Any] = json.loads(note.read_text())
    if file_sha256(weights) != facts["sha256"]:
        raise ValueError("the weights are not those that were written")
    model.load_state_dict(load_file(weights))
    return Target(model.eval().requires_grad_(False), Report(**facts["report"]))


def _keep(target: Target[M], weights: Path, note: Path) -> None:
    """Weights first, then the note with their checksum, which makes them count; each is renamed into place."""
    weights.parent.mkdir(parents=True, exist_ok=True)
    temporary = weights.with_name(f"{weights.name}.{os.getpid()}.new")
    save_file({name: tensor.contiguous() for name, tensor in target.model.state_dict().items()}, temporary)
    facts = {"sha256": file_sha256(temporary), "report": asdict(target.report)}
    os.replace(temporary, weights)
    temporary.write_text(json.dumps(facts, indent=2) + "\n")
    os.replace(temporary, note)
