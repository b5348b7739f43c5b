"""The attribution head: one score for every player."""

from __future__ import annotations

import torch
from torch import Tensor

from cortx.training.axioms import efficiency, missingness
from cortx.training.heads.head import Head


class AttributionHead(Head):
    """Scores (rows, players, outputs) that add up to the total; trained on squared error (paper Sec. 4.2).

    With `missing_is_zero`, players that equal their reference get exactly zero and the gap is spread over the
    others; without it (the paper) the gap goes to all.
    """

    @staticmethod
    def n_logits(n_players: int) -> int:
        return n_players

    def scores(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        """Before normalization."""
        scores = self.logits(latent, total).view(-1, self.n_players, self.n_outputs) * self.label_scale
        return missingness(scores, active) if self.config.missing_is_zero else scores

    def sharers(self, active: Tensor) -> Tensor:
        """Who shares the gap: the active players, or everyone."""
        return active if self.config.missing_is_zero else torch.ones_like(active)

    def forward(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        return efficiency(self.scores(latent, total, active), total, self.sharers(active))

    def for_loss(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        if self.config.normalize_in_loss:
            return self.forward(latent, total, active)
        return self.scores(latent, total, active)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return ((output - labels) / self.label_scale).square().sum(dim=1).mean()
