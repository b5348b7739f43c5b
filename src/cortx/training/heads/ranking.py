"""The ranking head: which player stands at which position."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.training.heads.head import Head


class RankingHead(Head):
    """Logits (rows, positions, players, outputs); position 0 holds the smallest value, ties by column.

    Cross entropy at every position (paper Sec. 4.2). `ranking` turns logits into a valid permutation.
    """

    @staticmethod
    def n_logits(n_players: int) -> int:
        return n_players**2

    def forward(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        del active
        return self.logits(latent, total).view(-1, self.n_players, self.n_players, self.n_outputs)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        order = torch.argsort(labels, dim=1, stable=True)  # (rows, positions, outputs)
        return F.cross_entropy(output.transpose(1, 2), order)

    def score(self, output: Tensor, labels: Tensor) -> Tensor:
        """One minus Rank ACC of the likeliest player at every position: cross entropy overfits long before it does."""
        order = torch.argsort(labels, dim=1, stable=True)
        hits = (output.argmax(dim=2) == order).to(output.dtype)
        weights = 1 / torch.arange(self.n_players, 0, -1, dtype=output.dtype, device=output.device)
        return 1 - (hits * (weights / weights.sum())[:, None]).sum(dim=1).mean()

    @staticmethod
    def ranking(output: Tensor) -> Tensor:
        """Players from the highest value to the lowest, (rows, players, outputs): always a permutation.

        The most certain pair of position and player is settled first, then the most certain of the rest.
        """
        rows, positions, players, outputs = output.shape
        score = torch.log_softmax(output, dim=2).permute(0, 3, 1, 2).reshape(rows * outputs, positions, players)
        score = score.clone()
        ascending = torch.empty(rows * outputs, positions, dtype=torch.int64, device=output.device)
        everyone = torch.arange(rows * outputs, device=output.device)
        for _ in range(positions):
            best = score.flatten(1).argmax(dim=1)
            position, player = best // players, best % players
            ascending[everyone, position] = player
            score[everyone, position, :] = float("-inf")
            score[everyone, :, player] = float("-inf")
        return ascending.flip(1).view(rows, outputs, positions).transpose(1, 2)
