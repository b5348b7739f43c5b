"""Masked views of a row, and the choice of the one that counts as its positive."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.games import Game, Rows
from cortx.seeding import row_uniforms, stream_seed

Positives = Literal["compact", "random", "farthest"]
POSITIVES: tuple[str, ...] = ("compact", "random", "farthest")
BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float64]


def synthetic_positives(
    words: npt.NDArray[np.uint64], n_players: int, count: int, keep: float, stream: int
) -> BoolArray:
    """The kept players of `count` masked copies of every row, (rows, count, players) (paper Eq. 2).

    Each player is kept with probability `keep` (the paper's lambda), by the row's own draws.
    """
    draws = row_uniforms(words, stream, 0, count * n_players)
    return draws.reshape(len(words), count, n_players) < keep


def choose_positives(
    game: Game,
    rows: Rows,
    outputs: Array,
    *,
    how: Positives,
    count: int,
    keep: float,
    seed: int,
    round_: int,
) -> BoolArray:
    """One masked copy for every row, as its kept players, (rows, players).

    "compact" is the copy whose model output is closest to the row's own (paper Eq. 4), "farthest" the opposite
    and "random" any (both: the paper's ablations, Sec. 4.3.3). Only "random" costs no evaluations.
    """
    if how not in POSITIVES:
        raise InputError(f"positives must be one of {', '.join(map(repr, POSITIVES))}, got {how!r}")
    stream = stream_seed(seed, "positives", round_)
    if how == "random":
        count = 1
    chosen = np.empty((len(rows), game.n_players), dtype=bool)
    size = max(1, game.memory_budget // (count * (9 * game.n_players + 8 * game.n_outputs)))
    for start in range(0, len(rows), size):
        index = np.arange(start, min(start + size, len(rows)))
        part = rows.take(index)
        masks = synthetic_positives(part.words, game.n_players, count, keep, stream)
        if how == "random":
            chosen[index] = masks[:, 0]
        else:
            distance = np.linalg.norm(game.values(part, masks) - outputs[index, None, :], axis=2)
            best = distance.argmin(axis=1) if how == "compact" else distance.argmax(axis=1)
            chosen[index] = masks[np.arange(len(index)), best]
    return chosen
