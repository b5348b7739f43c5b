"""Unbiased KernelSHAP: right on average with as few as two values, and all of it on the model's device.

With phi = total/n + psi, psi adding up to zero, the minimiser of KernelSHAP's weighted squares over all coalitions is

    psi = n * sum over sizes s of  E[c t | s] / (s (n - s)),   c = 1_S - s/n,   t = v(S) - v(none) - (s/n) total,

because the mean of c c' over the coalitions of one size is a multiple of the identity on the plane of zero sums
(Covert and Lee 2021). Averages over random pairs of S and its complement estimate it without any inverse, so the
estimate is unbiased at every budget. Sizes are drawn evenly (leverage scores), by systematic sampling.

Most of t may come from the size alone: a model that knows an image from a tenth of it gives nearly the same to all
coalitions beyond. As E[c | s] = 0, whatever depends on the size alone may be taken from t (`beyond_size`): the mean
stays, the variance falls. And any guess of the values may be taken from the game first and added to what is found:
the estimate stays unbiased, and what the guess explains makes no variance.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.exact import Exact
from cortx.seeding import stream_seed, uniforms_on
from cortx.tails import tail_factor

Array = npt.NDArray[np.float64]

LEAST_MASS = 0.2
"""Of the even mass of a size: no pair then weighs more than five times as much as in even draws."""
BELIEF = 4
"""How many pairs the belief counts for that a row's sizes say what those of other rows do."""

LEAST_PAIRS = 16
"""Of which standard errors are known: fewer may miss all that a model looks at."""


class Sizes(NamedTuple):
    """What a pilot taught of coalitions by the size of their smaller side, 1 .. n/2, (n // 2,) float64 each."""

    mass: Tensor
    """How often to draw it (`best_mass`)."""
    curve: Tensor
    """What it alone says, in units of the total (`size_curve`)."""


class Unbiased(Estimator):
    """Pairs of a coalition and its complement, each weighted by what its size stands for."""

    name: ClassVar[str] = "unbiased"

    def least(self, n_players: int) -> int:
        return min(2, coalition_count(n_players))

    def least_known(self, n_players: int) -> int:
        return min(2 * LEAST_PAIRS, coalition_count(n_players))

    def spends(self, n_players: int, budget: int) -> int:
        return coalition_count(n_players) if enumerable(n_players, budget) else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        if enumerable(block.n_players, budget):
            return Exact().estimate(block, budget)
        pairs = draw_pairs_on(block, budget // 2)
        contrast = contrast_of(block, pairs)
        total = on_device(block, block.total)
        values, errors = unbiased_values(pairs, contrast, total)
        count, variance = pairs.shape[1], errors.square().cpu().numpy()
        # One more pair is assumed that says as much as any (`tails.mean_error`).
        errors = (
            errors.square() + farthest_pair(pairs, contrast, total)[:, None, :] / (count * max(1, count - 1))
        ).sqrt()
        factor = tail_factor(count - 1, block.n_players) if count >= LEAST_PAIRS else np.nan
        return Estimate(values.cpu().numpy(), factor * errors.cpu().numpy(), variance=variance)


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
    # By place and not by comparing keys: two of them may be equal, and sizes must be what they were drawn to be.
    first = torch.arange(n, device=keys.device) < size[..., None]
    return torch.zeros_like(first).scatter_(2, keys.argsort(dim=2, stable=True), first)


def contrast_of(block: Block, pairs: Tensor) -> Tensor:
    """(v(S) - v(complement)) / 2, (rows, pairs, outputs) float64."""
    both = torch.cat([pairs, ~pairs], dim=1)
    if block.game.of_images and block.control is None:
        wide = torch.zeros((*both.shape[:2], block.game.n_players), dtype=torch.bool, device=both.device)
        active = on_device(block, block.active)[:, None, :].expand(both.shape)
        wide.scatter_(2, active, both)
        matrix = torch.from_numpy(block.rows.table.matrix).to(both.device)
        values = block.game.values_of(matrix, wide).double()
        if block.spent is not None:
            block.spent[:] += both.shape[1]
    else:
        values = on_device(block, block.values(both.cpu().numpy(), distinct=False))
    return (values[:, : pairs.shape[1]] - values[:, pairs.shape[1] :]) / 2


def unbiased_values(
    pairs: Tensor,
    contrast: Tensor,
    total: Tensor,
    mass: Tensor | None = None,
    curve: Tensor | None = None,
    guess: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Values and standard errors, (rows, n, outputs), from (rows, pairs, n), (rows, pairs, outputs), (rows, outputs).

    Both sides of a pair say the same: c and t change their signs together. `mass` is the one they were drawn by,
    `curve` a guess of what sizes alone say and `guess` one of the values, (rows, n, outputs), made without these pairs:
    any guess leaves the mean as it is, a good one little variance. The errors
    take the sizes for independent draws. Drawn systematically they differ less, which matters only as far as a player's
    part differs between sizes: the variance is overstated by 0 to 5% (measured, also for what a student misses).
    """
    n, n_pairs = pairs.shape[2], pairs.shape[1]
    present = pairs.to(contrast.dtype).transpose(1, 2)  # (rows, n, pairs)
    size = pairs.sum(dim=2)
    share = size.to(contrast.dtype)[..., None] / n
    target = target_of(pairs, contrast, total)
    if curve is not None:
        target = beyond_size(size, target, total, curve)
    known = total[:, None, :] / n
    if guess is not None:
        sums = guess.sum(dim=1, keepdim=True)
        target = target - (present.transpose(1, 2) @ guess - share * sums)
        known = guess + known - sums / n
    pull = pair_weight(size, n, mass).to(contrast.dtype)[..., None] * target
    # c = 1_S - s/n, and its square 1_S (1 - 2s/n) + (s/n)^2, need no copy of the coalitions.
    mean = (present @ pull - (share * pull).sum(dim=1, keepdim=True)) / n_pairs
    values = known + mean - mean.mean(dim=1, keepdim=True)
    if n_pairs < 2:
        return values, torch.full_like(values, torch.nan)
    pull = pull.square()
    square = (present @ ((1 - 2 * share) * pull) + (share.square() * pull).sum(dim=1, keepdim=True)) / n_pairs
    return values, ((square - mean.square()).clamp(min=0) / (n_pairs - 1)).sqrt()


def farthest_pair(pairs: Tensor, contrast: Tensor, total: Tensor) -> Tensor:
    """The square of the most that any of a row's pairs says of any player, (rows, outputs); as `unbiased_values`."""
    size = pairs.sum(dim=2)
    inside = 1 - size.to(contrast.dtype)[..., None] / pairs.shape[2]  # the smaller side of a pair: at least a half
    pull = pair_weight(size, pairs.shape[2]).to(contrast.dtype)[..., None] * target_of(pairs, contrast, total)
    return (inside * pull).square().amax(dim=1)


def target_of(pairs: Tensor, contrast: Tensor, total: Tensor) -> Tensor:
    """What a pair says beyond even shares, t = contrast + (1/2 - s/n) total, (rows, pairs, outputs)."""
    share = pairs.sum(dim=2).to(contrast.dtype) / pairs.shape[2]
    return contrast + (0.5 - share)[..., None] * total[:, None, :]


def beyond_size(size: Tensor, target: Tensor, total: Tensor, curve: Tensor) -> Tensor:
    """What pairs say beyond their size, t - a g(s), (rows, pairs, outputs); `size` (rows, pairs), `curve` is g.

    a is fitted to the row's other pairs, which know nothing of this one's players; `total` is what it is believed to
    be before. Coalitions are the smaller sides of their pairs.
    """
    shape = curve.to(target.dtype)[size - 1][..., None]  # (rows, pairs, 1)
    belief = BELIEF * curve.square().mean().to(target.dtype)
    square, product = shape.square(), shape * target
    others = product.sum(dim=1, keepdim=True) - product + belief * total[:, None, :]
    weight = square.sum(dim=1, keepdim=True) - square + belief
    return target - shape * (others / weight.clamp(min=1e-12))


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


def from_pilot(pairs: Tensor, contrast: Tensor, total: Tensor) -> Sizes:
    """How to draw and what to expect of sizes, from pairs that were drawn evenly."""
    curve = size_curve(pairs, contrast, total)
    return Sizes(best_mass(pairs, contrast, total, curve), curve)


def size_curve(pairs: Tensor, contrast: Tensor, total: Tensor) -> Tensor:
    """g(s) = E[t total | s] / E[total^2], (n // 2,) float64: the mean of t by size for a total of one."""
    n, size = pairs.shape[2], pairs.sum(dim=2)
    target, total = target_of(pairs, contrast, total).double(), total.double()
    squares = total.square().sum(dim=1, keepdim=True).expand(size.shape)
    sums, counts = _by_size((target * total[:, None, :]).sum(dim=2), size, n), _by_size(squares, size, n)
    if not counts.any():
        return torch.zeros(len(counts), dtype=torch.float64, device=pairs.device)
    return torch.from_numpy(_smooth(sums, counts)).to(pairs.device)


def best_mass(pairs: Tensor, contrast: Tensor, total: Tensor, curve: Tensor | None = None) -> Tensor:
    """The distribution of sizes with the smallest variance, (n // 2,) float64, from pairs of a pilot.

    q(s) ~ even(s) sqrt(E[t^2 | s] / (s (n-s))), because |c|^2 = s (n-s) / n and the squares that make the variance
    add up to a multiple of the sum of even(s)^2 / q(s) E[t^2 | s] / (s (n-s)). The mean square is over rows and
    outputs; neighbouring sizes steady each other, and no size falls below `LEAST_MASS` of the even mass, so that
    weights stay bounded whatever the pilot missed.
    """
    n = pairs.shape[2]
    size = pairs.sum(dim=2)
    target = target_of(pairs, contrast, total).double()
    if curve is not None:
        target = beyond_size(size, target, total.double(), curve)
    # t^2 over s (n-s) is the same for all sizes where the game is additive: the smoothest form of it.
    square = target.square().mean(dim=2) / (size * (n - size))
    even = even_mass(n, torch.device("cpu")).numpy()
    mean_square = _smooth(_by_size(square, size, n), _by_size(torch.ones_like(square), size, n))
    return torch.from_numpy(_above_floor(even, np.sqrt(mean_square))).to(pairs.device)


def _by_size(numbers: Tensor, size: Tensor, n: int) -> Array:
    """What the pairs of each size have in all, (n // 2,), from (rows, pairs) each."""
    zeros = torch.zeros(n // 2, dtype=torch.float64, device=size.device)
    smaller = torch.minimum(size, n - size).flatten()
    return zeros.index_add(0, smaller - 1, numbers.flatten()).cpu().numpy()


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
