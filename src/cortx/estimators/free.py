"""Shapley values of games whose values cost nothing: one set of coalitions for many rows, and one product.

A design is a set of coalitions and a matrix that maps their values to Shapley values. Where the coalitions cannot all
be asked for, it is a Gaussian process regression on the cube: with signs z of plus or minus one for who is present, the
odd part of v has the covariance

    k(S, T) = sum_i a_i z_i z'_i + b (prod_i (1 + c_i z_i z'_i) - prod_i (1 - c_i z_i z'_i)) / 2,

single players with variances a_i, and interactions of a set of players with b times the product of their c_i. Only odd
interactions have a say in Shapley values, and each shares its part, 2 / its size, among its members. How much players
interact is learned once from values of a few rows (`fit_interactions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cortx.estimators.block import Block, coalition_count
from cortx.estimators.kernel_shap import draw_pairs, expected_pairs
from cortx.seeding import row_uniforms, stream_seed, uniforms_at

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
ENOUGH_PAIRS = 3
"""Pairs for each player from which the regression is better than permutations."""
MORE = 2
"""Coalitions are enumerated where that asks for at most so many times as much."""
NUGGET = 1e-7
"""Share of the mean variance that is added to every value, so that the covariance can be inverted."""
NODES = 24
STEPS, RATE = 60, 0.15
MOST_RELATED = 0.98


@dataclass(frozen=True, eq=False)
class Interactions:
    """What is believed of a game before it is asked: `single` a_i and `related` c_i, both (players,), and `joint` b."""

    single: Tensor
    related: Tensor
    joint: Tensor

    @staticmethod
    def unknown(n_players: int) -> Interactions:
        """Players alike, and interactions faint."""
        even = torch.full((n_players,), 1 / n_players, dtype=torch.float64)
        return Interactions(even, even.clone(), torch.tensor(0.05, dtype=torch.float64))

    def of(self, players: npt.NDArray[np.int64]) -> Interactions:
        """Of the active players of rows, (rows, n), place by place: the geometric mean over the rows."""
        index = torch.from_numpy(players)
        return Interactions(self.single[index].log().mean(0).exp(), self.related[index].log().mean(0).exp(), self.joint)

    def among(self, active: Tensor) -> Interactions:
        """Where only some players, (players,) of 0 and 1, can change anything."""
        return Interactions(self.single * active, self.related * active, self.joint)

    def covariance(self, signs: Tensor, others: Tensor | None = None) -> Tensor:
        """Of the odd parts at coalitions, signs (k, n), with those at others, (m, n), or with each other: (k, m)."""
        others = signs if others is None else others
        base, tilt = _logs(self.related)
        exponent = (signs * tilt) @ others.T
        product = (torch.exp(base.sum() + exponent) - torch.exp(base.sum() - exponent)) / 2
        return (signs * self.single) @ others.T + self.joint * product

    def with_values(self, signs: Tensor) -> Tensor:
        """The covariance of odd parts at coalitions with the Shapley values, (k, n).

        Of the product's interactions T with i a part 2 c_T / |T|, by the integral of t^(|T|-1) over [0, 1].
        """
        nodes, mass = np.polynomial.legendre.leggauss(NODES)
        result = 2 * self.single * signs
        for t, weight in zip((nodes + 1) / 2, mass / 2, strict=True):
            base, tilt = _logs(self.related * t)
            others, sloped = base.sum() - base, signs * tilt
            exponent = sloped.sum(dim=1, keepdim=True) - sloped
            both = torch.exp(others + exponent) + torch.exp(others - exponent)
            result = result + weight * self.joint * self.related * signs * both
        return result


def _logs(related: Tensor) -> tuple[Tensor, Tensor]:
    """log(1 + c z z') as base + tilt z z'."""
    more, less = torch.log1p(related), torch.log1p(-related)
    return (more + less) / 2, (more - less) / 2


def fit_interactions(coalitions: BoolArray, odd: Array, active: BoolArray | None = None) -> Interactions:
    """The most likely interactions, given odd parts (v(S) - v(complement)) / 2 of some rows, (rows, k), at (k, n).

    Each row has a scale of its own. Rows that are zero everywhere say nothing, and rows say nothing of players that are
    not `active` in them, (rows, n): what is found holds for rows in which a player is active, however rare they are.
    """
    size = np.sqrt(np.square(odd).mean(axis=1))
    told = np.flatnonzero(size > 0)
    start = Interactions.unknown(coalitions.shape[1])
    if len(told) == 0:
        return start
    known = torch.from_numpy(odd[told] / size[told, None])
    active = np.ones((len(odd), coalitions.shape[1]), dtype=bool) if active is None else active
    patterns, of_row = np.unique(active[told], axis=0, return_inverse=True)
    of_row = of_row.ravel()  # NumPy 2.0.0 keeps its axis
    alike = [(torch.from_numpy(pattern.astype(float)), known[of_row == i]) for i, pattern in enumerate(patterns)]
    signs = torch.from_numpy(2.0 * coalitions - 1)
    raw = [start.single.log(), torch.logit(start.related / MOST_RELATED), start.joint.log()]
    for tensor in raw:
        tensor.requires_grad_()
    optimizer = torch.optim.Adam(raw, lr=RATE)
    found = start
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - step / STEPS)
        tried = Interactions(raw[0].exp(), MOST_RELATED * torch.sigmoid(raw[1]), raw[2].exp())
        losses = [_unlikely(tried.among(pattern), signs, rows) for pattern, rows in alike]
        loss = torch.stack(losses).sum() / len(known)
        if not bool(torch.isfinite(loss)):
            break
        found = tried
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return Interactions(found.single.detach(), found.related.detach(), found.joint.detach())


def _unlikely(believed: Interactions, signs: Tensor, odd: Tensor) -> Tensor:
    """The negative log-likelihood of odd parts, (rows, k), up to a scale for each; infinite where none can be told."""
    factor, failed = torch.linalg.cholesky_ex(_with_nugget(believed.covariance(signs)))
    if int(failed):
        return torch.tensor(torch.inf, dtype=odd.dtype)
    surprise = torch.linalg.solve_triangular(factor, odd.T, upper=False).square().sum(dim=0)
    result: Tensor = len(signs) / 2 * surprise.log().sum() + len(odd) * factor.diagonal().log().sum()
    return result


def _with_nugget(covariance: Tensor) -> Tensor:
    return covariance + NUGGET * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=covariance.dtype)


@dataclass(frozen=True, eq=False)
class Design:
    """Coalitions, (k, n), all players last, and what each value v(S) - v(none) adds to each player, (n, k)."""

    coalitions: BoolArray
    weights: Array

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Both as float32."""
        masks, weights = torch.from_numpy(self.coalitions), torch.from_numpy(self.weights)
        return masks.to(device, torch.float32), weights.to(device, torch.float32)


def design_size(n: int, values: int) -> int:
    """How many coalitions a design has that may ask for about `values`."""
    if coalition_count(n) + 1 <= MORE * values:
        return coalition_count(n) + 1
    if values // 2 >= ENOUGH_PAIRS * n:
        return values // 2 * 2 + 1
    return _pairs_of_walks(n, values) * 2 * (n - 1) + 1


def make_design(n: int, values: int, seed: int, believed: Interactions | None = None) -> Design:
    """About `values` coalitions of n players: all of them, pairs for the regression, or antithetic permutations."""
    if coalition_count(n) + 1 <= MORE * values:
        return _every(n)
    if values // 2 < ENOUGH_PAIRS * n:
        return _walks(n, _pairs_of_walks(n, values), seed)
    coalitions = random_pairs(n, values // 2, seed)
    return _regression(coalitions, Interactions.unknown(n) if believed is None else believed)


def random_pairs(n: int, n_pairs: int, seed: int) -> BoolArray:
    """Different coalitions, evenly over the sizes and none the complement of another, and last all players: (k, n)."""
    draws = cast(Block, _Draws(n, seed))
    coalitions = draw_pairs(draws, expected_pairs(n, n_pairs, "leverage"), n_pairs)[0]
    return np.concatenate([coalitions, np.ones((1, n), dtype=bool)])


def odd_regression(signs: Tensor, others: Tensor, believed: Interactions) -> tuple[Tensor, Tensor]:
    """What odd parts at coalitions, signs (k, n) with all players last, say: the posterior means as linear maps.

    To the Shapley values, (n, k), and to the odd parts at other coalitions (m, n), (m, k).
    """
    gram = _with_nugget(believed.covariance(signs))
    wanted = torch.cat([believed.with_values(signs), believed.covariance(signs, others)], dim=1)
    solved = torch.linalg.solve(gram, wanted).T
    influence, n = solved[: signs.shape[1]], signs.shape[1]
    # The total is known: what the nugget keeps from adding up is shared out evenly.
    influence = influence - influence.mean(dim=0)
    influence[:, -1] += 2 / n
    return influence, solved[n:]


def _regression(coalitions: BoolArray, believed: Interactions) -> Design:
    """The posterior mean of the Shapley values, given v at coalitions and their complements; all players come last."""
    signs = torch.from_numpy(2.0 * coalitions - 1)
    influence = odd_regression(signs, signs[:0], believed)[0].numpy() / 2
    pairs = slice(0, len(coalitions) - 1)
    return Design(
        np.concatenate([coalitions[pairs], ~coalitions[pairs], coalitions[-1:]]),
        np.concatenate([influence[:, pairs], -influence[:, pairs], influence[:, -1:]], axis=1),
    )


@lru_cache(maxsize=16)
def _every(n: int) -> Design:
    """All coalitions, by the definition of the Shapley value."""
    codes = np.arange(1, 2**n)
    coalitions = ((codes[:, None] >> np.arange(n)) & 1).astype(bool)
    each = np.array([1 / (n * comb(n - 1, size)) for size in range(n)])
    size = coalitions.sum(axis=1)
    joins, leaves = np.append(0.0, each), np.append(each, 0.0)
    return Design(coalitions, np.where(coalitions, joins[size, None], -leaves[size, None]).T)


def _pairs_of_walks(n: int, values: int) -> int:
    return max(1, values // (2 * (n - 1)))


def _walks(n: int, pairs: int, seed: int) -> Design:
    """Antithetic permutations (`Permutation`), as one linear map of the values."""
    order = np.argsort(_Draws(n, seed).uniforms(pairs * n, stream=0).reshape(pairs, n), axis=1)
    position = np.argsort(order, axis=1)  # (pairs, n): when a player comes
    forward = position[:, None, :] < np.arange(1, n)[:, None]  # (pairs, n-1, n)
    weights = np.zeros((pairs, 2, n - 1, n))
    pair, step = np.arange(pairs)[:, None], np.arange(n - 1)
    for side, sign in ((0, 1.0), (1, -1.0)):  # the reverse order visits the complements
        weights[pair, side, step, order[:, :-1]] += sign
        weights[pair, side, step, order[:, 1:]] -= sign
    of_total = np.bincount(np.concatenate([order[:, 0], order[:, -1]]), minlength=n) / (2 * pairs)
    return Design(
        np.concatenate([np.stack([forward, ~forward], axis=1).reshape(-1, n), np.ones((1, n), dtype=bool)]),
        np.concatenate([weights.reshape(-1, n).T / (2 * pairs), of_total[:, None]], axis=1),
    )


class _Draws:
    """The uniform draws of one row, as `draw_pairs` takes them from a block."""

    rows = (0,)

    def __init__(self, n_players: int, seed: int) -> None:
        self.n_players, self.seed = n_players, seed
        self._word = np.zeros(1, dtype=np.uint64)

    def uniforms(self, count: int, stream: int) -> Array:
        return row_uniforms(self._word, stream_seed(self.seed, stream), 0, count)

    def uniforms_at(self, row: npt.NDArray[np.int64], counters: npt.NDArray[np.int64], stream: int) -> Array:
        return uniforms_at(self._word[row][:, None], stream_seed(self.seed, stream), counters)
