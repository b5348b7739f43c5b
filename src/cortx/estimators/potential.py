"""Free labels: once every coalition of a row is known, so are the Shapley values of all its masked copies.

The copy that keeps the players T is the subgame v restricted to T. With the potential P of Hart and Mas-Colell
(1989), the Shapley value of player i in every subgame is P(T) - P(T without i), and P is one Möbius and one zeta
transform of v, without asking the model again.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def potential(values: Array) -> Array:
    """P(T) for every coalition T in binary order, from v(T) - v(none): both (rows, 2**n, outputs)."""
    size = values.shape[1]
    n_players = size.bit_length() - 1
    members = np.bitwise_count(np.arange(size, dtype=np.uint64)).astype(np.float64)
    dividends = _transform(values, n_players, -1.0)  # what no smaller coalition explains
    return _transform(dividends / np.maximum(1.0, members)[:, None], n_players, 1.0)


def _transform(values: Array, n_players: int, sign: float) -> Array:
    """Sums over subsets (sign 1), or their inverse (sign -1), as two matrix products: over low and over high bits."""
    rows, size, outputs = values.shape
    low = n_players // 2
    grid = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(rows * outputs, size >> low, 1 << low)
    # torch, whose threads are awake from the model; NumPy's would fight with them for the cores.
    high_sums, low_sums = (torch.from_numpy(_subset_sums(n, sign)) for n in (n_players - low, low))
    done = torch.matmul(torch.matmul(high_sums, torch.from_numpy(grid)), low_sums.t())
    return done.numpy().reshape(rows, outputs, size).transpose(0, 2, 1)


@lru_cache(maxsize=32)
def _subset_sums(n_players: int, sign: float) -> Array:
    """(2**n, 2**n): row T holds 1, or (-1)**(|T| - |S|), where S is inside T."""
    matrix = np.ones((1, 1))
    for _ in range(n_players):
        matrix = np.kron(np.array([[1.0, 0.0], [sign, 1.0]]), matrix)
    return matrix


def subgame_shapley(potential_: Array, kept: npt.NDArray[np.bool_]) -> Array:
    """Shapley values of masked copies, (rows, copies, n, outputs), from the potential and their kept players.

    `kept` is (rows, copies, n); players that are not kept get zero.
    """
    n_players = kept.shape[2]
    bits = np.int64(1) << np.arange(n_players)
    code = (kept * bits).sum(axis=2)  # (rows, copies)
    row = np.arange(len(kept))[:, None]
    without = np.where(kept, code[..., None] - bits, code[..., None])
    values: Array = potential_[row, code][:, :, None, :] - potential_[row[..., None], without]
    return values
