"""How far off an explanation is likely to be: learned from held-out labels, and what bounds are weighted with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from cortx.training.finetune import LabelSet
    from cortx.training.network import ExplainerNetwork

RIDGE = 1e-4
"""Share of the mean square that is added before inverting."""
FAINT = 0.05
"""A predicted value this share of the labels' scale counts as faint; below it nothing is told apart."""
SLOPE, SPREAD, BEND = 0.75, 0.3, 0.04
"""What is believed before any label: errors grow with the 0.75th power of strangeness, give or take 0.3; players and
magnitudes matter by a factor of e^0.3; the power itself changes little. A few labels move this little, many a lot."""
STEPS = 400
LEAST_STRANGE = 1e-9


class Difficulty(nn.Module):
    """Typical errors (root mean squares): of every value, (rows, players, outputs), and of a row, (rows, outputs).

    Both are log-linear in the row's strangeness h(x)' M^-1 h(x), where h is the last hidden layer of the attribution
    head and M its mean square over the training rows: the variance of a Bayesian last layer, up to a factor. It
    tells rows that the network knows from those where it guesses.
    """

    inverse: Tensor  # (hidden, hidden) M^-1
    centre: Tensor  # the mean log strangeness of the rows it was fitted on
    row: Tensor  # (3, outputs) intercept, slope and bend
    value: Tensor  # (4, outputs) the same, and the exponent of the predicted magnitude
    player: Tensor  # (players, outputs) log factors

    def __init__(self, hidden: int, n_players: int, n_outputs: int) -> None:
        super().__init__()
        self.register_buffer("inverse", torch.eye(hidden))
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("row", torch.zeros(3, n_outputs))
        self.register_buffer("value", torch.zeros(4, n_outputs))
        self.register_buffer("player", torch.zeros(n_players, n_outputs))

    def strangeness(self, hidden: Tensor) -> Tensor:
        """log h' M^-1 h, (rows,); in float64, because its parts cancel."""
        wide = hidden.double()
        square = ((wide @ self.inverse.double()) * wide).sum(dim=1)
        return square.clamp(min=LEAST_STRANGE).log().to(hidden.dtype)

    def forward(self, hidden: Tensor, values: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """From the last hidden layer (rows, hidden), predicted values (rows, players, outputs) and labels' scale."""
        by_value, by_row = _log_sizes(
            self.strangeness(hidden) - self.centre, (values / scale).abs(), self.row, self.value, self.player
        )
        return by_value.exp() * scale, by_row.exp() * scale


def _log_sizes(strange: Tensor, magnitude: Tensor, row: Tensor, value: Tensor, player: Tensor) -> tuple[Tensor, Tensor]:
    """log typical errors over the labels' scale: (rows, players, outputs) and (rows, outputs)."""
    powers = torch.stack([torch.ones_like(strange), strange, strange.square()], dim=1)  # (rows, 3)
    by_value = (powers @ value[:3])[:, None, :] + value[3] * (magnitude + FAINT).log() + player
    return by_value, powers @ row


def fit_difficulty(network: ExplainerNetwork, known: Sequence[LabelSet], held_out: LabelSet, errors: Tensor) -> None:
    """Learns from held-out labels where the network errs, in place; `errors` are their standard errors.

    `known` are the sets it was trained on (rows, their masked copies), each counted equally.
    """
    with torch.no_grad():
        answer = network.in_parts(held_out.codes, held_out.total)
    hidden, values, scale = answer.hidden, answer.values, network.attribution.label_scale
    difficulty = network.difficulty
    with torch.no_grad():
        square = torch.stack([_mean_square(network, labels) for labels in known]).mean(dim=0)
        ridge = RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype, device=square.device)
        difficulty.inverse.copy_(torch.linalg.inv(square + ridge))
        strange = difficulty.strangeness(hidden)
        difficulty.centre.copy_(strange.mean())
        residual = ((held_out.labels - values) / scale).abs()
        noise = errors.to(scale) / scale
        away = residual.square().sum(dim=1).sqrt()  # (rows, outputs)
        row_noise = noise.square().sum(dim=1).sqrt()
        active = held_out.active[..., None].to(torch.float32)
        count = active.sum().clamp(min=1)
    row, value = torch.zeros_like(difficulty.row), torch.zeros_like(difficulty.value)
    row[1] = value[1] = SLOPE
    row[0] = away.mean(dim=0).clamp(min=1e-6).log()
    value[0] = ((residual * active).sum(dim=(0, 1)) / count).clamp(min=1e-6).log()
    player = torch.zeros_like(difficulty.player)
    parameters = [row.requires_grad_(), value.requires_grad_(), player.requires_grad_()]
    optimizer = torch.optim.Adam(parameters, lr=0.05)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 - step / STEPS)
        by_value, by_row = _log_sizes(strange - difficulty.centre, (values / scale).abs(), row, value, player)
        # Normal likelihood of what was seen: the explainer's error and the label's own add up in the variance.
        spread = (2 * by_value).exp() + noise.square()
        row_spread = (2 * by_row).exp() + row_noise.square()
        loss = ((spread.log() + residual.square() / spread) * active).sum() / count
        loss = 0.5 * (loss + (row_spread.log() + away.square() / row_spread).mean())
        belief = _belief(row[1], row[2], row[:0], len(residual))
        belief = belief + _belief(value[1], value[2], torch.cat([value[3:], player]), len(residual))
        optimizer.zero_grad()
        torch.autograd.backward(loss + belief)
        optimizer.step()
    with torch.no_grad():
        for buffer, fitted in zip((difficulty.row, difficulty.value, difficulty.player), parameters, strict=True):
            buffer.copy_(fitted)


def _belief(slopes: Tensor, bends: Tensor, others: Tensor, n_rows: int) -> Tensor:
    """Minus the log of the prior density, shared by the rows: the values of one row err together."""
    away = ((slopes - SLOPE) / SPREAD).square().sum() + (bends / BEND).square().sum() + (others / SPREAD).square().sum()
    return away / (2 * n_rows)


@torch.no_grad()
def _mean_square(network: ExplainerNetwork, labels: LabelSet) -> Tensor:
    """The mean of h h', (hidden, hidden), in float64."""
    total: Tensor | float = 0.0
    for part in labels.parts(network.rows_at_a_time):
        hidden = network.hidden(part.codes, part.total).double()
        total = total + hidden.T @ hidden
    assert isinstance(total, Tensor)
    return total / len(labels)
