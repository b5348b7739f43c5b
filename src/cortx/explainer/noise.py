"""Errors seen through noisy labels: what they are likely to be without the noise, drawn at random.

A label of few evaluations is off by noise of known variance. Taken as it is, it makes errors look larger than they are;
widened by what noise may do at worst, bounds become several times too wide. So the distribution of the errors is
estimated instead (empirical Bayes), and each row's errors are drawn from what is known of them: over many rows such
draws are distributed as the errors themselves, whatever the noise (docs/decisions/0013-control-variate.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DRAWS = 24
"""Random draws of all errors over which scores are averaged, place by place in their order."""
POOLED = 0.5
"""The share of a row's mean variance in that of each of its values: few pairs know little of single variances."""
ROW_FACTORS = np.exp(np.linspace(np.log(0.25), np.log(4.0), 7))
VALUE_FACTORS = np.exp(np.linspace(np.log(0.1), np.log(5.0), 9))
"""By how much the errors of a row, and single errors in it, may differ from their usual size."""
ROW_SPREAD, VALUE_SPREAD = 0.5, 0.7
BELIEF = 0.5
"""What these spreads of log factors count for, as a share of all rows and values that tell otherwise."""
ROUNDS = 15
SMALLEST_SHARE = 0.05
"""No player's errors are taken for less than this share of the mean square of all."""
NUMBERS_AT_A_TIME = 2**20


@dataclass(frozen=True, eq=False)
class Seen:
    """Errors with noise on top, (rows, players, outputs).

    variance: of the noise, an unbiased estimate, zero where there is none; sizes: how large errors are usually believed
    to be beside each other, in any unit; open: (rows, players), values that can be wrong.
    """

    values: Array
    variance: Array
    sizes: Array
    open: BoolArray


def pooled(variance: Array) -> Array:
    """Variances, (rows, players, ...), that share a part of the mean of their row's; where they are zero they stay."""
    noisy = variance > 0
    mean = variance.sum(axis=1, keepdims=True) / np.maximum(1, noisy.sum(axis=1, keepdims=True))
    return np.where(noisy, POOLED * mean + (1 - POOLED) * variance, 0.0)


def drawn(seen: Seen, generator: np.random.Generator, count: int = DRAWS) -> Iterator[Array]:
    """Random draws of the errors without their noise, (rows, players, outputs) each; values without noise stay."""
    outputs = range(seen.values.shape[2])
    laws = [_Law.of(seen, o) for o in outputs]
    for _ in range(count):
        yield np.stack([law.draw(generator) for law in laws], axis=2)


@dataclass(frozen=True, eq=False)
class _Law:
    """Of one output: values = sizes * row factor * value factor * a standard normal; all (rows, players)."""

    values: Array
    noisy: BoolArray
    sizes: Array
    """The usual size of each error; 1 where there is no noise."""
    noise: Array
    """Standard deviations of the noise."""
    row_shares: Array
    """(row factors, rows): how likely each is, given the row."""
    value_chances: Array
    """(value factors,) how often each is met."""

    @staticmethod
    def of(seen: Seen, output: int) -> _Law:
        values, variance = seen.values[..., output], seen.variance[..., output]
        noisy = seen.open & (variance > 0)
        variance = pooled(np.where(noisy, variance, 0.0))
        sizes = _usual_sizes(values, variance, np.where(noisy, seen.sizes[..., output], 1.0), noisy)
        noise = np.sqrt(variance)
        row_shares, value_chances = _fit(values / sizes, noise / sizes, noisy)
        return _Law(values, noisy, sizes, noise, row_shares, value_chances)

    def draw(self, generator: np.random.Generator) -> Array:
        n_rows, n = self.values.shape
        row = _choose(self.row_shares, generator.random((n_rows,)))
        uniforms, normals = generator.random((n_rows, n)), generator.normal(size=(n_rows, n))
        result = self.values.copy()
        step = max(1, NUMBERS_AT_A_TIME // (n * len(VALUE_FACTORS)))
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            seen, noise = self.values[part] / self.sizes[part], self.noise[part] / self.sizes[part]
            scale = ROW_FACTORS[row[part], None] * VALUE_FACTORS[:, None, None]  # (factors, rows, 1)
            chances = _normal(seen, scale**2 + noise**2) * self.value_chances[:, None, None]
            chosen = VALUE_FACTORS[_choose(chances / chances.sum(axis=0), uniforms[part])]
            own = np.square(ROW_FACTORS[row[part], None] * chosen)
            share = own / (own + noise**2)
            likely = share * seen + np.sqrt(share) * noise * normals[part]
            result[part] = np.where(self.noisy[part], likely * self.sizes[part], self.values[part])
        return result


def _usual_sizes(values: Array, variance: Array, sizes: Array, noisy: BoolArray) -> Array:
    """`sizes` times what the squares say of all values, and of each player as far as its rows tell, (rows, players)."""
    squares = np.where(noisy, (values**2 - variance) / sizes**2, 0.0)
    count = noisy.sum(axis=0)  # (players,)
    total = max(1, int(count.sum()))
    mean = squares.sum() / total
    # Rows are independent of each other, values of a row are not.
    spread = np.sqrt(np.square(np.where(noisy, squares - mean, 0.0).sum(axis=1)).sum()) / total
    pooled = max(mean, spread, 1e-300)
    known = np.maximum(1, count)
    own = squares.sum(axis=0) / known
    doubt = np.where(noisy, np.square(squares - own), 0.0).sum(axis=0) / known**2
    seen = count > 1
    between = max(float(np.var(own[seen]) - doubt[seen].mean()), 0.0) if seen.sum() > 1 else 0.0
    share = np.where(seen, between / (between + doubt + 1e-300), 0.0)
    player = np.maximum(pooled + share * (own - pooled), SMALLEST_SHARE * pooled)
    return np.where(noisy, sizes * np.sqrt(player), 1.0)


def _fit(values: Array, noise: Array, noisy: BoolArray) -> tuple[Array, Array]:
    """How likely each row factor is, (row factors, rows), and each value factor, (value factors,), by EM."""
    n_rows, n = values.shape
    row_prior, value_prior = _lognormal(ROW_FACTORS, ROW_SPREAD), _lognormal(VALUE_FACTORS, VALUE_SPREAD)
    row_chances, value_chances = row_prior, value_prior
    shares = np.tile(row_prior[:, None], (1, n_rows))
    scale2 = np.square(ROW_FACTORS[:, None] * VALUE_FACTORS)[..., None, None]
    step = max(1, NUMBERS_AT_A_TIME // (n * scale2.size))
    count = np.array([noisy.any(axis=1).sum(), noisy.sum()], dtype=np.float64)
    for _ in range(ROUNDS):
        met = np.zeros(len(VALUE_FACTORS))
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            parts = _normal(values[part], scale2 + noise[part] ** 2) * value_chances[:, None, None]
            whole = parts.sum(axis=1)  # (row factors, rows, players)
            log = np.where(noisy[part], np.log(np.maximum(whole, 1e-300)), 0.0).sum(axis=2)
            log += np.log(row_chances)[:, None]
            likely = np.exp(log - log.max(axis=0))
            shares[:, part] = likely / likely.sum(axis=0)
            parts = parts / np.maximum(whole, 1e-300)[:, None] * noisy[part]
            met += np.einsum("rvij,ri->v", parts, shares[:, part])
        told = noisy.any(axis=1)
        row_chances = _mixed(shares[:, told].sum(axis=1), row_prior, count[0])
        value_chances = _mixed(met, value_prior, count[1])
    return shares, value_chances


def _mixed(met: Array, prior: Array, count: float) -> Array:
    chances = met + (BELIEF * count + 1e-9) * prior
    return np.asarray(chances / chances.sum())


def _lognormal(factors: Array, spread: float) -> Array:
    chances = np.exp(-0.5 * np.square(np.log(factors) / spread))
    return np.asarray(chances / chances.sum())


def _normal(values: Array, variance: Array) -> Array:
    """The density of a centred normal distribution, but for a constant."""
    return np.asarray(np.exp(-0.5 * np.square(values) / variance) / np.sqrt(variance) + 1e-300)


def _choose(shares: Array, uniforms: Array) -> npt.NDArray[np.int64]:
    """Positions along the first axis, by their shares; `uniforms` has the shape of the other axes."""
    return np.asarray(np.minimum((np.cumsum(shares, axis=0) < uniforms).sum(axis=0), len(shares) - 1))
