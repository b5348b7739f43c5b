"""An explainer's prediction as the prior of a paired regression: what it knows is not paid for again."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from cortx.estimators.block import Block, Estimate, Estimator, coalition_count, enumerable
from cortx.estimators.coalitions import random_subsets
from cortx.estimators.exact import Exact
from cortx.estimators.kernel_shap import (
    both_sides,
    draw_pairs,
    expected_pairs,
    pair_target,
    pair_weights,
    paired,
    population,
    size_mass,
    with_first_half,
)
from cortx.tails import mean_error

Array = npt.NDArray[np.float64]

LEAST_UNBIASED = 8
"""Two halves of two pairs: a spread needs two."""
LEAST_KNOWN = 32
"""Pairs below which an unbiased estimate has no standard error: halves that correct each other may miss together."""

TAU_SPREAD = 0.6
"""Deviation of log tau: an explainer's scales are believed within a factor of two, mostly.

Wider, and a few pairs that mislead by chance overrule a good prior; narrower, and a wrong one stays for too long.
"""
STUDENT_TAU_SPREAD = 2.0
"""The same for what a student misses: the scales are those of an explainer, which says little of how good a student is.

With it scales that are three times too small or ten times too large changed the errors of refined rows by a tenth at
most (8 to 94 players, 32 to 250 values; with 0.6 by up to a quarter).
"""

SMALLEST_SCALE = 0.01
"""Of the typical scale of a row: nobody is known better than that beside the others."""
SMALLEST_SHARE = 1e-3
"""Of the typical value of a row: no explainer is better than that, whatever it claims."""

# Noise of a pair as a multiple of what the prior leaves open about it, from "the game is additive" to "trust the
# prior", in decades: fine where it matters. A Cauchy curve says which are likely; its tails leave room for either end.
RATIOS = 10.0 ** np.concatenate([np.arange(-20, -5), np.arange(-5, 8.01, 0.25)])
RATIO_CENTRE, RATIO_WIDTH = np.log(30.0), 2.0
RATIO_LOG_PRIOR = np.log(np.gradient(np.log(RATIOS))) - np.log1p(((np.log(RATIOS) - RATIO_CENTRE) / RATIO_WIDTH) ** 2)

PHASES = 10**6
"""The stream of draws that say when each size has its turn; `draw_pairs` has those below."""

NOISE_FLOOR = 1.0
"""The least noise, as a share of what the prior leaves open about a pair, is this over the number of pairs."""
SMALLEST_TAU = 0.01
"""The scales of a prior are never believed to be more than a hundred times too large."""

NUMBERS_AT_A_TIME = 2**20
"""Of the posterior at all ratios: 8 MiB, a few times over."""


class _Expected(NamedTuple):
    """What is expected of psi before any pair: its mean, whose sum is zero, and its scales, (rows, n, outputs) each."""

    psi: Array
    scales: Array
    spread: float
    """Deviation of log tau, by which all scales of a row may be wrong."""

    def take(self, index: npt.NDArray[np.int64] | slice) -> _Expected:
        return _Expected(self.psi[index], self.scales[index], self.spread)


class Amortized(Estimator):
    """The regression of `KernelShap` with an explainer's prediction as its prior.

    phi = total/n + psi with psi ~ N(psi0, tau^2 diag(scales^2)) given that psi adds up to zero; a pair's target is
    c_S psi plus noise of variance sigma^2 / weight. tau and sigma are integrated over, row by row and output by
    output, so a wrong prior loses its say as evaluations come in. Errors are posterior standard deviations.

    With ``unbiased`` the pairs are drawn independently, and what one half of them says only steadies the other:
    right on average whatever the prior, with standard errors from the spread of the draws.
    """

    name: ClassVar[str] = "amortized"

    def __init__(self, unbiased: bool = False) -> None:
        self.unbiased = bool(unbiased)
        self.refines = not self.unbiased

    def least(self, n_players: int) -> int:
        return min(LEAST_UNBIASED if self.unbiased else 2, coalition_count(n_players))

    def least_known(self, n_players: int) -> int:
        return min(2 * LEAST_KNOWN, coalition_count(n_players)) if self.unbiased else self.least(n_players)

    def spends(self, n_players: int, budget: int) -> int:
        return coalition_count(n_players) if enumerable(n_players, budget) else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        if enumerable(block.n_players, budget):
            return Exact().estimate(block, budget)
        psi, errors = (_cross_fitted if self.unbiased else _posterior_of_row)(block, budget // 2, _expected(block))
        return Estimate(_with_total(psi, block.total), errors)


def _expected(block: Block) -> _Expected:
    """What the prior of a block says of psi; all scales are positive.

    What is missing to the total goes to the players by their variance: the mean of a Gaussian given its sum. Of the
    game minus a student's nothing is expected.
    """
    assert block.prior is not None
    values, scales = block.prior
    if block.control is not None:
        values = np.zeros_like(values)
    typical = np.sqrt((scales**2).mean(axis=1, keepdims=True))
    size = np.sqrt((values**2).mean(axis=1, keepdims=True)) + np.abs(block.total[:, None, :]) / block.n_players
    typical = np.maximum(typical, np.where(size > 0, SMALLEST_SHARE * size, 1.0))
    scales = np.maximum(scales, SMALLEST_SCALE * typical)
    psi = values - block.total[:, None, :] / block.n_players
    share = scales**2 / (scales**2).sum(axis=1, keepdims=True)
    spread = TAU_SPREAD if block.control is None else STUDENT_TAU_SPREAD
    return _Expected(psi - share * psi.sum(axis=1, keepdims=True), scales, spread)


def _posterior_of_row(block: Block, n_pairs: int, before: _Expected) -> tuple[Array, Array]:
    """Posterior mean and deviation of psi, (rows, n, outputs), from pairs drawn without replacement."""
    n = block.n_players
    expected = expected_pairs(n, n_pairs, "leverage")
    coalitions = draw_pairs(block, expected, n_pairs)
    design, target = paired(block, coalitions, distinct=True)
    weight = pair_weights(n, expected)[coalitions.sum(axis=2) - 1]
    return _posterior(design, target, weight, before, _sampling_share(n, expected))


def _sampling_share(n: int, expected: Array) -> float:
    """The share of a pair's noise that a sample without replacement leaves in psi.

    Every size weighs the same in the regression; of a size that is drawn to the last pair no error is left.
    """
    mass = size_mass(n)
    return float((mass * (1 - np.minimum(expected / population(n), 1))).sum() / mass.sum())


def _cross_fitted(block: Block, n_pairs: int, before: _Expected) -> tuple[Array, Array]:
    """An unbiased psi and its standard error (NaN from few pairs), (rows, n, outputs), from pairs with replacement.

    psi = n * (sum over pairs of 2 w(S) c_S t_S), and sum over pairs of 2 n w(S) c_S c_S' is the identity on zero sums.
    A pair has probability q = 2 / ((n-1) C(n,s)), so one draw estimates psi by
    g + n (n-1) / (s (n-s)) c_S (t_S - c_S g), for any g that does not depend on it: g comes from the other half.
    """
    n, n_rows = block.n_players, len(block.rows)
    edges = np.cumsum(size_mass(n)) / size_mass(n).sum()
    drawn = 1 + np.searchsorted(edges[:-1], block.uniforms(n_pairs, stream=0), side="right")
    keys = block.uniforms(n_pairs * n, stream=1).reshape(n_rows, n_pairs, n)
    coalitions = with_first_half(random_subsets(keys, drawn))
    design, target = paired(block, coalitions, distinct=False)
    size = coalitions.sum(axis=2)
    weight = 1 / (size * (n - size))
    halves = np.array_split(np.arange(n_pairs), 2)
    draws = np.empty((n_rows, n_pairs, *before.psi.shape[1:]))  # (rows, pairs, n, outputs), each right on average
    for ours, other in (halves, halves[::-1]):
        guess, _ = _posterior(design[:, other], target[:, other], weight[:, other], before, 1.0)
        surprise = (target[:, ours] - design[:, ours] @ guess) * (n * (n - 1) * weight[:, ours])[..., None]
        draws[:, ours] = guess[:, None] + design[:, ours, :, None] * surprise[:, :, None, :]
    values = draws.mean(axis=1)
    return values, mean_error(draws) if n_pairs >= LEAST_KNOWN else np.full_like(values, np.nan)


def _posterior(design: Array, target: Array, weight: Array, before: _Expected, left: float) -> tuple[Array, Array]:
    """Posterior mean and deviation of psi, (rows, n, outputs).

    `design` (rows, k, n), `target` (rows, k, outputs), `weight` (rows, k); `left` is the share of the noise that a
    sample without replacement leaves in psi.
    """
    start = before.psi
    psi, errors = np.empty_like(start), np.empty_like(start)
    n_rows, n, n_outputs = start.shape
    step = max(1, NUMBERS_AT_A_TIME // (n * len(RATIOS)))
    for first in range(0, n_rows, step):
        part = slice(first, first + step)
        root = np.sqrt(weight[part])[..., None]
        weighted, residual = design[part] * root, (target[part] - design[part] @ start[part]) * root
        for o in range(n_outputs):
            scale = before.scales[part, :, o]
            moved, errors[part, :, o] = _whitened(weighted, residual[..., o], scale, left, before.spread)
            psi[part, :, o] = start[part, :, o] + moved
    return psi, errors


def _whitened(design: Array, residual: Array, scale: Array, left: float, tau_spread: float) -> tuple[Array, Array]:
    """The step from the prior mean and its deviation, (rows, n), of one output.

    psi - psi0 = diag(scale) (I - u u') z with z ~ N(0, tau^2) and u along the scales, so that its sum is zero.
    """
    k = design.shape[1]
    along = scale / np.sqrt((scale**2).sum(axis=1, keepdims=True))
    white = design * scale[:, None, :]
    white = white - (white @ along[..., None]) * along[:, None, :]
    left_vectors, s, axes = np.linalg.svd(white, full_matrices=False)  # (rows, k, r), (rows, r), (rows, r, n)
    kept = s > 1e-10 * s.max(axis=1, keepdims=True)
    axes = axes * kept[..., None]
    s2 = np.where(kept, s**2, 1.0)
    seen = np.where(kept, (left_vectors.transpose(0, 2, 1) @ residual[..., None])[..., 0], 0.0)
    rest = ((residual - (left_vectors @ seen[..., None])[..., 0]) ** 2).sum(axis=1)
    rank = kept.sum(axis=1)

    per_pair = ((s2 * kept).sum(axis=1) / k)[:, None]
    noise = RATIOS * per_pair  # sigma^2 / tau^2, (rows, ratios)
    spread = s2[:, None, :] + left * noise[..., None]  # variance of `seen` over tau^2, (rows, ratios, r)
    surprise = (seen[:, None, :] ** 2 / spread).sum(axis=2) + rest[:, None] / noise
    log_volume = (np.log(spread) * kept[:, None, :]).sum(axis=2) + (k - rank)[:, None] * np.log(noise)
    log_likelihood, tau2 = _over_tau(surprise, log_volume, k, tau_spread)
    log_posterior = log_likelihood + RATIO_LOG_PRIOR
    share = np.exp(log_posterior - log_posterior.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)  # (rows, ratios)

    steps = np.sqrt(s2)[:, None, :] * seen[:, None, :] / spread  # z for every ratio
    step = (share[:, None, :] @ steps)[:, 0]
    # k pairs that agree prove little about an interaction that one pair in k would show.
    floored = left * np.maximum(RATIOS, NOISE_FLOOR / k) * per_pair
    narrowed = floored[..., None] / (s2[:, None, :] + floored[..., None])
    open_ = ((share * tau2)[:, None, :] @ narrowed)[:, 0]  # variance of z where it was seen
    steps -= step[:, None, :]
    doubt = steps.transpose(0, 2, 1) @ (steps * share[..., None])  # between the ratios, (rows, r, r)
    variance = (open_[:, None, :] @ axes**2)[:, 0] + ((doubt @ axes) * axes).sum(axis=1)
    unseen = 1 - along**2 - (axes**2).sum(axis=1)
    variance += np.where(unseen > 1e-9, unseen, 0.0) * (share * tau2).sum(axis=1, keepdims=True)
    return scale * (step[:, None, :] @ axes)[:, 0], scale * np.sqrt(np.maximum(variance, 0.0))


def _over_tau(surprise: Array, log_volume: Array, k: int, tau_spread: float) -> tuple[Array, Array]:
    """log of the integral over x = log tau of the likelihood, and the mean of tau^2, each (rows, ratios).

    log p(x) = -k x - surprise exp(-2x) / 2 - log_volume / 2 - x^2 / (2 tau_spread^2), by Laplace's method.
    """
    precision = tau_spread**-2
    surprise = np.maximum(surprise, 1e-24 * k)  # of a prior that was exactly right
    x = 0.5 * np.log(surprise / k)
    # Left of the maximum of a concave function with a convex slope, Newton's steps only go up.
    x = np.where(x > 0, x - 0.5 * np.log1p(np.maximum(x, 0) * precision / k), np.maximum(x, -k / precision))
    for _ in range(8):
        pull = surprise * np.exp(-2 * x)
        x += (pull - k - x * precision) / (2 * pull + precision)
    pull = surprise * np.exp(-2 * x)
    curvature = 2 * pull + precision
    log_integral = -k * x - pull / 2 - log_volume / 2 - x**2 * precision / 2 - np.log(curvature) / 2
    return log_integral, np.maximum(np.exp(2 * x + 2 / curvature), SMALLEST_TAU**2)


def _with_total(psi: Array, total: Array) -> Array:
    """phi = total/n + psi, (rows, n, outputs), where psi is made to add up to zero; total: (rows, outputs)."""
    return np.asarray(psi - psi.mean(axis=1, keepdims=True) + total[:, None, :] / psi.shape[1])


def pair_population(n_players: int) -> int:
    """How many pairs of a coalition and its complement there are."""
    return coalition_count(n_players) // 2


def nested_pairs(block: Block, longest: int) -> npt.NDArray[np.bool_]:
    """Different pairs in an order, (rows, longest, n), whose every beginning is evenly spread over the sizes.

    Sizes take turns, each row with phases of its own, until one has no pair left.
    """
    n = block.n_players
    coalitions = draw_pairs(block, expected_pairs(n, longest, "leverage"), longest)
    size = coalitions.sum(axis=2)
    # draw_pairs gives them in order of size: `turn` counts within each.
    first = np.ones(size.shape, dtype=bool)
    first[:, 1:] = size[:, 1:] != size[:, :-1]
    slot = np.arange(longest)
    turn = slot - np.maximum.accumulate(np.where(first, slot, 0), axis=1)
    phase = np.take_along_axis(block.uniforms(n // 2, stream=PHASES), size - 1, axis=1)
    order = np.argsort((turn + phase) / size_mass(n)[size - 1], axis=1, kind="stable")
    return np.take_along_axis(coalitions, order[..., None], axis=1)


class Refinement:
    """Regressions that grow on the same rows: each has all pairs that were asked for so far, and the first prior.

    The pairs of a row are nested, and no value is paid for twice, unless a row is enumerated that has more pairs than
    `longest`.
    """

    def __init__(self, block: Block, longest: int) -> None:
        self.block = block
        self._all = coalition_count(block.n_players)
        longest = min(longest, pair_population(block.n_players))
        self._pairs = nested_pairs(block, longest) if longest else np.zeros((len(block.rows), 0, block.n_players), bool)
        self._target = np.empty((*self._pairs.shape[:2], block.full.shape[1]))  # of the game itself
        self._student_target = None if block.control is None else np.empty_like(self._target)
        self._asked = np.zeros(len(block.rows), dtype=np.int64)
        self._before = _expected(block)

    @property
    def nested(self) -> bool:
        """Whether the draws hold all pairs, so that enumerating a row goes on from them."""
        return bool(2 * self._pairs.shape[1] == self._all)

    def estimate(self, index: npt.NDArray[np.int64], n_values: int) -> Estimate:
        """Values and posterior deviations of rows `index`, (rows, n, outputs), after `n_values` values v(S) of each.

        With all coalitions they are exact, and the deviations zero.
        """
        n, n_pairs = self.block.n_players, n_values // 2
        if n_pairs > self._pairs.shape[1]:
            assert n_values == self._all
            return self._enumerated(index)
        self._ask(index, n_pairs)
        coalitions, target = self._pairs[index, :n_pairs], self._target[index, :n_pairs]
        size = coalitions.sum(axis=2)
        design = coalitions - (size / n)[..., None]
        expected = expected_pairs(n, n_pairs, "leverage")
        weight = pair_weights(n, expected)[size - 1]
        if n_values == self._all:
            # The sum over all pairs of 2 n w(S) c_S c_S' is the identity on zero sums (`_cross_fitted`).
            psi = 2 * n * (design * weight[..., None]).transpose(0, 2, 1) @ target
            return Estimate.enumerated(_with_total(psi, self.block.plain.total[index]))
        if self._student_target is not None:
            target = target - self._student_target[index, :n_pairs]
        left = _sampling_share(n, expected)
        psi, errors = _posterior(design, target, weight, self._before.take(index), left)
        found = Estimate(_with_total(psi, self.block.total[index]), errors)
        return self.block.take(index).completed(found)

    def _ask(self, index: npt.NDArray[np.int64], n_pairs: int) -> None:
        """Evaluates what rows `index` lack of their first `n_pairs` pairs."""
        for asked in np.unique(self._asked[index]):
            rows = index[self._asked[index] == asked]
            if asked < n_pairs:
                some = self.block.take(rows)
                pairs = self._pairs[rows, asked:n_pairs]
                self._target[rows, asked:n_pairs] = paired(some.plain, pairs, distinct=True)[1]
                if some.control is not None and self._student_target is not None:
                    total = some.control.full - some.control.empty
                    known = pair_target(pairs, some.of_student(both_sides(pairs)), total)
                    self._student_target[rows, asked:n_pairs] = known
                self._asked[rows] = n_pairs
                self._count(rows, some)

    def _enumerated(self, index: npt.NDArray[np.int64]) -> Estimate:
        parts = []
        for row in index:  # the active players of two rows may differ
            some = self.block.take(np.array([row]))
            parts.append(Exact().estimate(some, self._all))
            self._count(np.array([row]), some)
        return Estimate.enumerated(np.concatenate([part.values for part in parts]))

    def _count(self, rows: npt.NDArray[np.int64], some: Block) -> None:
        if self.block.spent is not None:
            self.block.spent[rows] += some.counted
