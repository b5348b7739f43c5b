"""Unbiased KernelSHAP: right on average with as few as two values, and all of it on the model's device.

With phi = total/n + psi, psi adding up to zero, the minimiser of KernelSHAP's weighted squares over all coalitions is

    psi = n * sum over sizes s of  E[c t | s] / (s (n - s)),   c = 1_S - s/n,   t = v(S) - v(none) - (s/n) total,

because the mean of c c' over the coalitions of one size is a multiple of the identity on the plane of zero sums
(Covert and Lee 2021). Averages over random pairs of S and its complement estimate it without any inverse, so the
estimate is unbiased at every budget. Sizes are drawn evenly (leverage scores), by systematic sampling.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.exact import Exact
from cortx.seeding import stream_seed, uniforms_on

Array = npt.NDArray[np.float64]

LEAST_MASS = 0.2
"""Of the even mass of a size: no pair then weighs more than five times as much as in even draws."""


class Unbiased(Estimator):
    """Pairs of a coalition and its complement, each weighted by what its size stands for."""

    name: ClassVar[str] = "unbiased"

    def least(self, n_players: int) -> int:
        return min(2, coalition_count(n_players))

    def spends(self, n_players: int, budget: int) -> int:
        return coalition_count(n_players) if enumerable(n_players, budget) else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        if enumerable(block.n_players, budget):
            return Exact().estimate(block, budget)
        pairs = draw_pairs_on(block, budget // 2)
        contrast = contrast_of(block, pairs)
        values, errors = unbiased_values(pairs, contrast, on_device(block, block.total))
        return Estimate(values.cpu().numpy(), errors.cpu().numpy())


def on_device(block: Block, array: npt.NDArray[Any]) -> Tensor:
    """An array as a tensor where the game's model is."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(block.game.device)


def draw_pairs_on(block: Block, n_pairs: int) -> Tensor:
    """Coalitions of at most half the players, (rows, pairs, n) bool on the model's device, by each row's own draws."""
    words = on_device(block, block.rows.words.view(np.int64))
    offset = uniforms_on(words, stream_seed(block.seed, block.round, "sizes"), 1)
    keys = uniforms_on(words, stream_seed(block.seed, block.round, "players"), n_pairs * block.n_players)
    return pairs_from(offset, keys.view(len(words), n_pairs, block.n_players))


def pairs_from(offset: Tensor, keys: Tensor, mass: Tensor | None = None) -> Tensor:
    """Coalitions from uniform draws, (rows, pairs, n) bool.

    `offset` (rows, 1) places the sizes, `keys` (rows, pairs, n) choose the players; `mass` (n // 2,), all positive,
    says how often each size 1 .. n/2 of the smaller side is drawn: by default evenly, a middle n/2 half as often.
    """
    _, n_pairs, n = keys.shape
    place = (torch.arange(n_pairs, device=keys.device) + offset) / n_pairs  # (rows, pairs), one in each n_pairs-th
    if mass is None:
        size = (place * ((n - 1) / 2)).floor().long()
    else:
        edges = mass.double().cumsum(0)
        size = torch.searchsorted((edges / edges[-1]).to(place.dtype), place, right=True)
    size = size.clamp(max=n // 2 - 1) + 1
    largest = keys.sort(dim=2).values.gather(2, size[..., None] - 1)
    return keys <= largest


def contrast_of(block: Block, pairs: Tensor) -> Tensor:
    """(v(S) - v(complement)) / 2, (rows, pairs, outputs) float64."""
    both = torch.cat([pairs, ~pairs], dim=1)
    if block.game.of_images:
        wide = torch.zeros((*both.shape[:2], block.game.n_players), dtype=torch.bool, device=both.device)
        active = on_device(block, block.active)[:, None, :].expand(both.shape)
        wide.scatter_(2, active, both)
        matrix = torch.from_numpy(block.rows.table.matrix).to(both.device)
        values = block.game.values_of(matrix, wide).double()
    else:
        values = on_device(block, block.values(both.cpu().numpy(), distinct=False))
    return (values[:, : pairs.shape[1]] - values[:, pairs.shape[1] :]) / 2


def unbiased_values(
    pairs: Tensor, contrast: Tensor, total: Tensor, mass: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values and standard errors, (rows, n, outputs), from (rows, pairs, n), (rows, pairs, outputs), (rows, outputs).

    Both sides of a pair say the same: c and t change their signs together. `mass` is the one they were drawn by. The
    errors take the sizes for independent draws; drawn systematically they differ less, so errors are rather too large.
    """
    n, n_pairs = pairs.shape[2], pairs.shape[1]
    present = pairs.to(contrast.dtype).transpose(1, 2)  # (rows, n, pairs)
    size = pairs.sum(dim=2)
    share = size.to(contrast.dtype)[..., None] / n
    pull = pair_weight(size, n, mass).to(contrast.dtype)[..., None] * target_of(pairs, contrast, total)
    # c = 1_S - s/n, and its square 1_S (1 - 2s/n) + (s/n)^2, need no copy of the coalitions.
    mean = (present @ pull - (share * pull).sum(dim=1, keepdim=True)) / n_pairs
    values = total[:, None, :] / n + mean - mean.mean(dim=1, keepdim=True)
    if n_pairs < 2:
        return values, torch.full_like(values, torch.nan)
    pull = pull.square()
    square = (present @ ((1 - 2 * share) * pull) + (share.square() * pull).sum(dim=1, keepdim=True)) / n_pairs
    return values, ((square - mean.square()).clamp(min=0) / (n_pairs - 1)).sqrt()


def target_of(pairs: Tensor, contrast: Tensor, total: Tensor) -> Tensor:
    """What a pair says beyond even shares, t = contrast + (1/2 - s/n) total, (rows, pairs, outputs)."""
    share = pairs.sum(dim=2).to(contrast.dtype) / pairs.shape[2]
    return contrast + (0.5 - share)[..., None] * total[:, None, :]


def pair_weight(size: Tensor, n: int, mass: Tensor | None = None) -> Tensor:
    """n (n-1) / (s (n-s)), times even(s) / q(s) where sizes were drawn by q instead of evenly; float64 like `size`."""
    weight = n * (n - 1) / (size * (n - size)).double()
    if mass is None:
        return weight
    even = even_mass(n, mass.device)
    ratio = even / even.sum() * (mass.double().sum() / mass.double())
    return weight * ratio[torch.minimum(size, n - size) - 1]


def even_mass(n: int, device: torch.device) -> Tensor:
    """The even distribution of sizes, (n // 2,): as many pairs of each, of halves only half (two make a pair)."""
    size = torch.arange(1, n // 2 + 1, device=device, dtype=torch.float64)
    return torch.where(2 * size == n, 0.5, 1.0).double() / ((n - 1) / 2)


def best_mass(pairs: Tensor, contrast: Tensor, total: Tensor) -> Tensor:
    """The distribution of sizes with the smallest variance, (n // 2,) float64, from pairs of a pilot.

    q(s) ~ even(s) sqrt(E[t^2 | s] / (s (n-s))), because |c|^2 = s (n-s) / n and the squares that make the variance
    add up to a multiple of the sum of even(s)^2 / q(s) E[t^2 | s] / (s (n-s)). The mean square is over rows and
    outputs; neighbouring sizes steady each other, and no size falls below `LEAST_MASS` of the even mass, so that
    weights stay bounded whatever the pilot missed.
    """
    n = pairs.shape[2]
    size = pairs.sum(dim=2)
    size = torch.minimum(size, n - size)
    # t^2 over s (n-s) is the same for all sizes where the game is additive: the smoothest form of it.
    square = target_of(pairs, contrast, total).double().square().mean(dim=2) / (size * (n - size))
    zeros = torch.zeros(n // 2, dtype=torch.float64, device=pairs.device)
    index = (size - 1).flatten()
    total_square = zeros.index_add(0, index, square.flatten()).cpu().numpy()
    count = zeros.index_add(0, index, torch.ones_like(square).flatten()).cpu().numpy()
    even = even_mass(n, torch.device("cpu")).numpy()
    return torch.from_numpy(_above_floor(even, np.sqrt(_smooth(total_square, count)))).to(pairs.device)


def _smooth(sums: Array, counts: Array) -> Array:
    """Means by size, (sizes,), under a triangle over neighbours; sizes that none of them saw are interpolated."""
    reach = 1 + len(sums) // 16
    triangle = 1 + reach - np.abs(np.arange(-reach, reach + 1.0))
    sums, counts = (np.convolve(part, triangle)[reach : reach + len(part)] for part in (sums, counts))
    seen = np.flatnonzero(counts)
    return np.interp(np.arange(len(sums)), seen, sums[seen] / counts[seen])


def _above_floor(even: Array, factor: Array) -> Array:
    """even * factor, normalised, where no size has less than `LEAST_MASS` of its even mass."""
    if not factor.any():
        return even
    low = np.zeros(len(even), dtype=bool)
    while True:
        rest = np.where(low, 0.0, even * factor)
        mass: Array = np.where(low, LEAST_MASS * even, rest / rest.sum() * (1 - LEAST_MASS * even[low].sum()))
        below = ~low & (mass < LEAST_MASS * even)
        if not below.any():
            return mass
        low |= below
