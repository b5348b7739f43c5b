"""Contrastive pre-training of the encoder: no labels, only the model's outputs on masked rows."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.games import Game, Rows
from cortx.progress import progress_bar
from cortx.seeding import torch_generator
from cortx.training.checkpoint import Checkpoint, pack, unpack
from cortx.training.contrastive_loss import Similarity, contrastive_loss
from cortx.training.network import ExplainerNetwork
from cortx.training.positives import POSITIVES, Positives, choose_positives

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PretrainConfig:
    """The contrastive stage (paper Sec. 3.1 and 3.2)."""

    epochs: int = 20
    rounds: int = 1
    """How often positives are drawn anew; each round costs rows x n_positives evaluations."""
    positives: Positives = "compact"
    n_positives: int = 16
    """The paper's m: masked copies of a row to choose from."""
    keep_probability: float = 0.5
    """The paper's lambda: the chance of a player to stay in a masked copy."""
    temperature: float = 0.1
    """The paper's tau."""
    similarity: Similarity = "cosine"
    batch_size: int = 1024
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        if self.positives not in POSITIVES:
            raise InputError(f"positives must be one of {', '.join(map(repr, POSITIVES))}, got {self.positives!r}")
        if self.epochs < 0 or self.rounds < 1 or self.n_positives < 1 or self.batch_size < 2:
            raise InputError("pre-training needs epochs >= 0, rounds >= 1, n_positives >= 1 and batch_size >= 2")
        if not 0 < self.keep_probability < 1 or self.temperature <= 0 or self.learning_rate <= 0:
            raise InputError("pre-training needs 0 < keep_probability < 1, temperature > 0 and learning_rate > 0")


def pretrain(
    network: ExplainerNetwork,
    game: Game,
    rows: Rows,
    outputs: Array,
    config: PretrainConfig,
    *,
    seed: int,
    checkpoint: Checkpoint,
    show: bool | None = None,
) -> list[float]:
    """Trains the encoder in place; returns the loss of each epoch. `outputs` are f(x), (rows, outputs)."""
    history: list[float] = []
    if config.epochs == 0:
        return history
    device = network.player_of.device
    matrix = torch.from_numpy(rows.table.matrix)
    optimizer = torch.optim.Adam(network.encoder.parameters(), lr=config.learning_rate)
    kept = checkpoint.load("pretrain")
    if kept is not None:
        unpack("encoder", kept[0], network.encoder, optimizer)
        history = list(kept[1]["history"])
    saved = monotonic()
    positives: torch.Tensor | None = None
    total = torch.from_numpy(outputs - game.base_values).to(torch.float32)
    n_batches = max(1, len(rows) // config.batch_size)
    with progress_bar("pre-training", len(rows) * (config.rounds + config.epochs), show=show) as advance:
        advance(len(rows) * len(history), "")
        for epoch in range(len(history), config.epochs):
            round_ = epoch * config.rounds // config.epochs
            if positives is None or round_ != (epoch - 1) * config.rounds // config.epochs:
                kept_players = choose_positives(
                    game, rows, outputs, how=config.positives, count=config.n_positives,
                    keep=config.keep_probability, seed=seed, round_=round_, advance=advance,
                )  # fmt: skip
                positives = _masked(matrix, kept_players, game, seed, round_)
            order = torch.randperm(len(rows), generator=torch_generator(seed, "pretrain", epoch))
            losses = 0.0
            for batch in torch.tensor_split(order, n_batches):
                loss = contrastive_loss(
                    network.latent(matrix[batch].to(device), total[batch].to(device)),
                    network.latent(positives[batch].to(device), total[batch].to(device)),
                    config.temperature,
                    config.similarity,
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses += float(loss.detach()) * len(batch) / len(rows)
            history.append(losses)
            advance(len(rows), f"loss {losses:.3f}")
            if monotonic() - saved > checkpoint.every_seconds:
                checkpoint.save("pretrain", pack("encoder", network.encoder, optimizer), history=history)
                saved = monotonic()
    checkpoint.save("pretrain", pack("encoder", network.encoder, optimizer), history=history)
    return history


def _masked(matrix: torch.Tensor, kept: npt.NDArray[np.bool_], game: Game, seed: int, round_: int) -> torch.Tensor:
    """The chosen masked copies, (rows, columns); a background game fills each row from one background row."""
    generator = torch_generator(seed, "background", round_)
    pick = torch.randint(len(game.absent), (len(matrix),), generator=generator)
    absent = torch.from_numpy(game.absent)[pick]
    return torch.where(torch.from_numpy(game.players.columns(kept)), matrix, absent)
