"""The attribution head: one score for every player."""

from __future__ import annotations

import torch
from torch import Tensor

from cortx.training.axioms import efficiency, missingness
from cortx.training.heads.head import Head


class AttributionHead(Head):
    """Scores (rows, players, outputs) that add up to the total; trained on squared error (paper Sec. 4.2).

    With `missing_is_zero`, players that equal their reference get exactly zero and the efficiency gap is spread over
    the others; without it (the paper) the gap goes to all. The loss never forces zeros: a zero label then teaches.
    """

    @staticmethod
    def n_logits(n_players: int) -> int:
        return n_players

    def scores(self, hidden: Tensor) -> Tensor:
        """Before any axiom, from the last hidden layer."""
        logits: Tensor = self.layers[-1](hidden)
        return logits.view(-1, self.n_players, self.n_outputs) * self.label_scale

    def _raised(self, hidden: Tensor, guess: Tensor | None) -> Tensor:
        scores = self.scores(hidden)
        return scores if guess is None else guess + scores

    def sharers(self, active: Tensor) -> Tensor:
        """Who shares the gap: the active players, or everyone."""
        return active if self.config.missing_is_zero else torch.ones_like(active)

    def settle(self, hidden: Tensor, total: Tensor, active: Tensor, guess: Tensor | None = None) -> Tensor:
        """The scores, added to a first guess where there is one, with the axioms applied."""
        sharers = self.sharers(active)
        return efficiency(missingness(self._raised(hidden, guess), sharers), total, sharers)

    def forward(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        return self.settle(self.hidden(latent, total), total, active)

    def for_loss(self, latent: Tensor, total: Tensor, active: Tensor) -> Tensor:
        return self.settle_for_loss(self.hidden(latent, total), total, active)

    def settle_for_loss(self, hidden: Tensor, total: Tensor, active: Tensor, guess: Tensor | None = None) -> Tensor:
        """The scores that the loss sees: they add up, but nobody is forced to zero."""
        scores = self._raised(hidden, guess)
        return efficiency(scores, total, torch.ones_like(active)) if self.config.normalize_in_loss else scores

    def loss(self, output: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """The squared distance, in scales, in the mean over rows, each by its `weights` (rows,), and outputs."""
        squares = ((output - labels) / self.label_scale).square().sum(dim=1)
        return squares.mean() if weights is None else (weights[:, None] * squares).mean()
