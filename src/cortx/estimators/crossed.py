"""Shapley values of games whose values cost nothing, right on average and of known variance.

The regression of `estimators.free` is precise but biased: what it believes of interactions may be wrong. So pairs are
drawn in two halves. Each half predicts the other, and what is missed there is estimated without bias, as `Unbiased`
does from a model's values; the mean of both ways keeps the precision, and the spread of what is missed is its variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cortx.estimators.free import Interactions, odd_regression, random_pairs
from cortx.estimators.kernel_shap import expected_pairs, pair_weights, population
from cortx.seeding import stream_seed

PAIRS, PAIRS_PER_PLAYER, MOST_PAIRS = 512, 3, 2_048
"""Pairs of a half: so many, or so many for each player, but never more than the last number."""


@dataclass(frozen=True, eq=False)
class _Half:
    """One half of the pairs, and what its odd parts (v(S) - v(complement)) / 2 say; that of all players comes last."""

    values: Tensor
    """(n, pairs + 1): to the regression's Shapley values."""
    predicted: Tensor
    """(pairs of the other half, pairs + 1): to those of the other half's pairs."""
    missed: Tensor
    """(n, pairs): from what the other half's regression misses of these pairs to the Shapley values that it misses."""
    open: Tensor
    """(pairs,) the share of pairs of their size that are not drawn: where all are, nothing varies."""


@dataclass(frozen=True, eq=False)
class CrossedDesign:
    """`coalitions` (k, n): both halves with their complements, and all players last."""

    coalitions: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    halves: tuple[_Half, _Half]

    @property
    def nbytes(self) -> int:
        tensors = (part for half in self.halves for part in (half.values, half.predicted, half.missed, half.open))
        return self.coalitions.nbytes + sum(tensor.nbytes for tensor in tensors)

    def of(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Shapley values and their variance, (rows, n, outputs) float64, from v(S) - v(none), (rows, k, outputs)."""
        values = values.double()
        whole, odd, first = values[:, -1:] / 2, [], 0
        for half in self.halves:
            size = len(half.open)
            pairs = (values[:, first : first + size] - values[:, first + size : first + 2 * size]) / 2
            odd.append(torch.cat([pairs, whole], dim=1))
            first += 2 * size
        result = variance = values.new_zeros(len(values), self.coalitions.shape[1], values.shape[2])
        for number, half in enumerate(self.halves):
            other, at_other = self.halves[1 - number], odd[1 - number]
            missed = at_other[:, :-1] - half.predicted.to(values.device) @ odd[number]
            result = (
                result + (half.values.to(values.device) @ odd[number] + other.missed.to(values.device) @ missed) / 2
            )
            spread = other.missed.square() * other.open
            variance = variance + spread.to(values.device) @ missed.square() / 4
        return result, variance


def crossed_pairs(n: int) -> int:
    """Pairs of each half, for n players."""
    return min(max(PAIRS, PAIRS_PER_PLAYER * n), MOST_PAIRS)


def crossed_design(n: int, seed: int, believed: Interactions) -> CrossedDesign:
    """Two halves of pairs of n players, drawn independently, evenly over the sizes."""
    n_pairs = crossed_pairs(n)
    drawn = [random_pairs(n, n_pairs, stream_seed(seed, "half", number)) for number in range(2)]
    signs = [torch.from_numpy(2.0 * coalitions - 1) for coalitions in drawn]
    expected = expected_pairs(n, n_pairs, "leverage")
    halves = []
    for number, own in enumerate(signs):
        size = drawn[number][:-1].sum(axis=1)
        # The Shapley values of what is missed, t: 2 n times the sum over pairs of w(S) (1_S - s/n) t over inclusion.
        weights = 2 * n * pair_weights(n, expected)[size - 1] * (drawn[number][:-1].T - size / n)
        undrawn = 1 - np.minimum(expected / population(n), 1)[size - 1]
        to_values, to_others = odd_regression(own, signs[1 - number][:-1], believed)
        halves.append(_Half(to_values, to_others, torch.from_numpy(weights), torch.from_numpy(undrawn)))
    coalitions = np.concatenate(
        [part for half in drawn for part in (half[:-1], ~half[:-1])] + [np.ones((1, n), dtype=bool)]
    )
    return CrossedDesign(coalitions, (halves[0], halves[1]))
