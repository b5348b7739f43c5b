"""KernelSHAP and Leverage SHAP: paired, without replacement."""

from __future__ import annotations

from math import comb
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.estimators.block import Block, Estimate, Estimator
from cortx.estimators.coalitions import allocate, pair_count, random_subsets, subsets_of_size
from cortx.estimators.exact import Exact

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Where a size has at most this many coalitions for each one asked for, they are drawn from a list of all.
LIST_FACTOR = 4
REDRAWS = 8


class KernelShap(Estimator):
    """Weighted least squares over random pairs of a coalition and its complement.

    Minimises sum of w(S) (v(S) - v(none) - sum of phi over S)^2 with phi adding up to v(all) - v(none), where
    w(S) = 1 / (C(n,s) s (n-s)) (Lundberg and Lee 2017). ``weights`` says how often coalitions are drawn:
    ``"kernel"`` in proportion to w, ``"leverage"`` evenly over sizes (Musco and Witter 2025). No pair is drawn
    twice; standard errors are those of a regression on a sample without replacement.
    """

    name: ClassVar[str] = "kernel"

    def __init__(self, weights: Literal["leverage", "kernel"] = "leverage") -> None:
        if weights not in ("leverage", "kernel"):
            raise InputError(f"weights must be 'leverage' or 'kernel', got {weights!r}")
        self.weights = weights

    def least(self, n_players: int) -> int:
        return min(2 * n_players, 2**n_players - 2)

    def spends(self, n_players: int, budget: int) -> int:
        return 2**n_players - 2 if budget >= 2**n_players - 2 else budget // 2 * 2

    def estimate(self, block: Block, budget: int) -> Estimate:
        n, n_rows = block.n_players, len(block.rows)
        if budget >= 2**n - 2:
            return Exact().estimate(block, budget)
        n_pairs = budget // 2
        sizes = np.arange(1, n // 2 + 1)
        expected = self._expected(n, n_pairs)
        counts = allocate(expected, block.uniforms(1, stream=0)[:, 0])
        coalitions, size = _draw(block, counts, sizes, n_pairs)
        values = block.values(np.concatenate([coalitions, ~coalitions], axis=1), distinct=True)
        contrast = (values[:, :n_pairs] - values[:, n_pairs:]) / 2  # half of v(S) - v(complement)
        # Regress on 1_S - s/n with phi = total/n + psi, psi adding up to zero: both sides of a pair at once.
        centred = coalitions - size[..., None] / n
        target = contrast + (0.5 - size / n)[..., None] * block.total[:, None, :]
        inclusion = (expected / np.array([pair_count(n, int(s)) for s in sizes]))[size - 1]
        kernel = np.array([1 / (comb(n, int(s)) * s * (n - s)) for s in sizes])[size - 1]
        psi, errors = _regress(centred, target, kernel / inclusion, inclusion)
        return Estimate(psi + block.total[:, None, :] / n, errors)

    def _expected(self, n: int, n_pairs: int) -> Array:
        """Expected pairs of each size, (sizes,), with inclusion probability min(1, c q) and c so that they add up."""
        sizes = np.arange(1, n // 2 + 1)
        population = np.array([pair_count(n, int(s)) for s in sizes], dtype=np.float64)
        mass = population / np.array([float(comb(n, int(s))) for s in sizes])  # leverage: 1 / C(n, s) for each pair
        if self.weights == "kernel":
            mass = mass / (sizes * (n - sizes))
        expected = np.zeros(len(sizes))
        open_ = np.ones(len(sizes), dtype=bool)
        while True:
            left = n_pairs - population[~open_].sum()
            expected[open_] = left * mass[open_] / mass[open_].sum()
            expected[~open_] = population[~open_]
            full = open_ & (expected >= population)
            if not full.any():
                return expected
            open_ &= ~full


def _draw(
    block: Block, counts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], n_pairs: int
) -> tuple[BoolArray, npt.NDArray[np.int64]]:
    """Different coalitions for every row, (rows, pairs, n), and their sizes, (rows, pairs), given counts by size."""
    n, n_rows = block.n_players, len(block.rows)
    # Slots are filled in order of size: slot t of a row has the size at which the running count passes t.
    ends = np.cumsum(counts, axis=1)
    slots = np.arange(n_pairs)
    size_index = (slots[None, :, None] >= ends[:, None, :]).sum(axis=2)
    size = sizes[size_index]
    keys = block.uniforms(n_pairs * n, stream=1).reshape(n_rows, n_pairs, n)
    coalitions = random_subsets(keys, size)
    if n % 2 == 0:  # of the two halves that make a pair, the one with player 0 stands for it
        halves = size == n // 2
        coalitions[halves & ~coalitions[:, :, 0]] ^= True
    listed = np.zeros(len(sizes), dtype=bool)
    for j, s in enumerate(sizes):
        most = int(counts[:, j].max(initial=0))
        if most <= 1 or pair_count(n, int(s)) > LIST_FACTOR * most:
            continue
        listed[j] = True
        table = subsets_of_size(n, int(s))[: pair_count(n, int(s))]  # the first half of the halves has player 0
        picks = np.argsort(block.uniforms(len(table), stream=2 + j), axis=1)[:, :most]
        where = size_index == j
        rank = slots[None, :] - (ends[:, j] - counts[:, j])[:, None]
        row, slot = np.nonzero(where)
        coalitions[row, slot] = table[picks[row, rank[row, slot]]]
    for attempt in range(REDRAWS):
        row, slot = np.nonzero(_repeated(coalitions) & ~listed[size_index])
        if len(row) == 0:
            break
        fresh = block.uniforms(n_pairs * n, stream=2 + len(sizes) + attempt).reshape(n_rows, n_pairs, n)
        redrawn = random_subsets(fresh[row, slot], size[row, slot])
        if n % 2 == 0:
            redrawn[(size[row, slot] == n // 2) & ~redrawn[:, 0]] ^= True
        coalitions[row, slot] = redrawn
    return coalitions, size


def _repeated(coalitions: BoolArray) -> BoolArray:
    """(rows, pairs): true where a coalition stands in an earlier slot of its row."""
    n_rows, n_pairs, n = coalitions.shape
    packed = np.packbits(coalitions, axis=2)
    if n <= 64:
        padded = np.zeros((n_rows, n_pairs, 8), dtype=np.uint8)
        padded[:, :, : packed.shape[2]] = packed
        words = padded.view(np.uint64)[:, :, 0]
    else:
        words = packed.view(np.dtype((np.void, packed.shape[2])))[:, :, 0]
    order = np.argsort(words, axis=1, kind="stable")
    ordered = np.take_along_axis(words, order, axis=1)
    same = np.concatenate([np.zeros((n_rows, 1), bool), ordered[:, 1:] == ordered[:, :-1]], axis=1)
    result = np.zeros((n_rows, n_pairs), dtype=bool)
    np.put_along_axis(result, order, same, axis=1)
    return result


def _regress(design: Array, target: Array, weight: Array, inclusion: Array) -> tuple[Array, Array]:
    """Weighted least squares of every row, and standard errors by linearisation.

    `design` (rows, k, n) lies in the plane of zero sums, `target` (rows, k, outputs), `weight` and `inclusion`
    (rows, k). The variance is A^-1 (sum of (1 - pi) u u') A^-1 with u = weight * design * residual, residuals
    inflated by their leverage (HC3), as for a sample drawn without replacement.
    """
    n = design.shape[2]
    weighted = design * weight[..., None]
    gram = weighted.transpose(0, 2, 1) @ design  # (rows, n, n), singular along (1, ..., 1)
    scale = np.trace(gram, axis1=1, axis2=2)[:, None, None] / n
    solver = np.linalg.pinv(gram + scale * np.ones((n, n)) / n, rcond=1e-10, hermitian=True)
    influence = weighted @ solver  # (rows, k, n): how much each observation moves each value
    values = influence.transpose(0, 2, 1) @ target
    residual = target - design @ values
    leverage = np.clip((influence * design).sum(axis=2), 0.0, 1 - 1e-6)
    # An observation drawn for certain is no source of sampling error.
    spread = (residual / (1 - leverage)[..., None]) ** 2 * (1 - inclusion)[..., None]
    variance = (influence**2).transpose(0, 2, 1) @ spread
    return values - values.mean(axis=1, keepdims=True), np.sqrt(np.maximum(variance, 0.0))
