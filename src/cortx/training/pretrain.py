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
    optimizer = torch.optim.Adam(trained.parameters(), lr=config.learning_rate, fused=True)
    generator = torch_generator(seed, "pretrain")
    losses: list[float] = []
    kept = checkpoint.load("pretrain")
    if kept is not None:
        unpack("trained", kept[0], trained, optimizer)
        generator.set_state(kept[0]["generator"])
        losses, earlier = list(kept[1]["losses"]), int(kept[1]["evaluations"])

    def keep() -> None:
        tensors = {**pack("trained", trained, optimizer), "generator": generator.get_state()}
        checkpoint.save("pretrain", tensors, losses=losses, evaluations=earlier + game.evaluations - start)

    saved = monotonic()
    matrix = torch.from_numpy(rows.table.matrix)
    size = min(config.batch_size, len(rows))
    positives, drawn = torch.empty(0), -1
    with progress_bar("pre-training", config.steps, show=show) as advance:
        advance(len(losses), "")
        for step in range(len(losses), config.steps):
            round_ = step * config.rounds // config.steps
            if round_ != drawn:
                positives, drawn = _positives(game, rows, outputs, matrix, config, seed, round_), round_
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * rate(step / config.steps, config.schedule)
            batch = torch.randperm(len(rows), generator=generator)[:size]
            anchors = network.latent(matrix[batch])
            matches = network.latent(positives[batch])
            contrast = contrastive_loss(anchors, matches, config.temperature, config.similarity)
            loss = config.contrastive_weight * contrast
            if rough is not None:
                labels, head = rough.take(batch), network.head("attribution")
                loss = loss + head.loss(head.for_loss(anchors, labels.total, labels.active), labels.labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(float(loss.detach()))
            advance(1, f"loss {losses[-1]:.3f}, {game.evaluations:,} evaluations")
            if monotonic() - saved > checkpoint.every_seconds:
                keep()
                saved = monotonic()
    keep()
    history = [float(np.mean(losses[first : first + 100])) for first in range(0, len(losses), 100)]
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
    return torch.where(torch.from_numpy(game.players.columns(kept)), matrix, torch.from_numpy(game.absent)[pick])
