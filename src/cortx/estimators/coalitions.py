"""Coalitions: all of them, random ones of a given size, random permutations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


CHUNK = 2**14
"""Coalitions that are enumerated at a time."""


def all_coalitions(n_players: int, chunk: int = CHUNK) -> Iterator[BoolArray]:
    """Every coalition but the empty and the full one, in chunks (k, players), in binary order."""
    if 2**n_players <= CHUNK:
        yield _enumerated(n_players)
        return
    bits = np.arange(n_players)
    for start in range(1, 2**n_players - 1, chunk):
        codes = np.arange(start, min(start + chunk, 2**n_players - 1))
        yield ((codes[:, None] >> bits) & 1).astype(bool)


@lru_cache(maxsize=16)
def _enumerated(n_players: int) -> BoolArray:
    codes = np.arange(1, 2**n_players - 1)
    return ((codes[:, None] >> np.arange(n_players)) & 1).astype(bool)


@lru_cache(maxsize=16)
def subsets_of_size(n_players: int, size: int) -> BoolArray:
    """All coalitions of one size, (C(n, size), players)."""
    members = np.array(list(combinations(range(n_players), size)), dtype=np.int64).reshape(-1, size)
    table = np.zeros((len(members), n_players), dtype=bool)
    np.put_along_axis(table, members, True, axis=1)
    table.setflags(write=False)
    return table


def allocate(expected: Array, uniforms: Array) -> npt.NDArray[np.int64]:
    """Whole counts with the expected means by systematic rounding, (rows, sizes); each row has the same total.

    `expected` is (sizes,) with a whole sum, `uniforms` (rows,).
    """
    cumulative = np.concatenate([[0.0], np.cumsum(expected)])
    cumulative[-1] = np.rint(cumulative[-1])
    # A whole expectation must not move by a float's breath.
    near = np.rint(cumulative)
    cumulative = np.where(np.abs(cumulative - near) < 1e-9, near, cumulative)
    steps = np.floor(cumulative[None, :] + uniforms[:, None])
    return np.diff(steps, axis=1).astype(np.int64)


def random_subsets(keys: Array, sizes: npt.NDArray[np.int64]) -> BoolArray:
    """The `sizes` (at least 1) smallest of each row of keys, (..., players): uniform subsets of the given sizes."""
    largest = np.take_along_axis(np.sort(keys, axis=-1), sizes[..., None] - 1, axis=-1)
    return keys <= largest  # keys have 53 random bits: they do not tie


def pair_count(n_players: int, size: int) -> int:
    """How many pairs {S, complement} have a smaller side of this size, 1 <= size <= n/2."""
    count = comb(n_players, size)
    return count // 2 if 2 * size == n_players else count
