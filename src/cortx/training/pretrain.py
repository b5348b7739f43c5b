"""Pre-training of the encoder on every row: contrastive, and on rough labels where the recipe asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Literal

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
from cortx.training.finetune import LabelSet, rate
from cortx.training.network import ExplainerNetwork
from cortx.training.positives import POSITIVES, Positives, choose_positives
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
    """Antithetic pairs of permutations that give every row a rough, unbiased label; 0 (the paper) leaves them out."""
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


def pretrain(
    network: ExplainerNetwork,
    game: Game,
    rows: Rows,
    outputs: Array,
    rough: LabelSet | None,
    config: PretrainConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> tuple[list[float], int]:
    """Trains the encoder in place (with rough labels, the attribution head too).

    `outputs` are f(x), (rows, outputs); `rough` are labels of the same rows. Returns the mean loss by hundreds,
    and the evaluations spent, those before a kill included.
    """
    if config.steps == 0:
        return [], 0
    start, earlier = game.evaluations, 0
    trained = torch.nn.ModuleDict({"encoder": network.encoder})
    if rough is not None:
        trained["head"] = network.heads["attribution"]
    optimizer = make_optimizer(trained, config.learning_rate)
    generator = torch_generator(seed, "pretrain")
    losses: list[float | Tensor] = []
    kept = checkpoint.load("pretrain")
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        generator.set_state(kept[0]["generator"])
        losses, earlier = list(kept[1]["losses"]), int(kept[1]["evaluations"])

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), "generator": generator.get_state()}
        checkpoint.save(
            "pretrain", tensors, losses=[float(one) for one in losses], evaluations=earlier + game.evaluations - start
        )

    def loss(anchors: Tensor, matches: Tensor, *labels: Tensor) -> Tensor:
        latent = network.latent(anchors)
        contrast = contrastive_loss(latent, network.latent(matches), config.temperature, config.similarity)
        result = config.contrastive_weight * contrast
        if labels:
            about, head = LabelSet(*labels), network.head("attribution")
            result = result + head.loss(head.for_loss(latent, about.total, about.active), about.labels)
        return result

    network.eval()
    trained.train()
    do = Step(loss, optimizer, record=network.small)
    saved = monotonic()
    matrix = torch.from_numpy(rows.table.matrix).to(network.device)
    size = min(config.batch_size, len(rows))
    positives, drawn = matrix, -1
    with progress_bar("pre-training", config.steps, show=show) as advance:
        advance(len(losses), "")
        for step in range(len(losses), config.steps):
            round_ = step * config.rounds // config.steps
            if round_ != drawn:
                positives, drawn = _positives(game, rows, outputs, matrix, config, seed, round_), round_
            set_rate(optimizer, config.learning_rate * rate(step / config.steps, config.schedule))
            batch = torch.randperm(len(rows), generator=generator)[:size].to(network.device)
            labels = () if rough is None else rough.take(batch).tensors
            losses.append(do([matrix[batch], positives[batch], *labels]).clone())
            advance(1, f"{game.evaluations:,} evaluations")
            if monotonic() - saved > checkpoint.every_seconds:
                keep()
                saved = monotonic()
    keep()
    network.eval()
    numbers = [float(one) for one in losses]
    history = [float(np.mean(numbers[first : first + 100])) for first in range(0, len(numbers), 100)]
    return history, earlier + game.evaluations - start


def _positives(
    game: Game, rows: Rows, outputs: Array, matrix: Tensor, config: PretrainConfig, seed: int, round_: int
) -> Tensor:
    """One masked copy of every row, (rows, columns); a background game fills each row from one background row."""
    kept = choose_positives(
        game,
        rows,
        outputs,
        how=config.positives,
        count=config.n_positives,
        keep=config.keep_probability,
        seed=seed,
        round_=round_,
    )
    pick = torch.randint(len(game.absent), (len(rows),), generator=torch_generator(seed, "background", round_))
    if game.of_images:
        return game.masked_images(matrix, torch.from_numpy(kept).to(matrix.device))
    present, absent = torch.from_numpy(game.players.columns(kept)), torch.from_numpy(game.absent)[pick]
    return torch.where(present.to(matrix.device), matrix, absent.to(matrix.device))
