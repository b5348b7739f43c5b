"""Training of an image explainer on a stream: noisy but unbiased labels for every image, fresh in every step.

A precise label of an image with hundreds of parts costs a hundred thousand evaluations. A label from a few dozen is
mostly noise, but right on average, and squared error finds averages: many such labels teach more than few precise ones.
Two things keep the noise low: the network's prediction is a control variate (it is subtracted from the game before the
label is estimated, and added again afterwards), and images with large values, whose labels are the noisiest, get small
weights. Both leave the average of new labels as it is. A step on values that were learned from before is one of least
squares on these values (FastSHAP's loss): its prediction knows them already.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from cortx.errors import InputError, ModelError
from cortx.estimators.unbiased import Sizes, from_pilot, pairs_from, unbiased_values
from cortx.games import Game
from cortx.games.absent import channels_first
from cortx.images import ImageSchema
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.augment import augmented
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.finetune import LabelSet, rate
from cortx.training.image_network import ImageNetwork

SCOUTS = 4
"""Rounds of labels for the images that set the scales."""
REPLAY_BYTES = 128 * 2**20
"""Memory for the values of earlier batches, which are learned from again."""
MIRRORED, LIKE_MIRRORED = 256, 0.25
"""How many mirrored images the model is shown; such images are learned from if its outputs change by at most this share
of the outputs' variance."""
FAINTEST = 0.05
"""No output is brought to scale by less than this share of the largest one's."""


@dataclass(frozen=True)
class StreamConfig:
    """The stage that learns from fresh labels."""

    pairs: int = 16
    """Pairs of coalitions for each image of a step; an image's own output is one evaluation more."""
    batch_size: int = 512
    learning_rate: float = 1.5e-3
    weight_decay: float = 1e-2
    clip: float = 1.0
    """Largest norm of a gradient."""
    evenness: float = 0.1
    """The weight of an image is 1 / (s + evenness * mean of s), s being the mean square of its predicted values. Where
    it is large, all images count alike."""
    replays: int = 1
    """How many steps learn from values of earlier batches, for each step that asks the model for new ones."""
    average: float = 0.998
    """What an explainer keeps is a running average of the weights, with this share of the past in every step."""
    flip: bool = True
    """Whether images are also learned from mirrored, as far as the model says much the same of them
    (`fitting_augmentation`)."""
    shift: int = 2
    """Images are also learned from moved by up to so many pixels, their border continued, and by a sixteenth of their
    size at most."""
    validations: int = 10
    imitation_steps: int = 1_500
    """Where the model is no `ResNet18` whose weights the encoder could start from: steps in which the encoder learns
    to answer for masked images as the model does."""

    def __post_init__(self) -> None:
        if min(self.pairs, self.batch_size, self.validations) < 1 or self.learning_rate <= 0 or self.clip <= 0:
            raise InputError("a stream needs pairs, batch_size, validations >= 1, learning_rate > 0 and clip > 0")
        if not 0 <= self.average < 1 or min(self.shift, self.replays) < 0 or not self.evenness > 0:
            raise InputError("a stream needs 0 <= average < 1, shift and replays >= 0 and evenness > 0")

    @property
    def step_evaluations(self) -> int:
        return self.batch_size * (2 * self.pairs + 1)


def train_on_stream(
    network: ImageNetwork,
    game: Game,
    matrix: Tensor,
    batches: int,
    sizes: Sizes | None,
    validation: LabelSet | None,
    config: StreamConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> tuple[list[float], int]:
    """Trains encoder and head in place on images, (images, numbers) on the network's device.

    So many `batches` are asked for; each is followed by `config.replays` steps on earlier ones. `sizes` says how
    coalitions are drawn (`scout`). Returns the validation losses (the squared distance over the square of the labels)
    and the evaluations spent, those before a kill included.
    """
    before, earlier, head = game.evaluations, 0, network.attribution
    trained = torch.nn.ModuleDict({"encoder": network.encoder, "head": head})
    average = copy.deepcopy(trained)
    optimizer = torch.optim.AdamW(
        trained.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    labelled = LabelledBatches(network, game, matrix, batches, sizes, config, seed)
    history: list[float] = []
    step, steps = 0, batches * (1 + config.replays)
    kept = checkpoint.load("stream")
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        unpack("average", kept[0], average)
        labelled.restore(kept[0], int(kept[1]["asked"]))
        history, step, earlier = list(kept[1]["history"]), int(kept[1]["step"]), int(kept[1]["evaluations"])

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), **pack("average", average), **labelled.tensors()}
        spent = earlier + game.evaluations - before
        checkpoint.save("stream", tensors, history=history, step=step, asked=labelled.asked, evaluations=spent)

    saved = monotonic()
    every = max(1, steps // config.validations)
    everyone = torch.ones(labelled.size, network.n_players, dtype=torch.bool, device=network.device)
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
            images, sampled = labelled.fresh() if step % (1 + config.replays) == 0 else labelled.earlier(step)
            output = network.for_loss("attribution", images, sampled.total, everyone)
            known = output.detach()
            loss = head.loss(output, sampled.labels(sizes, known), image_weights(known / head.label_scale, config))
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


class LabelledBatches:
    """Batches of images with evaluated coalitions.

    The number of a batch decides its images and coalitions, so only values are kept, those of the last batches.
    """

    def __init__(
        self,
        network: ImageNetwork,
        game: Game,
        matrix: Tensor,
        batches: int,
        sizes: Sizes | None,
        config: StreamConfig,
        seed: int,
    ) -> None:
        self.game, self.matrix, self.sizes, self.config, self.seed = game, matrix, sizes, config, seed
        self.schema, self.size = network.features.schema, min(config.batch_size, len(matrix))
        self.asked = 0
        """How many batches were asked for."""
        values = self.size * (config.pairs + 1) * game.n_outputs
        room = min(batches, max(1, REPLAY_BYTES // (4 * values))) if config.replays else 1
        self._contrast = torch.zeros(room, self.size, config.pairs, game.n_outputs, device=matrix.device)
        self._total = torch.zeros(room, self.size, game.n_outputs, device=matrix.device)

    def _drawn(self, number: int) -> tuple[Tensor, Tensor]:
        """Images, (images, numbers), and coalitions of a batch, (images, pairs, players)."""
        config, device = self.config, self.matrix.device
        generator = torch_generator(self.seed, "stream", number, device=str(device))
        index = torch.randint(len(self.matrix), (self.size,), generator=generator, device=device)
        images = augmented(self.matrix[index], self.schema, flip=config.flip, shift=config.shift, generator=generator)
        return images, draw_coalitions(len(images), config.pairs, self.game.n_players, self.sizes, generator)

    def fresh(self) -> tuple[Tensor, Pairs]:
        """The next batch, which the model is asked for."""
        images, coalitions = self._drawn(self.asked)
        pairs, place = ask_pairs(self.game, images, coalitions), self.asked % len(self._total)
        self._contrast[place], self._total[place] = pairs.contrast, pairs.total
        self.asked += 1
        return images, pairs

    def earlier(self, step: int) -> tuple[Tensor, Pairs]:
        """One of the batches whose values are kept; the step decides which."""
        back = 1 + int(
            torch.randint(min(self.asked, len(self._total)), (1,), generator=torch_generator(self.seed, "replay", step))
        )
        number = self.asked - back
        images, coalitions = self._drawn(number)
        place = number % len(self._total)
        return images, Pairs(coalitions, self._contrast[place], self._total[place])

    def tensors(self) -> dict[str, Tensor]:
        """The values, for a checkpoint."""
        return {"values.contrast": self._contrast, "values.total": self._total} if self.config.replays else {}

    def restore(self, tensors: Mapping[str, Tensor], asked: int) -> None:
        if self.config.replays:
            self._contrast.copy_(tensors["values.contrast"])
            self._total.copy_(tensors["values.total"])
        self.asked = asked


def mirrored_evaluations(config: StreamConfig, n_images: int) -> int:
    """What `fitting_augmentation` asks the model."""
    return min(MIRRORED, n_images) if config.flip else 0


def fitting_augmentation(
    config: StreamConfig, game: Game, matrix: Tensor, outputs: Tensor, *, seed: int
) -> StreamConfig:
    """Turns mirroring off where the model's outputs change with it, and limits moves to a sixteenth of the image.

    A mirrored digit is no digit: what is learned from it helps nobody. The model is asked about `mirrored_evaluations`
    of the images, (images, numbers), mirrored; its `outputs` (images, outputs) for all as they are are known.
    """
    schema = game.schema
    assert isinstance(schema, ImageSchema)
    config = replace(config, shift=min(config.shift, min(schema.size) // 16))
    if not config.flip:
        return config
    count = mirrored_evaluations(config, len(matrix))
    some = torch.randperm(len(matrix), generator=torch_generator(seed, "mirrored"))[:count].to(matrix.device)
    images = channels_first(matrix[some], schema).flip(3)
    if schema.channels == "last" and not schema.grey:
        images = images.permute(0, 2, 3, 1)
    everyone = torch.ones((len(images), 1, game.n_players), dtype=torch.bool, device=game.device)
    mirrored = game.values_of(images.reshape(len(images), -1).to(game.device), everyone)[:, 0].to(outputs)
    changed = (mirrored - outputs[some]).square().sum()
    spread = (outputs[some] - outputs[some].mean(dim=0)).square().sum()
    return replace(config, flip=bool(changed <= LIKE_MIRRORED * spread))


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
    return ask_pairs(game, matrix, draw_coalitions(len(matrix), pairs, game.n_players, sizes, generator))


def draw_coalitions(images: int, pairs: int, n_players: int, sizes: Sizes | None, generator: torch.Generator) -> Tensor:
    """The smaller sides of random pairs, (images, pairs, players)."""
    device = generator.device
    offset = torch.rand((images, 1), generator=generator, device=device)
    keys = torch.rand((images, pairs, n_players), generator=generator, device=device)
    return pairs_from(offset, keys, None if sizes is None else sizes.mass)


def ask_pairs(game: Game, matrix: Tensor, chosen: Tensor) -> Pairs:
    """Coalitions of each image, (images, pairs, players), and their complements, evaluated."""
    (n, pairs, _), device = chosen.shape, matrix.device
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

    def labels(self, sizes: Sizes | None, guess: Tensor | None = None) -> Tensor:
        """Labels, (images, players, outputs); unbiased for any guess of them that was made without these pairs."""
        mass, curve = sizes or (None, None)
        return unbiased_values(*self, mass, curve, guess)[0]


def image_weights(values: Tensor, config: StreamConfig) -> Tensor:
    """The weight of each image, (images,), one in the mean, from predicted values (images, players, outputs).

    The noise of labels grows with the values, so noisy images get small weights.
    """
    squares = values.square().sum(dim=1).mean(dim=1)
    usual = squares.mean().clamp(min=torch.finfo(squares.dtype).tiny)
    weights = usual / (squares + config.evenness * usual)
    return weights / weights.mean()


@torch.no_grad()
def _validate(network: ImageNetwork, trained: torch.nn.Module, average: torch.nn.Module, validation: LabelSet) -> float:
    """The squared distance of the averaged network to precise labels, over the square of these."""
    current = {name: tensor.clone() for name, tensor in trained.state_dict().items()}
    trained.load_state_dict(average.state_dict())
    network.eval()
    away = square = 0.0
    for part in validation.parts(min(256, network.rows_at_a_time)):
        labels = part.labels.double()
        away += float((network(part.codes, part.total).values.double() - labels).square().sum())
        square += float(labels.square().sum())
    trained.load_state_dict(current)
    return away / square if square else away
