"""Training of a head on labels, alone or together with the encoder."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.heads import Head
from cortx.training.network import ExplainerNetwork
from cortx.training.parallel import ALONE, Processes
from cortx.training.step import Step, make_optimizer, set_rate

Loss = Literal["own", "distance"]
ELSEWHERE = "the processes found different checkpoints; give a folder that all of them see, and start them again"


@dataclass(frozen=True)
class FinetuneConfig:
    """The labelled stage."""

    steps: int = 6_000
    batch_size: int = 256
    view_share: float = 0.5
    """Share of a batch that are masked copies whose labels came free with an enumeration, where there are any."""
    rough_share: float = 0.25
    """Share of a batch that are rows with rough labels, where there are any."""
    rough_weight: float = 0.1
    """Weight of their squared error at the start; it falls to zero over the first 70% of the steps."""
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    tune_encoder: bool = True
    """The paper freezes the encoder."""
    loss: Loss = "distance"
    """"own" is the head's loss as the paper writes it; "distance" the mean l2 distance (attribution head only)."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    validations: int = 40
    """How often the validation labels are looked at; the best moment is kept."""

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size, self.validations) < 1 or self.learning_rate <= 0 or self.clip <= 0:
            raise InputError("fine-tuning needs steps, batch_size, validations >= 1, learning_rate > 0 and clip > 0")
        if self.schedule not in ("one-cycle", "constant") or self.loss not in ("own", "distance"):
            raise InputError("schedule must be 'one-cycle' or 'constant', loss 'own' or 'distance'")
        if min(self.view_share, self.rough_share, self.rough_weight) < 0 or self.view_share + self.rough_share >= 1:
            raise InputError("view_share and rough_share must not be negative and leave room for the labels")


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Labelled rows.

    codes (rows, columns), total (rows, outputs), active (rows, players), labels (rows, players, outputs); where the
    network has a student's gradients, `seen` is what it sees of them (`ExplainerNetwork.seen`).
    """

    codes: Tensor
    total: Tensor
    active: Tensor
    labels: Tensor
    seen: Tensor | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        whole = (self.codes, self.total, self.active, self.labels)
        return whole if self.seen is None else (*whole, self.seen)

    def take(self, index: Tensor | slice) -> LabelSet:
        return LabelSet(*(tensor[index] for tensor in self.tensors))

    def draw(self, count: int, generator: torch.Generator) -> LabelSet:
        return self.take(torch.randint(len(self), (count,), generator=generator).to(self.codes.device))

    def parts(self, size: int) -> Iterator[LabelSet]:
        """All rows, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


def joined(first: LabelSet, second: LabelSet) -> LabelSet:
    return LabelSet(*(torch.cat(both) for both in zip(first.tensors, second.tensors, strict=True)))


def finetune(
    network: ExplainerNetwork,
    head_name: str,
    train: LabelSet,
    views: LabelSet | None,
    rough: LabelSet | None,
    validation: LabelSet,
    config: FinetuneConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
    together: Processes = ALONE,
) -> list[float]:
    """Trains one head (and the encoder, if the recipe says so) in place; returns the validation losses.

    `views` are masked copies of training rows, `rough` rows with noisy but unbiased labels. What is kept is the
    moment with the smallest validation loss. Of several processes each draws the same batch and learns from its share.
    """
    stage = f"finetune-{head_name}"
    trained = torch.nn.ModuleDict({"head": network.heads[head_name]})
    if config.tune_encoder:
        trained["encoder"] = network.encoder
    optimizer = make_optimizer(trained, config.learning_rate, config.weight_decay, betas=(0.9, 0.98))
    best = copy.deepcopy(trained)
    generator = torch_generator(seed, stage)
    history: list[float] = []
    step = 0
    kept = checkpoint.load(stage)
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        unpack("best", kept[0], best)
        generator.set_state(kept[0]["generator"])
        history, step = list(kept[1]["history"]), int(kept[1]["step"])
    together.same(f"{stage} {step}", ELSEWHERE)
    together.follow_first(trained)

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), **pack("best", best), "generator": generator.get_state()}
        checkpoint.save(stage, tensors, history=history, step=step)

    saved = monotonic()
    n_views = 0 if views is None else round(config.view_share * config.batch_size)
    n_rough = 0 if rough is None else round(config.rough_share * config.batch_size)
    n_labels, n_tensors = config.batch_size - n_rough, len(train.tensors)
    every = max(1, config.steps // config.validations)

    def loss(weight: Tensor, *tensors: Tensor) -> Tensor:
        batch = LabelSet(*tensors[:n_tensors])
        result = part_of_mean(head_loss(network, head_name, batch, config.loss), len(batch), n_labels)
        if len(tensors) > n_tensors:
            # Squared error: noise that is right on average must be averaged, not followed.
            noisy = LabelSet(*tensors[n_tensors:])
            rough_loss = part_of_mean(head_loss(network, head_name, noisy, "own"), len(noisy), n_rough)
            result = result + weight * rough_loss
        return result

    network.eval()  # what is not trained stays as it is, also its running means
    network.encoder.requires_grad_(config.tune_encoder)
    trained.train()
    do, do_without_rough = (
        Step(loss, optimizer, config.clip, record=network.small, together=together) for _ in range(2)
    )
    with progress_bar(f"training the {head_name} head", config.steps, show=show) as advance:
        advance(step, "")
        while step < config.steps:
            set_rate(optimizer, config.learning_rate * rate(step / config.steps, config.schedule))
            batch = train.draw(config.batch_size - n_views - n_rough, generator)
            if views is not None and n_views:
                batch = joined(batch, views.draw(n_views, generator))
            batch = batch.take(together.share(len(batch)))
            weight = config.rough_weight * max(0.0, 1 - step / (0.7 * config.steps))
            if rough is not None and n_rough and weight:
                noisy = rough.draw(n_rough, generator).take(together.share(n_rough))
                do([torch.tensor(weight), *batch.tensors, *noisy.tensors])
            else:
                do_without_rough([torch.tensor(0.0), *batch.tensors])
            step += 1
            if step % every == 0 or step == config.steps:
                network.eval()
                value = _validate(network, head_name, validation, config.loss, together)
                trained.train()
                if not history or value < min(history):
                    best.load_state_dict(trained.state_dict())
                history.append(value)
                if monotonic() - saved > checkpoint.every_seconds:
                    keep()
                    saved = monotonic()
            advance(1, f"validation {history[-1]:.4f}" if history else "")
    keep()
    trained.load_state_dict(best.state_dict())
    network.encoder.requires_grad_(True)
    network.eval()
    return history


def rate(progress: float, schedule: str) -> float:
    """The share of the learning rate: one cycle goes up over the first tenth, then down a cosine to a thousandth."""
    if schedule == "constant":
        return 1.0
    if progress < 0.1:
        return 0.04 + 0.96 * progress / 0.1
    return 0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * (progress - 0.1) / 0.9))


def part_of_mean(mean: Tensor, rows: int, whole: int) -> Tensor:
    """What a mean over `rows` rows adds to the mean over `whole` rows that they belong to."""
    if rows == whole:
        return mean
    return mean * (rows / whole) if rows else torch.zeros((), device=mean.device, requires_grad=True)


def head_loss(network: ExplainerNetwork, head_name: str, batch: LabelSet, loss: Loss) -> Tensor:
    head, output = _answer(network, head_name, batch)
    return head.loss(output, batch.labels) if loss == "own" else distance_loss(output, batch.labels, head.label_scale)


def _answer(network: ExplainerNetwork, head_name: str, batch: LabelSet) -> tuple[Head, Tensor]:
    head: Head = network.head(head_name)
    return head, network.for_loss(head_name, batch.codes, batch.total, batch.active, batch.seen)


def distance_loss(output: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """The mean l2 distance over players, (rows, players, outputs), rounded off below a twentieth of the scale."""
    squared = ((output - labels) / scale).square().sum(dim=1)
    return (squared + 0.05**2).sqrt().mean()


@torch.no_grad()
def _validate(
    network: ExplainerNetwork, head_name: str, validation: LabelSet, loss: Loss, together: Processes
) -> float:
    total = 0.0
    for part in validation.take(together.share(len(validation))).parts(min(4096, network.rows_at_a_time)):
        head, output = _answer(network, head_name, part)
        score = head.score(output, part.labels)
        if loss == "distance":
            score = distance_loss(output, part.labels, head.label_scale)
        total += float(score) * len(part)
    return together.sum(total) / len(validation)
