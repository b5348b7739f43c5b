"""Training of an image explainer on a stream: noisy but unbiased labels for every image, fresh in every step.

A precise label of an image with hundreds of parts costs a hundred thousand evaluations. A label from a few dozen is
mostly noise, but right on average, and squared error finds averages: many such labels teach more than few precise ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from cortx.errors import InputError, ModelError
from cortx.estimators.unbiased import Sizes, from_pilot, pairs_from, unbiased_values
from cortx.games import Game
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.augment import augmented
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.finetune import LabelSet, rate
from cortx.training.image_network import ImageNetwork

SCOUTS = 4
"""Rounds of labels for the images that set the scales."""
FAINTEST = 0.05
"""No output is brought to scale by less than this share of the largest one's."""


@dataclass(frozen=True)
class StreamConfig:
    """The stage that learns from fresh labels."""

    pairs: int = 16
    """Pairs of coalitions for each image of a step; an image's own output is one evaluation more."""
    batch_size: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    clip: float = 1.0
    """Largest norm of a gradient."""
    average: float = 0.998
    """What an explainer keeps is a running average of the weights, with this share of the past in every step."""
    flip: bool = True
    """Whether images are also learned from mirrored, their labels too."""
    shift: int = 2
    """Images are also learned from moved by up to so many pixels, their border continued."""
    validations: int = 10
    imitation_steps: int = 1_500
    """Where the model is no `ResNet18` whose weights the encoder could start from: steps in which the encoder learns
    to answer for masked images as the model does."""

    def __post_init__(self) -> None:
        if min(self.pairs, self.batch_size, self.validations) < 1 or self.learning_rate <= 0 or self.clip <= 0:
            raise InputError("a stream needs pairs, batch_size, validations >= 1, learning_rate > 0 and clip > 0")
        if not 0 <= self.average < 1 or self.shift < 0:
            raise InputError("a stream needs 0 <= average < 1 and shift >= 0")

    @property
    def step_evaluations(self) -> int:
        return self.batch_size * (2 * self.pairs + 1)


def train_on_stream(
    network: ImageNetwork,
    game: Game,
    matrix: Tensor,
    steps: int,
    sizes: Sizes | None,
    validation: LabelSet | None,
    config: StreamConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> tuple[list[float], int]:
    """Trains encoder and head in place on images, (images, numbers) on the network's device.

    `sizes` says how coalitions are drawn (`scout`). Returns the validation losses (the squared distance over the square
    of the labels) and the evaluations spent, those before a kill included.
    """
    device, before, earlier = network.device, game.evaluations, 0
    trained = torch.nn.ModuleDict({"encoder": network.encoder, "head": network.heads["attribution"]})
    average = copy.deepcopy(trained)
    optimizer = torch.optim.AdamW(
        trained.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    generator = torch_generator(seed, "stream", device=str(device))
    history: list[float] = []
    step = 0
    kept = checkpoint.load("stream")
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        unpack("average", kept[0], average)
        generator.set_state(kept[0]["generator"])
        history, step, earlier = list(kept[1]["history"]), int(kept[1]["step"]), int(kept[1]["evaluations"])

    def keep() -> None:
        tensors = {
            **pack("trained", trained, optimizer),
            **pack("average", average),
            "generator": generator.get_state(),
        }
        spent = earlier + game.evaluations - before
        checkpoint.save("stream", tensors, history=history, step=step, evaluations=spent)

    saved = monotonic()
    every = max(1, steps // config.validations)
    size = min(config.batch_size, len(matrix))
    everyone = torch.ones(size, network.n_players, dtype=torch.bool, device=device)
    mine, theirs = (
        [tensor.detach() for tensor in module.state_dict().values() if tensor.is_floating_point()]
        for module in (average, trained)
    )
    with progress_bar("training on fresh labels", steps, show=show) as advance:
        advance(step, "")
        while step < steps:
            network.train()
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * rate(step / steps, "one-cycle")
            index = torch.randint(len(matrix), (size,), generator=generator, device=device)
            images = augmented(
                matrix[index], network.features.schema, flip=config.flip, shift=config.shift, generator=generator
            )
            sampled = sample_pairs(game, images, config.pairs, sizes, generator)
            output = network.for_loss("attribution", images, sampled.total, everyone)
            loss = network.attribution.loss(output, sampled.labels(sizes))
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(trained.parameters(), config.clip)
            optimizer.step()
            torch._foreach_lerp_(mine, theirs, 1 - min(config.average, (1 + step) / (10 + step)))
            step += 1
            if step % every == 0 or step == steps:
                if not bool(torch.isfinite(loss)):
                    raise ModelError(f"the loss is not finite after {step} steps; check the model on masked images")
                if validation is not None:
                    history.append(_validate(network, trained, average, validation))
                if monotonic() - saved > checkpoint.every_seconds:
                    keep()
                    saved = monotonic()
            advance(1, f"{game.evaluations:,} evaluations")
    keep()
    trained.load_state_dict(average.state_dict())
    network.eval()
    return history, earlier + game.evaluations - before


def scout(network: ImageNetwork, game: Game, matrix: Tensor, config: StreamConfig, *, seed: int) -> Sizes:
    """Sets the head's scales from a few images, and finds how to draw coalitions and what their size alone says.

    The network knows the scale of its totals already.
    """
    generator = torch_generator(seed, "scout", device=str(network.device))
    index = torch.randint(
        len(matrix), (min(config.batch_size, len(matrix)),), generator=generator, device=matrix.device
    )
    # Halves that know nothing of each other: their product has the square of the labels as its mean, without the noise.
    halves = [sample_pairs(game, matrix[index], config.pairs, None, generator) for _ in range(SCOUTS)]
    labels = torch.stack([pairs.labels(None) for pairs in halves])
    first, second = labels[0::2].mean(dim=0), labels[1::2].mean(dim=0)
    head, total = network.attribution, network.total_scale
    square = (first.double() * second.double()).mean(dim=(0, 1))
    at_least = total.double() / game.n_players  # even shares
    labels_scale = torch.maximum(square.clamp(min=0).sqrt(), at_least).to(torch.float32)
    for buffer, scale in ((head.total_scale, total), (head.label_scale, labels_scale)):
        # An output that hardly ever moves must not become the only one that counts when it does.
        buffer.copy_(scale.clamp(min=FAINTEST * float(scale.max())))
    return from_pilot(
        torch.cat([pairs.coalitions for pairs in halves], dim=1),
        torch.cat([pairs.contrast for pairs in halves], dim=1),
        halves[0].total,
    )


def sample_pairs(game: Game, matrix: Tensor, pairs: int, sizes: Sizes | None, generator: torch.Generator) -> Pairs:
    """Random pairs of coalitions of each image, evaluated together with the image itself (and its own reference)."""
    n, device = len(matrix), matrix.device
    offset = torch.rand((n, 1), generator=generator, device=device)
    keys = torch.rand((n, pairs, game.n_players), generator=generator, device=device)
    chosen = pairs_from(offset, keys, None if sizes is None else sizes.mass)
    ends = torch.ones((n, 2 if game.own_reference else 1, game.n_players), dtype=torch.bool, device=device)
    ends[:, 1:] = False
    asked = torch.cat([chosen, ~chosen, ends], dim=1)
    # A GPU is not waited for: the next step is prepared while it computes, and the loss shows what is not finite.
    on_cpu = game.device.type == "cpu"
    values = game.values_of(matrix.to(game.device), asked.to(game.device), check=on_cpu).to(device)
    empty = values[:, -1] if game.own_reference else torch.from_numpy(game.base_values).to(values)
    contrast = (values[:, :pairs] - values[:, pairs : 2 * pairs]) / 2
    return Pairs(chosen, contrast, values[:, 2 * pairs] - empty)


class Pairs(NamedTuple):
    """Coalitions and their complements, evaluated."""

    coalitions: Tensor  # (images, pairs, players)
    contrast: Tensor  # (v(S) - v(complement)) / 2, (images, pairs, outputs)
    total: Tensor  # v(all) - v(none), (images, outputs)

    def labels(self, sizes: Sizes | None) -> Tensor:
        """Unbiased labels, (images, players, outputs)."""
        return unbiased_values(*self, *(sizes or ()))[0]


@torch.no_grad()
def _validate(network: ImageNetwork, trained: torch.nn.Module, average: torch.nn.Module, validation: LabelSet) -> float:
    """The squared distance of the averaged network to precise labels, over the square of these."""
    current = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    trained.load_state_dict(average.state_dict())
    network.eval()
    away = square = 0.0
    for part in validation.parts(256):
        labels = part.labels.double()
        away += float((network(part.codes, part.total).values.double() - labels).square().sum())
        square += float(labels.square().sum())
    trained.load_state_dict(current)
    return away / square if square else away
