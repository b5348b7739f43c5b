"""The whole explainer network: inputs, encoder, heads, and a stand-in for outputs nobody gave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cortx.seeding import torch_generator
from cortx.training.difficulty import Difficulty
from cortx.training.encoders import EncoderConfig, HeadConfig, make_network, mlp
from cortx.training.features import TableFeatures, differs
from cortx.training.heads import HEADS, Head
from cortx.training.heads.attribution import AttributionHead
from cortx.training.heads.ranking import RankingHead
from cortx.training.path_gradients import PathGradients

PATH_BYTES = 256 * 2**20
"""Memory for gradients of a pass."""


@dataclass(frozen=True)
class Answer:
    """What the network says of rows: values (rows, players, outputs), and a ranking if it has that head.

    `hidden` (rows, hidden) is the last hidden layer behind the values: what `Difficulty` looks at.
    """

    values: Tensor
    ranking: Tensor | None
    hidden: Tensor


class ExplainerNetwork(nn.Module):
    """Rows, (rows, columns) float64 codes, to attributions in one forward pass.

    With `path`, values are what a student's gradients guess and what the attribution head adds, which sees them too.
    """

    player_of: Tensor
    total_scale: Tensor
    path: PathGradients | None
    small = True
    """Whether the launch of its kernels takes longer than they do."""

    def __init__(
        self,
        features: TableFeatures,
        player_of: Tensor,
        n_outputs: int,
        *,
        encoder: EncoderConfig,
        head: HeadConfig,
        heads: tuple[str, ...],
        seed: int,
        path: PathGradients | None = None,
    ) -> None:
        super().__init__()
        self.features, self.path = features, path
        self.register_buffer("player_of", player_of)
        self.n_players = int(player_of.max()) + 1
        self.n_outputs = n_outputs
        self.encoder = make_network(
            encoder.kind, features.width, encoder.width, encoder.depth, encoder.latent, torch_generator(seed, "encoder")
        )
        self.register_buffer("total_scale", torch.ones(n_outputs))
        self.heads = nn.ModuleDict()
        for name in heads:
            generator = torch_generator(seed, "head", name)
            latent = encoder.latent + (path.width if path is not None and name == "attribution" else 0)
            self.heads[name] = HEADS[name](latent, self.n_players, n_outputs, head, generator)
        self.difficulty = Difficulty(self.attribution.n_hidden, self.n_players, n_outputs)
        self.total_model = mlp([features.width, 128, 128, n_outputs], torch_generator(seed, "total"))

    @property
    def device(self) -> torch.device:
        """Where it lives; codes and totals must come there."""
        return self.player_of.device

    def active(self, codes: Tensor) -> Tensor:
        """(rows, players): whether any column of a player differs from its reference."""
        changed = differs(codes, self.features.reference)
        if self.n_players == codes.shape[1]:
            return changed
        result = torch.zeros(len(codes), self.n_players, dtype=torch.int64, device=codes.device)
        return result.index_add_(1, self.player_of, changed.to(torch.int64)) > 0

    def latent(self, codes: Tensor) -> Tensor:
        """The latent explanation, (rows, latent)."""
        result: Tensor = self.encoder(self.features(codes))
        return result

    def total_inputs(self, codes: Tensor) -> Tensor:
        """What the output is guessed from."""
        inputs: Tensor = self.features(codes)
        return inputs

    def guess_total(self, codes: Tensor) -> Tensor:
        """f(x) - f(reference) as far as the network knows it, (rows, outputs)."""
        guess: Tensor = self.total_model(self.total_inputs(codes)) * self.total_scale
        return guess

    def head(self, name: str) -> Head:
        head = self.heads[name]
        assert isinstance(head, Head)
        return head

    @property
    def attribution(self) -> AttributionHead:
        head = self.heads["attribution"]
        assert isinstance(head, AttributionHead)
        return head

    def seen(self, codes: Tensor, active: Tensor) -> Tensor | None:
        """What the attribution head sees of the student's gradients; None without them. It never changes."""
        return None if self.path is None else self.path(self.features(codes), active)

    def _read(self, latent: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the attribution head reads, (rows, its latent), and what its scores are added to."""
        if self.path is None or seen is None:
            return latent, None
        return torch.cat([latent, seen], dim=1), self.path.guess(seen)

    def for_loss(self, name: str, codes: Tensor, total: Tensor, active: Tensor, seen: Tensor | None = None) -> Tensor:
        """What the loss of a head compares with labels; `seen` spares asking for the gradients again."""
        latent = self.latent(codes)
        if name != "attribution":
            return self.head(name).for_loss(latent, total, active)
        head = self.attribution
        read, guess = self._read(latent, self.seen(codes, active) if seen is None else seen)
        return head.settle_for_loss(head.hidden(read, total), total, active, guess)

    def hidden(self, codes: Tensor, total: Tensor) -> Tensor:
        """The last hidden layer behind the values, (rows, hidden)."""
        answer: Answer = self(codes, total)
        return answer.hidden

    def forward(self, codes: Tensor, total: Tensor) -> Answer:
        latent, active = self.latent(codes), self.active(codes)
        read, guess = self._read(latent, self.seen(codes, active))
        hidden = self.attribution.hidden(read, total)
        values = self.attribution.settle(hidden, total, active, guess)
        if "ranking" not in self.heads:
            return Answer(values, None, hidden)
        return Answer(values, RankingHead.ranking(self.head("ranking")(latent, total, active)), hidden)

    @property
    def rows_at_a_time(self) -> int:
        """Rows of a pass where nobody waits for gradients: what memory and caches hold."""
        row_bytes = 1 if self.path is None else self.path.row_bytes
        return max(1, min(8_192, PATH_BYTES // row_bytes))

    def in_parts(self, codes: Tensor, total: Tensor) -> Answer:
        """The answer for any number of rows."""
        size = self.rows_at_a_time
        if len(codes) <= size:
            answer: Answer = self(codes, total)
            return answer
        parts = [self(codes[i : i + size], total[i : i + size]) for i in range(0, len(codes), size)]
        rankings = [part.ranking for part in parts if part.ranking is not None]
        return Answer(
            torch.cat([part.values for part in parts]),
            torch.cat(rankings) if rankings else None,
            torch.cat([part.hidden for part in parts]),
        )

    def typical_errors(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """How far off the answer usually is: its values (rows, players, outputs), and a row's l2 (rows, outputs)."""
        errors: tuple[Tensor, Tensor] = self.difficulty(answer.hidden, answer.values, self.attribution.label_scale)
        return errors
