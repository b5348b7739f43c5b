"""Standard errors from few draws, made large enough that normal tails may be read from them."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NOISE_RISK = 0.002
"""The chance, for each row, that its label is farther off than its standard errors account for."""
LEAST_DRAWS = 8
"""Fewer independent draws say too little of their own spread: the standard error is not known (NaN)."""
ASSUMED = 1.5
"""Draws assumed beside those that were made, each as far off as the row's widest spread between two draws.

As Agresti and Coull (1998) add trials to a binomial sample: k draws may all miss an outcome whose chance is a few
k-ths.
"""
MANY = 1_000
"""Degrees of freedom from which Student's tails are taken for normal ones."""


def mean_error(draws: Array) -> Array:
    """The standard error of a mean over independent draws, (rows, n, outputs), from (rows, draws, n, outputs).

    NaN for fewer than `LEAST_DRAWS`; else the usual one times `tail_factor`, with `ASSUMED` more draws: marginal
    contributions often take two or three values, and a player for whom all draws happen to agree is not known for
    certain. Zero where all draws of all players agree.
    """
    count, n = draws.shape[1:3]
    if count < LEAST_DRAWS:
        return np.full((len(draws), *draws.shape[2:]), np.nan)
    squares = np.square(draws - draws.mean(axis=1, keepdims=True)).sum(axis=1)
    widest = np.ptp(draws, axis=1).max(axis=1, keepdims=True)  # (rows, 1, outputs)
    variance = (squares + ASSUMED * np.square(widest)) / (count * (count - 1))
    return np.asarray(tail_factor(count - 1, n) * np.sqrt(variance))


def tail_factor(freedom: int, n_values: int) -> float:
    """Student's quantile over the normal one, where all of a row's `n_values` stay within but for `NOISE_RISK`.

    A standard error estimated with so many degrees of freedom, times this, has normal tails there (and lighter ones
    nearer to the middle); NaN where they are fewer than `LEAST_DRAWS` - 1.
    """
    if freedom < LEAST_DRAWS - 1:
        return math.nan
    return 1.0 if freedom >= MANY else _ratio(freedom, max(1, n_values))


@lru_cache(maxsize=4_096)
def _ratio(freedom: int, n_values: int) -> float:
    tail = NOISE_RISK / (2 * n_values)
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return high / NormalDist().inv_cdf(1 - tail)


def student_tail(t: float, freedom: int) -> float:
    """The chance that Student's t with a whole number of degrees of freedom exceeds t >= 0.

    By the finite sums of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4, with tan(theta) = t / sqrt(freedom).
    """
    theta = math.atan2(t, math.sqrt(freedom))
    cosine2 = math.cos(theta) ** 2
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for k in range(odd + 1, freedom, 2):
        total += term
        term *= cosine2 * k / (k + 1)
    inside = math.sin(theta) * total
    if odd:
        inside = 2 / math.pi * (theta + inside)
    return (1 - inside) / 2
