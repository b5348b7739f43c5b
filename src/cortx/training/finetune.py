"""Training of a head on labels, alone or together with the encoder."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.network import ExplainerNetwork

Loss = Literal["own", "distance"]


@dataclass(frozen=True)
class FinetuneConfig:
    """The labelled stage."""

    steps: int = 3_000
    batch_size: int = 512
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    tune_encoder: bool = True
    """The paper freezes the encoder."""
    loss: Loss = "distance"
    """"own" is the head's loss as the paper writes it; "distance" the mean l2 distance (attribution head only)."""
    weight_average: float = 0.0
    """Decay of the running average of the weights, which is what is kept; 0 keeps the weights themselves."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    validations: int = 30
    """How often the validation labels are looked at; the best moment is kept."""

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size, self.validations) < 1 or self.learning_rate <= 0:
            raise InputError("fine-tuning needs steps, batch_size, validations >= 1 and learning_rate > 0")
        if self.schedule not in ("one-cycle", "constant") or self.loss not in ("own", "distance"):
            raise InputError("schedule must be 'one-cycle' or 'constant', loss 'own' or 'distance'")
        if not 0 <= self.weight_average < 1:
            raise InputError(f"weight_average must lie in [0, 1), got {self.weight_average}")


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labelled rows: codes (rows, columns), total (rows, outputs), active (rows, players), labels (rows, players, outputs)."""

    codes: Tensor
    total: Tensor
    active: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, index: Tensor) -> LabelSet:
        return LabelSet(self.codes[index], self.total[index], self.active[index], self.labels[index])


def finetune(
    network: ExplainerNetwork,
    head_name: str,
    train: LabelSet,
    validation: LabelSet,
    config: FinetuneConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> list[float]:
    """Trains one head (and the encoder, if the recipe says so) in place; returns the validation losses.

    What is kept is the moment with the smallest validation loss.
    """
    stage = f"finetune-{head_name}"
    trained = torch.nn.ModuleDict({"head": network.heads[head_name]})
    if config.tune_encoder:
        trained["encoder"] = network.encoder
    optimizer = torch.optim.AdamW(trained.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    network.head(head_name).set_scales(train.total, train.labels)
    average = copy.deepcopy(trained)
    best = copy.deepcopy(trained)
    generator = torch_generator(seed, stage)
    history: list[float] = []
    step = 0
    kept = checkpoint.load(stage)
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        unpack("average", kept[0], average)
        unpack("best", kept[0], best)
        generator.set_state(kept[0]["generator"])
        history, step = list(kept[1]["history"]), int(kept[1]["step"])

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), **pack("average", average), **pack("best", best)}
        checkpoint.save(stage, {**tensors, "generator": generator.get_state()}, history=history, step=step)

    saved = monotonic()
    every = max(1, config.steps // config.validations)
    with progress_bar(f"training the {head_name} head", config.steps, show=show) as advance:
        advance(step, "")
        while step < config.steps:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * _rate(step / config.steps, config.schedule)
            batch = train.take(torch.randint(len(train), (min(config.batch_size, len(train)),), generator=generator))
            loss = _loss(network, head_name, batch, config.loss)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.parameters(), config.clip)
            optimizer.step()
            step += 1
            _follow(average, trained, min(config.weight_average, step / (step + 10)))
            if step % every == 0 or step == config.steps:
                value = _validate(network, head_name, trained, average, validation, config.loss)
                if not history or value < min(history):
                    best.load_state_dict(average.state_dict())
                history.append(value)
                advance(0, f"validation {value:.4f}")
                if monotonic() - saved > checkpoint.every_seconds:
                    keep()
                    saved = monotonic()
            advance(1, f"validation {history[-1]:.4f}" if history else "")
    keep()
    trained.load_state_dict(best.state_dict())
    return history


def _rate(progress: float, schedule: str) -> float:
    """One cycle: up over the first tenth, then down a cosine to a thousandth."""
    if schedule == "constant":
        return 1.0
    if progress < 0.1:
        return 0.04 + 0.96 * progress / 0.1
    return 0.001 + 0.999 * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * (progress - 0.1) / 0.9))))


def _loss(network: ExplainerNetwork, head_name: str, batch: LabelSet, loss: Loss) -> Tensor:
    head = network.head(head_name)
    output = head(network.latent(batch.codes, batch.total), batch.total, batch.active)
    if loss == "own":
        return head.loss(output, batch.labels)
    return distance_loss(output, batch.labels, head.label_scale)


def distance_loss(output: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """The mean l2 distance over players, (rows, players, outputs), rounded off below a twentieth of the scale."""
    squared = ((output - labels) / scale).square().sum(dim=1)
    return (squared + 0.05**2).sqrt().mean()


@torch.no_grad()
def _follow(average: torch.nn.Module, trained: torch.nn.Module, decay: float) -> None:
    for kept, new in zip(average.parameters(), trained.parameters(), strict=True):
        kept.lerp_(new, 1 - decay)


@torch.no_grad()
def _validate(
    network: ExplainerNetwork,
    head_name: str,
    trained: torch.nn.Module,
    average: torch.nn.Module,
    validation: LabelSet,
    loss: Loss,
) -> float:
    """The validation loss of the averaged weights."""
    current = copy.deepcopy(trained.state_dict())
    trained.load_state_dict(average.state_dict())
    parts: Sequence[Tensor] = torch.arange(len(validation)).split(4096)
    total = sum(float(_loss(network, head_name, validation.take(part), loss)) * len(part) for part in parts)
    trained.load_state_dict(current)
    return total / len(validation)
