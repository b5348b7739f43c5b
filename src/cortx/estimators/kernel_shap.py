"""KernelSHAP and Leverage SHAP: paired, without replacement."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.errors import InputError
from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.coalitions import allocate, pair_count, random_subsets, subsets_of_size
from cortx.estimators.exact import Exact
from cortx.estimators.unbiased import contrast_of, draw_pairs_on, on_device, target_of
from cortx.games.players import coalition_words
from cortx.tails import LEAST_DRAWS, tail_factor

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Where a size has at most this many coalitions for each one asked for, they are drawn from a list of all.
LIST_FACTOR = 4
REDRAWS = 8

MANY_PLAYERS = 64
"""Of an image: with more, hardly a pair is drawn twice, and nothing but the values leaves the model's device."""
SMALLEST_PIVOT = 1e-4
"""Of a Cholesky factor, over its largest: below, a matrix may be singular and gets its pseudoinverse."""


class KernelShap(Estimator):
    """Weighted least squares over random pairs of a coalition and its complement.

    Minimises sum of w(S) (v(S) - v(none) - sum of phi over S)^2 with phi adding up to v(all) - v(none), where
    w(S) = 1 / (C(n,s) s (n-s)) (Lundberg and Lee 2017). ``weights`` says how often coalitions are drawn:
    ``"kernel"`` in proportion to w, ``"leverage"`` evenly over sizes (Musco and Witter 2025). No pair is drawn
    twice; standard errors are those of a regression on a sample without replacement, and not known where it has few
    more pairs than twice the players. Only for images of more than 64
    players the pairs of ``"leverage"`` are drawn independently, and all of it is done where the model is.
    """

    name: ClassVar[str] = "kernel"

    def __init__(self, weights: Literal["leverage", "kernel"] = "leverage") -> None:
        if weights not in ("leverage", "kernel"):
            raise InputError(f"weights must be 'leverage' or 'kernel', got {weights!r}")
        self.weights = weights

    def least(self, n_players: int) -> int:
        return min(2 * n_players, coalition_count(n_players))

    def least_known(self, n_players: int) -> int:
        return min(2 * (2 * n_players + LEAST_DRAWS - 2), coalition_count(n_players))

    def spends(self, n_players: int, budget: int) -> int:
        return coalition_count(n_players) if enumerable(n_players, budget) else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        n = block.n_players
        if enumerable(n, budget):
            return Exact().estimate(block, budget)
        n_pairs = budget // 2
        if block.game.of_images and n > MANY_PLAYERS and self.weights == "leverage":
            pairs = draw_pairs_on(block, n_pairs)
            values, spread = regress_on(pairs, contrast_of(block, pairs), on_device(block, block.total))
            return Estimate(values.cpu().numpy(), regression_factor(n_pairs, n, n_pairs) * spread.cpu().numpy())
        expected = expected_pairs(n, n_pairs, self.weights)
        coalitions = draw_pairs(block, expected, n_pairs)
        design, target = paired(block, coalitions, distinct=True)
        size = coalitions.sum(axis=2)
        inclusion = expected / population(n)
        psi, errors = regress(design, target, pair_weights(n, expected)[size - 1], inclusion[size - 1])
        # What is drawn for certain says nothing of the spread between draws.
        sampled = int(expected[inclusion < 1].sum())
        return Estimate(psi + block.total[:, None, :] / n, regression_factor(n_pairs, n, sampled) * errors)


def regression_factor(n_pairs: int, n: int, sampled: int) -> float:
    """What the standard errors of a regression are multiplied with: NaN where pairs hardly outnumber the players.

    Of `n_pairs` pairs `sampled` were drawn by chance. The n - 1 unknowns take as many degrees of freedom, and with as
    many more some values still hang on a few pairs that may all fit by chance.
    """
    if sampled == 0:
        return 1.0
    freedom = n_pairs - (n - 1)
    return tail_factor(min(sampled - 1, freedom), n) if freedom >= n + LEAST_DRAWS - 1 else np.nan


def paired(block: Block, coalitions: BoolArray, *, distinct: bool) -> tuple[Array, Array]:
    """Evaluates pairs, (rows, pairs, n), for a regression of both sides at once.

    With phi = total/n + psi, psi adding up to zero, target = design psi: the design c = 1_S - s/n, (rows, pairs, n),
    and the target (v(S) - v(complement)) / 2 + (1/2 - s/n) total, (rows, pairs, outputs).
    """
    values = block.values(both_sides(coalitions), distinct=distinct)
    share = coalitions.sum(axis=2) / block.n_players
    return coalitions - share[..., None], pair_target(coalitions, values, block.total)


def both_sides(coalitions: BoolArray) -> BoolArray:
    """Coalitions, (rows, pairs, n), and then their complements, (rows, 2 pairs, n)."""
    return np.concatenate([coalitions, ~coalitions], axis=1)


def pair_target(coalitions: BoolArray, values: Array, total: Array) -> Array:
    """The target of `paired`, (rows, pairs, outputs), from the values of `both_sides` and v(all) - v(none)."""
    n_pairs, n = coalitions.shape[1:]
    contrast = (values[:, :n_pairs] - values[:, n_pairs:]) / 2
    return np.asarray(contrast + (0.5 - coalitions.sum(axis=2) / n)[..., None] * total[:, None, :])


def pair_weights(n: int, expected: Array) -> Array:
    """w(S) / inclusion for each size, (sizes,), in which the C(n,s) cancel."""
    sizes = np.arange(1, n // 2 + 1)
    # Of the sets of half the players only one of two is drawn.
    weights: Array = np.where(2 * sizes == n, 0.5, 1.0) / (sizes * (n - sizes) * np.maximum(expected, 1e-300))
    return weights


def size_mass(n: int) -> Array:
    """How often each size is drawn for leverage, (sizes,): 1 / C(n, s) for each pair."""
    return np.where(2 * np.arange(1, n // 2 + 1) == n, 0.5, 1.0)


def expected_pairs(n: int, n_pairs: int, weights: Literal["leverage", "kernel"]) -> Array:
    """Expected pairs of each size, (sizes,), with inclusion probability min(1, c q) and c so that they add up."""
    sizes, most, mass = np.arange(1, n // 2 + 1), population(n), size_mass(n)
    if weights == "kernel":
        mass = mass / (sizes * (n - sizes))
    expected = np.zeros(len(sizes))
    open_ = np.ones(len(sizes), dtype=bool)
    while True:
        left = n_pairs - most[~open_].sum()
        expected[open_] = left * mass[open_] / mass[open_].sum()
        expected[~open_] = most[~open_]
        full = open_ & (expected >= most)
        if not full.any():
            return expected
        open_ &= ~full


def population(n: int) -> Array:
    """How many pairs there are of each size, (sizes,); beyond 1e300 it does not matter."""
    return np.array([float(min(pair_count(n, size), 10**300)) for size in range(1, n // 2 + 1)])


def draw_pairs(block: Block, expected: Array, n_pairs: int) -> BoolArray:
    """Different coalitions for every row, (rows, pairs, n), in order of size: `expected` of each size on average."""
    n, n_rows = block.n_players, len(block.rows)
    counts = allocate(expected, block.uniforms(1, stream=0)[:, 0])
    # Slot t of a row has the size at which the running count passes t.
    ends = np.cumsum(counts, axis=1)
    slots = np.arange(n_pairs)
    size_index = (slots[None, :, None] >= ends[:, None, :]).sum(axis=2)
    size = size_index + 1
    keys = block.uniforms(n_pairs * n, stream=1).reshape(n_rows, n_pairs, n)
    coalitions = with_first_half(random_subsets(keys, size))
    listed = np.zeros(len(expected), dtype=bool)
    for j, most in enumerate(np.ceil(expected - 1e-9).astype(np.int64)):
        # Decided by the expectation, not by the rows at hand: a row's draws do not depend on its neighbours.
        if most <= 1 or pair_count(n, j + 1) > LIST_FACTOR * most:
            continue
        listed[j] = True
        table = subsets_of_size(n, j + 1)[: pair_count(n, j + 1)]  # the first half of the halves has player 0
        picks = np.argsort(block.uniforms(len(table), stream=2 + j), axis=1)[:, :most]
        row, slot = np.nonzero(size_index == j)
        rank = slot - (ends[:, j] - counts[:, j])[row]
        coalitions[row, slot] = table[picks[row, rank]]
    for attempt in range(REDRAWS):
        row, slot = np.nonzero(_repeated(coalitions) & ~listed[size_index])
        if len(row) == 0:
            break
        keys = block.uniforms_at(row, slot[:, None] * n + np.arange(n), stream=2 + len(expected) + attempt)
        coalitions[row, slot] = with_first_half(random_subsets(keys, size[row, slot]))
    return coalitions


def with_first_half(coalitions: BoolArray) -> BoolArray:
    """Of the two halves that make a pair, the one with player 0 stands for it."""
    half = 2 * coalitions.sum(axis=-1) == coalitions.shape[-1]
    coalitions[half & ~coalitions[..., 0]] ^= True
    return coalitions


def _repeated(coalitions: BoolArray) -> BoolArray:
    """(rows, pairs): true where a coalition stands in an earlier slot of its row."""
    words = coalition_words(coalitions)
    order = np.argsort(words, axis=1, kind="stable")
    ordered = np.take_along_axis(words, order, axis=1)
    same = np.zeros(words.shape, dtype=bool)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    result = np.empty_like(same)
    np.put_along_axis(result, order, same, axis=1)
    return result


def regress(
    design: Array, target: Array, weight: Array, inclusion: Array, largest: Array | None = None
) -> tuple[Array, Array]:
    """Weighted least squares of every row, and standard errors by linearisation.

    `design` (rows, k, n) lies in the plane of zero sums, `target` (rows, k, outputs), `weight` and `inclusion`
    (rows, k). The variance is A^-1 (sum of (1 - pi) u u') A^-1 with u = weight * design * residual, residuals
    inflated by their leverage (HC3), as for a sample drawn without replacement. They are NaN where a value hangs on
    a single drawn coalition, or on none. `largest` (rows, outputs): a residual that a pair may have beside those here.
    """
    n = design.shape[2]
    weighted = design * weight[..., None]
    gram = weighted.transpose(0, 2, 1) @ design  # (rows, n, n), singular along (1, ..., 1)
    scale = np.trace(gram, axis1=1, axis2=2)[:, None, None] / n
    solver = np.linalg.pinv(gram + scale * np.ones((n, n)) / n, rcond=1e-10, hermitian=True)
    influence = weighted @ solver  # (rows, k, n): how much each observation moves each value
    values = influence.transpose(0, 2, 1) @ target
    residual = target - design @ values
    leverage = (influence * design).sum(axis=2)  # adds up to the rank, n - 1
    # An observation drawn for certain is no source of sampling error.
    sampled = np.maximum(1 - inclusion, 0.0)
    unknown = ((leverage > 1 - 1e-6) & (sampled > 0)).any(axis=1) | (leverage.sum(axis=1) < n - 1.5)
    spread = (residual / (1 - np.minimum(leverage, 1 - 1e-6))[..., None]) ** 2 * sampled[..., None]
    squared = influence**2
    # One more pair is assumed, as far off as any: where all that hangs on a value fits by chance, it is not certain.
    worst = spread.max(axis=1) if largest is None else np.maximum(spread.max(axis=1), np.square(largest))
    unlucky = squared.mean(axis=1)[..., None] * worst[:, None, :]
    errors = np.sqrt(squared.transpose(0, 2, 1) @ spread + unlucky)
    errors[unknown] = np.nan
    return values - values.mean(axis=1, keepdims=True), errors


def regress_on(pairs: Tensor, contrast: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Values and standard errors, (rows, n, outputs), of pairs whose sizes were drawn evenly, with replacement.

    `regress` on a device, all rows at once in float64: `pairs` (rows, k, n), `contrast` (rows, k, outputs), `total`
    (rows, outputs). Evenly drawn, a pair weighs 1 / (s (n-s)), and none is drawn for certain.
    """
    n = pairs.shape[2]
    size = pairs.sum(dim=2).double()
    target = target_of(pairs, contrast.double(), total.double())
    design = pairs.double()
    design -= (size / n)[..., None]
    weighted = design / (size * (n - size))[..., None]
    gram = weighted.mT @ design
    gram += gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None] / n  # along (1, ..., 1) it is zero
    influence = weighted @ _inverse(gram)
    del weighted  # the largest tensors are as large as the sort keys of the draws
    values = influence.mT @ target
    residual = target - design @ values
    leverage = design.mul_(influence).sum(dim=2)
    unknown = (leverage > 1 - 1e-6).any(dim=1) | (leverage.sum(dim=1) < n - 1.5)
    spread = (residual / (1 - leverage.clamp(max=1 - 1e-6))[..., None]).square()
    squared = influence.square_()
    unlucky = squared.mean(dim=1)[..., None] * spread.amax(dim=1)[:, None, :]
    errors = (squared.mT @ spread + unlucky).sqrt().masked_fill(unknown[:, None, None], torch.nan)
    return total[:, None, :] / n + values - values.mean(dim=1, keepdim=True), errors


def _inverse(gram: Tensor) -> Tensor:
    """Of symmetric matrices, (rows, n, n), by Cholesky; of the few that are nearly singular the pseudoinverse."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    pivots = factor.diagonal(dim1=1, dim2=2)
    root = torch.linalg.solve_triangular(factor, torch.eye(gram.shape[1]).to(gram), upper=False)
    inverse: Tensor = root.mT @ root
    poor = (failed != 0) | ~(pivots.amin(dim=1) > SMALLEST_PIVOT * pivots.amax(dim=1))
    if bool(poor.any()):
        inverse[poor] = torch.linalg.pinv(gram[poor], rtol=1e-10, hermitian=True)
    return inverse
