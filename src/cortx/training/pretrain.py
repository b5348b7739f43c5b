"""Pre-training of the encoder on every row: contrastive, and on rough labels where the recipe asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.games import Game, Rows
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.contrastive_loss import Similarity, contrastive_loss
from cortx.training.finetune import ELSEWHERE, LabelSet, part_of_mean, rate
from cortx.training.network import ExplainerNetwork
from cortx.training.parallel import ALONE, Processes
from cortx.training.positives import POSITIVES, Positives, Values, choose_positives
from cortx.training.step import Step, make_optimizer, set_rate

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PretrainConfig:
    """The stage without precise labels (paper Sec. 3.1 and 3.2)."""

    steps: int = 1_000
    rounds: int = 1
    """How often positives are drawn anew; each round costs rows x n_positives evaluations."""
    positives: Positives = "compact"
    n_positives: int = 8
    """The paper's m: masked copies of a row to choose from."""
    keep_probability: float = 0.5
    """The paper's lambda: the chance of a player to stay in a masked copy."""
    temperature: float = 0.1
    """The paper's tau."""
    similarity: Similarity = "cosine"
    contrastive_weight: float = 1.0
    """Weight of the contrastive loss beside that of rough labels."""
    rough_pairs: int = 1
    """Antithetic pairs of permutations that give every row a rough, unbiased label, where labels are given or counted;
    0 (the paper) leaves them out."""
    most_rows: int = 50_000
    """A larger table is pre-trained on a random part of this size."""
    batch_size: int = 256
    learning_rate: float = 2e-3
    schedule: Literal["one-cycle", "constant"] = "one-cycle"

    def __post_init__(self) -> None:
        if self.positives not in POSITIVES:
            raise InputError(f"positives must be one of {', '.join(map(repr, POSITIVES))}, got {self.positives!r}")
        if self.steps < 0 or min(self.rounds, self.n_positives) < 1 or min(self.batch_size, self.most_rows) < 2:
            raise InputError("pre-training needs steps >= 0, rounds, n_positives >= 1 and batch_size, most_rows >= 2")
        if (
            not 0 < self.keep_probability < 1
            or self.temperature <= 0
            or self.learning_rate <= 0
            or self.rough_pairs < 0
        ):
            raise InputError(
                "pre-training needs 0 < keep_probability < 1, temperature > 0, learning_rate > 0, rough_pairs >= 0"
            )


class Batch(NamedTuple):
    """This process's share of a batch of `whole` rows: anchors and positives (rows, columns), and rough labels."""

    whole: int
    anchors: Tensor
    positives: Tensor
    labels: LabelSet | None = None


class Feed(Protocol):
    """Where batches come from. Asking it may ask the model."""

    even: bool
    """Whether all batches have the same shapes."""
    labelled: bool
    """Whether they come with rough labels."""

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        """The batch of a step; steps are asked for one after the other, from any one on."""
        ...


def pretrain(
    network: ExplainerNetwork,
    game: Game,
    feed: Feed,
    config: PretrainConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
    together: Processes = ALONE,
) -> tuple[list[float], int]:
    """Trains the encoder in place (with rough labels, the attribution head too).

    Returns the mean loss by hundreds, and the evaluations spent, those before a kill and of other processes included.
    """
    if config.steps == 0:
        return [], 0
    spent = 0
    trained = torch.nn.ModuleDict({"encoder": network.encoder})
    if feed.labelled:
        trained["head"] = network.heads["attribution"]
    optimizer = make_optimizer(trained, config.learning_rate)
    generator = torch_generator(seed, "pretrain")
    losses: list[float | Tensor] = []
    kept = checkpoint.load("pretrain")
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        generator.set_state(kept[0]["generator"])
        losses, spent = list(kept[1]["losses"]), int(kept[1]["evaluations"])
    together.same(f"pretrain {len(losses)}", ELSEWHERE)
    together.follow_first(trained)

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), "generator": generator.get_state()}
        checkpoint.save("pretrain", tensors, losses=[float(one) for one in losses], evaluations=spent)

    def loss(whole: int, anchors: Tensor, matches: Tensor, *labels: Tensor) -> Tensor:
        latent = network.latent(anchors)
        contrast = contrastive_loss(
            latent, network.latent(matches), config.temperature, config.similarity, together, whole
        )
        result = config.contrastive_weight * contrast
        if labels:
            about, head = LabelSet(*labels), network.head("attribution")
            error = head.loss(head.for_loss(latent, about.total, about.active), about.labels)
            result = result + part_of_mean(error, len(latent), whole)
        return result

    network.eval()
    trained.train()
    batch: Batch
    do = Step(
        lambda *tensors: loss(batch.whole, *tensors), optimizer, record=network.small and feed.even, together=together
    )
    saved = monotonic()
    with progress_bar("pre-training", config.steps, show=show) as advance:
        advance(len(losses), "")
        for step in range(len(losses), config.steps):
            before = game.evaluations
            batch = feed.batch(step, generator)
            spent += together.total(game.evaluations - before)
            set_rate(optimizer, config.learning_rate * rate(step / config.steps, config.schedule))
            labels = () if batch.labels is None else batch.labels.tensors
            losses.append(do([batch.anchors, batch.positives, *labels]).clone())
            advance(1, f"{spent:,} evaluations")
            if monotonic() - saved > checkpoint.every_seconds:
                keep()
                saved = monotonic()
    keep()
    network.eval()
    numbers = [float(one) for one in losses]
    history = [float(np.mean(numbers[first : first + 100])) for first in range(0, len(numbers), 100)]
    return history, spent


class TableFeed:
    """Batches of a table in memory. `outputs` are f(x), (rows, outputs); `rough` are labels of the same rows.

    `asked` gives v(S) of rows and coalitions in place of the game, to choose positives by.
    """

    even = True

    def __init__(
        self,
        network: ExplainerNetwork,
        game: Game,
        rows: Rows,
        outputs: Array,
        rough: LabelSet | None,
        config: PretrainConfig,
        seed: int,
        together: Processes = ALONE,
        asked: Values | None = None,
    ) -> None:
        self.game, self.rows, self.outputs, self.rough, self.asked = game, rows, outputs, rough, asked
        self.config, self.seed, self.together = config, seed, together
        self.labelled = rough is not None
        self.matrix = torch.from_numpy(rows.table.matrix).to(network.device)
        self._positives, self._drawn = self.matrix, -1
        self._kept: Any = None
        """Instead of masked copies of images, which would take as much memory as the images: their players."""

    def batch(self, step: int, generator: torch.Generator) -> Batch:
        config, size = self.config, min(self.config.batch_size, len(self.rows))
        round_ = step * config.rounds // config.steps
        if round_ != self._drawn:
            self._draw(round_)
        drawn = torch.randperm(len(self.rows), generator=generator)[:size]
        chosen = drawn.to(self.matrix.device)[self.together.share(size)]
        labels = None if self.rough is None else self.rough.take(chosen)
        anchors = self.matrix[chosen]
        if self._kept is None:
            return Batch(size, anchors, self._positives[chosen], labels)
        kept = torch.from_numpy(self._kept[drawn[self.together.share(size)].numpy()])
        return Batch(size, anchors, self.game.masked_images(anchors, kept.to(anchors.device)), labels)

    def _draw(self, round_: int) -> None:
        """One masked copy of every row for this round."""
        asked = self.config, self.seed, round_, self.together, self.asked
        if self.game.of_images:
            self._kept = _kept_players(self.game, self.rows, self.outputs, *asked)
        else:
            self._positives = _positives(self.game, self.rows, self.outputs, self.matrix, *asked)
        self._drawn = round_


def _positives(
    game: Game,
    rows: Rows,
    outputs: Array,
    matrix: Tensor,
    config: PretrainConfig,
    seed: int,
    round_: int,
    together: Processes = ALONE,
    asked: Values | None = None,
) -> Tensor:
    """One masked copy of every row, (rows, columns)."""
    pick = torch.randint(len(game.absent), (len(rows),), generator=torch_generator(seed, "background", round_))
    kept = _kept_players(game, rows, outputs, config, seed, round_, together, asked)
    return masked_copies(game, matrix, kept, pick)


def _kept_players(
    game: Game,
    rows: Rows,
    outputs: Array,
    config: PretrainConfig,
    seed: int,
    round_: int,
    together: Processes,
    asked: Values | None,
) -> Any:
    """The players of that copy, (rows, players); each process asks the model about its share of the rows."""
    whole = len(rows)
    if together.several:
        own = np.arange(whole)[together.share(whole)]
        rows, outputs = rows.take(own), outputs[own]
    kept = positives_of(game, rows, outputs, config, seed=seed, round_=round_, asked=asked)
    return together.gather_array(kept, whole)


def positives_of(
    game: Game,
    rows: Rows,
    outputs: Array,
    config: PretrainConfig,
    *,
    seed: int,
    round_: int,
    asked: Values | None = None,
) -> Any:
    """The kept players of one masked copy for every row, as the settings say, (rows, players)."""
    return choose_positives(
        game,
        rows,
        outputs,
        how=config.positives,
        count=config.n_positives,
        keep=config.keep_probability,
        seed=seed,
        round_=round_,
        asked=asked,
    )


def masked_copies(game: Game, matrix: Tensor, kept: Any, pick: Tensor) -> Tensor:
    """Masked copies of rows, (rows, columns); a background game fills each row from its own pick of background rows."""
    if game.of_images:
        return game.masked_images(matrix, torch.from_numpy(kept).to(matrix.device))
    present, absent = torch.from_numpy(game.players.columns(kept)), torch.from_numpy(game.absent)[pick]
    return torch.where(present.to(matrix.device), matrix, absent.to(matrix.device))
