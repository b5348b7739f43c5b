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
ROW_SPREAD, VALUE_SPREAD = 0.4, 0.7
"""The prior of both kinds of factors: standard deviations of their logarithms."""
PRIOR_WEIGHT = 0.5
"""What this prior counts for, as a share of all rows, or values, that tell otherwise."""
ROUNDS = 15
"""Rounds of EM."""
INDEPENDENT = 15
"""Values of a row that count as independent, at most: noise of many players comes from as few as 16 pairs of
coalitions, whose spread has 15 degrees of freedom."""
MOST_CORRECTED, CORRECTED = 4.0, 0.5
"""By how much the mean square of drawn errors may be corrected at most, and how much of it is, in logarithms: measured,
errors come out too small without, and bounds too wide with all of it."""
SMALLEST_UNIT = 0.5
"""The expected errors of a row are not taken for less than this share of what is usual: a single row whose errors are
expected to be far too small would otherwise tell alone how large those of all rows are."""
SMALLEST_SHARE = 0.05
"""No player's errors are taken for less than this share of the mean square of all."""
TINY = 1e-300
"""Keeps densities and mean squares above zero."""
NUMBERS_AT_A_TIME = 2**20
"""Numbers of a chunk of rows: memory stays bounded."""


@dataclass(frozen=True, eq=False)
class Seen:
    """Errors with noise on top, (rows, players, outputs).

    variance: of the noise, an unbiased estimate, zero where there is none; sizes: how large errors are usually believed
    to be beside each other, in any unit; open: (rows, players), values that can be wrong; units: (rows, outputs), how
    large the errors of each row are, from what knows nothing of the noise; None where `sizes` do not.
    """

    values: Array
    variance: Array
    sizes: Array
    open: BoolArray
    units: Array | None = None

    def take(self, index: npt.NDArray[np.int64]) -> Seen:
        """Some of the rows."""
        units = None if self.units is None else self.units[index]
        return Seen(self.values[index], self.variance[index], self.sizes[index], self.open[index], units)


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
    """Of one output: values = sizes * row factor * value factor * a standard normal; all (rows, players).

    The mean square of both factors is one, so that `sizes` say how large errors are and factors how they differ.
    """

    values: Array
    noisy: BoolArray
    sizes: Array
    """The usual size of each error; 1 where there is no noise."""
    noise: Array
    """Standard deviations of the noise."""
    row_shares: Array
    """(row factors, rows): how likely each is, given the row."""
    row_factors: Array
    value_factors: Array
    value_chances: Array
    """(value factors,) how often each is met."""
    weight: Array
    """What each square counts for where the size of all errors is told; 0 where there is no noise."""

    @staticmethod
    def of(seen: Seen, output: int) -> _Law:
        values, variance = seen.values[..., output], seen.variance[..., output]
        noisy = seen.open & (variance > 0)
        variance = pooled(np.where(noisy, variance, 0.0))
        sizes = np.where(noisy, seen.sizes[..., output], 1.0)
        units = _row_sizes(sizes, noisy) if seen.units is None else seen.units[:, output]
        weight = np.where(noisy, 1 / np.square(np.maximum(units, _smallest(units, noisy)))[:, None], 0.0)
        sizes = _usual_sizes(values, variance, sizes, weight)
        noise = np.sqrt(variance)
        return _Law(values, noisy, sizes, noise, *_fit(values / sizes, noise / sizes, noisy), weight)

    def draw(self, generator: np.random.Generator) -> Array:
        n_rows, n = self.values.shape
        row = _choose(self.row_shares, generator.random((n_rows,)))
        uniforms, normals = generator.random((n_rows, n)), generator.normal(size=(n_rows, n))
        result = self.values.copy()
        step = max(1, NUMBERS_AT_A_TIME // (n * len(VALUE_FACTORS)))
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            seen, noise = self.values[part] / self.sizes[part], self.noise[part] / self.sizes[part]
            of_row = self.row_factors[row[part], None]
            scale = of_row * self.value_factors[:, None, None]  # (factors, rows, 1)
            chances = _normal(seen, scale**2 + noise**2) * self.value_chances[:, None, None]
            own = np.square(of_row * self.value_factors[_choose(chances / chances.sum(axis=0), uniforms[part])])
            share = own / (own + noise**2)
            likely = share * seen + np.sqrt(share) * noise * normals[part]
            result[part] = np.where(self.noisy[part], likely * self.sizes[part], self.values[part])
        return np.where(self.noisy, self._corrected(result), result)

    def _corrected(self, errors: Array) -> Array:
        """Errors with a part of what their mean square lacks (or has too much) beside that of `sizes`.

        Draws given what was seen lose some of it where the law is not quite the true one.
        """
        found = float((self.weight * np.square(errors)).sum())
        ratio = float((self.weight * np.square(self.sizes)).sum()) / max(found, TINY)
        return np.asarray(errors * np.clip(ratio, 1 / MOST_CORRECTED, MOST_CORRECTED) ** (CORRECTED / 2))


def _row_sizes(sizes: Array, noisy: BoolArray) -> Array:
    """The root mean square of the noisy values' sizes, (rows,); 1 where a row has none."""
    count = noisy.sum(axis=1)
    mean = np.where(noisy, np.square(sizes), 0.0).sum(axis=1) / np.maximum(1, count)
    return np.sqrt(np.where(count > 0, mean, 1.0))


def _smallest(units: Array, noisy: BoolArray) -> float:
    """What `units`, (rows,), are not taken for less than."""
    told = units[noisy.any(axis=1) & (units > 0)]
    return SMALLEST_UNIT * float(np.median(told)) if len(told) else 1.0


def _usual_sizes(values: Array, variance: Array, sizes: Array, weight: Array) -> Array:
    """`sizes` times what the squares say of all values, and of each player as far as its rows tell, (rows, players).

    Squares count by `weight`, which knows nothing of the noise: over sizes that do, they would come out too small.
    """
    noisy = weight > 0
    squares, believed = weight * (values**2 - variance), weight * sizes**2
    count = noisy.sum(axis=0)  # (players,)
    total = max(float(believed.sum()), TINY)
    mean = squares.sum() / total
    # Rows are independent of each other, values of a row are not.
    spread = np.sqrt(np.square((squares - mean * believed).sum(axis=1)).sum()) / total
    overall = max(mean, spread, TINY)
    known = np.maximum(believed.sum(axis=0), 1e-140)
    own = squares.sum(axis=0) / known
    doubt = np.square(squares - own * believed).sum(axis=0) / np.square(known)
    seen = count > 1
    between = max(float(np.var(own[seen]) - doubt[seen].mean()), 0.0) if seen.sum() > 1 else 0.0
    share = np.where(seen, between / (between + doubt + TINY), 0.0)
    player = np.maximum(overall + share * (own - overall), SMALLEST_SHARE * overall)
    # Players with large errors are the least certain, and shrink most: what that takes from the whole is given back.
    player *= overall * known.sum() / max(float((player * known).sum()), TINY)
    return np.where(noisy, sizes * np.sqrt(player), 1.0)


def _fit(values: Array, noise: Array, noisy: BoolArray) -> tuple[Array, Array, Array, Array]:
    """How likely row factors are, (row factors, rows), both kinds of factors, and how often value factors are met."""
    n_rows, n = values.shape
    row_prior, value_prior = _lognormal(ROW_FACTORS, ROW_SPREAD), _lognormal(VALUE_FACTORS, VALUE_SPREAD)
    row_chances, value_chances = row_prior, value_prior
    shares = np.tile(row_prior[:, None], (1, n_rows))
    step = max(1, NUMBERS_AT_A_TIME // (n * len(ROW_FACTORS) * len(VALUE_FACTORS)))
    told = noisy.any(axis=1)
    count = np.array([told.sum(), noisy.sum()], dtype=np.float64)
    evidence = np.minimum(1.0, INDEPENDENT / np.maximum(1, noisy.sum(axis=1)))
    for _ in range(ROUNDS):
        rows, single = _unit(ROW_FACTORS, row_chances), _unit(VALUE_FACTORS, value_chances)
        scale2 = np.square(rows[:, None] * single)[..., None, None]
        met = np.zeros(len(VALUE_FACTORS))
        for start in range(0, n_rows, step):
            part = slice(start, start + step)
            parts = _normal(values[part], scale2 + noise[part] ** 2) * value_chances[:, None, None]
            whole = parts.sum(axis=1)  # (row factors, rows, players)
            log = evidence[part] * np.where(noisy[part], np.log(np.maximum(whole, TINY)), 0.0).sum(axis=2)
            log += np.log(row_chances)[:, None]
            likely = np.exp(log - log.max(axis=0))
            shares[:, part] = likely / likely.sum(axis=0)
            parts = parts / np.maximum(whole, TINY)[:, None] * noisy[part]
            met += np.einsum("rvij,ri->v", parts, shares[:, part])
        row_chances = _mixed(shares[:, told].sum(axis=1), row_prior, count[0])
        value_chances = _mixed(met, value_prior, count[1])
    return shares, _unit(ROW_FACTORS, row_chances), _unit(VALUE_FACTORS, value_chances), value_chances


def _unit(factors: Array, chances: Array) -> Array:
    """Factors in a unit in which their mean square is one."""
    return np.asarray(factors / np.sqrt((chances * np.square(factors)).sum()))


def _mixed(met: Array, prior: Array, count: float) -> Array:
    """How often factors are met, (factors,), from `count` rows or values and the prior."""
    chances = met + (PRIOR_WEIGHT * count + 1e-9) * prior
    return np.asarray(chances / chances.sum())


def _lognormal(factors: Array, spread: float) -> Array:
    """Chances of factors whose logarithms are normal around zero."""
    chances = np.exp(-0.5 * np.square(np.log(factors) / spread))
    return np.asarray(chances / chances.sum())


def _normal(values: Array, variance: Array) -> Array:
    """The density of a centred normal distribution, but for a constant."""
    return np.asarray(np.exp(-0.5 * np.square(values) / variance) / np.sqrt(variance) + TINY)


def _choose(shares: Array, uniforms: Array) -> npt.NDArray[np.int64]:
    """Positions along the first axis, by their shares; `uniforms` has the shape of the other axes."""
    return np.asarray(np.minimum((np.cumsum(shares, axis=0) < uniforms).sum(axis=0), len(shares) - 1))
