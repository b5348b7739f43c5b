"""Free labels: once every coalition of a row is known, so are the Shapley values of all its masked copies.

The copy that keeps the players T is the subgame v restricted to T. With the potential P of Hart and Mas-Colell
(1989), the Shapley value of player i in every subgame is P(T) - P(T without i), and P is one Möbius and one zeta
transform of v: n 2^n additions, no evaluation of the model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def potential(values: Array) -> Array:
    """P(T) for every coalition T in binary order, from v(T) - v(none): both (rows, 2**n, outputs)."""
    rows, size, outputs = values.shape
    n_players = size.bit_length() - 1
    result = torch.from_numpy(values).clone()  # torch, for all of its threads
    members = np.bitwise_count(np.arange(size, dtype=np.uint64)).astype(np.float64)
    for i in range(n_players):  # dividends: subtract what smaller coalitions explain
        halves = result.view(rows, size >> (i + 1), 2, 1 << i, outputs)
        halves[:, :, 1] -= halves[:, :, 0]
    result /= torch.from_numpy(np.maximum(1.0, members))[:, None]
    for i in range(n_players):
        halves = result.view(rows, size >> (i + 1), 2, 1 << i, outputs)
        halves[:, :, 1] += halves[:, :, 0]
    return result.numpy()


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
