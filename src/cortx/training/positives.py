"""Masked views of a row, and the choice of the one that counts as its positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from cortx.errors import InputError
from cortx.games import Game, Rows
from cortx.games.players import coalition_words
from cortx.seeding import row_uniforms, stream_seed, uniforms_on

Positives = Literal["compact", "random", "farthest"]
POSITIVES: tuple[str, ...] = ("compact", "random", "farthest")
BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[np.float64]
Values = Callable[[Rows, BoolArray], Array]
"""v(S) of rows and coalitions, (rows, k, players) to (rows, k, outputs)."""

HARDLY = 1e-4
"""Copies of a row that coincide, on average: so few need not be counted."""
REPEATING = 24
"""Players of an image up to which copies may well coincide: it pays to look for those and evaluate them once."""


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
    asked: Values | None = None,
) -> BoolArray:
    """One masked copy for every row, as its kept players, (rows, players).

    "compact" is the copy whose model output is closest to the row's own (paper Eq. 4), "farthest" the opposite
    and "random" any (both: the paper's ablations, Sec. 4.3.3). Only "random" costs no evaluations, unless `asked` (a
    student) stands in for the model.
    """
    if how not in POSITIVES:
        raise InputError(f"positives must be one of {', '.join(map(repr, POSITIVES))}, got {how!r}")
    stream = stream_seed(seed, "positives", round_)
    if how == "random":
        count = 1
    chosen = np.empty((len(rows), game.n_players), dtype=bool)
    on_device = game.of_images and game.n_players > REPEATING
    # For every copy: of each player a draw, made of a few words of the same size, and whether it is kept.
    copy_bytes = 48 * game.n_players + 24 * game.n_outputs if on_device else 9 * game.n_players + 8 * game.n_outputs
    size = max(1, game.memory_budget // (count * copy_bytes))
    for start in range(0, len(rows), size):
        index = np.arange(start, min(start + size, len(rows)))
        part = rows.take(index)
        if on_device:
            chosen[index] = _chosen_on_device(game, part, outputs[index], how, count, keep, stream)
            continue
        masks = synthetic_positives(part.words, game.n_players, count, keep, stream)
        if how == "random":
            chosen[index] = masks[:, 0]
        else:
            values = game.values(part, masks) if asked is None else asked(part, masks)
            distance = np.linalg.norm(values - outputs[index, None, :], axis=2)
            best = distance.argmin(axis=1) if how == "compact" else distance.argmax(axis=1)
            chosen[index] = masks[np.arange(len(index)), best]
    return chosen


def count_values(
    game: Game, rows: Rows, *, how: Positives, count: int, keep: float, seed: int, rounds: int
) -> npt.NDArray[np.int64]:
    """Values v(S) of each row that `choose_positives` will ask for in so many rounds, (rows,); it asks for none.

    Copies of a row that coincide are evaluated once; they are drawn here to be counted, unless the row has so many
    active players that hardly any coincide.
    """
    values = np.full(len(rows), 0 if how == "random" else count * rounds, dtype=np.int64)
    if how == "random" or (game.of_images and game.n_players > REPEATING):
        return values
    coinciding = 0.5 * count**2 * (keep**2 + (1 - keep) ** 2) ** rows.active.sum(axis=1)
    few = np.flatnonzero(coinciding > HARDLY)
    size = max(1, game.memory_budget // (count * 9 * game.n_players))
    for start in range(0, len(few), size):
        index = few[start : start + size]
        active, words = rows.active[index], rows.words[index]
        values[index] = 0
        for round_ in range(rounds):
            stream = stream_seed(seed, "positives", round_)
            masks = synthetic_positives(words, game.n_players, count, keep, stream) & active[:, None, :]
            ordered = np.sort(coalition_words(masks), axis=1)
            values[index] += 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    return values


def _chosen_on_device(
    game: Game, rows: Rows, outputs: Array, how: Positives, count: int, keep: float, stream: int
) -> BoolArray:
    """The same choice, (rows, players): copies of images are drawn, evaluated and compared where the model is."""
    words = torch.from_numpy(rows.words.view(np.int64)).to(game.device)
    masks = (uniforms_on(words, stream, count * game.n_players) < keep).view(len(rows), count, game.n_players)
    if how == "random":
        return masks[:, 0].cpu().numpy()
    values = game.values_of(torch.from_numpy(rows.table.matrix).to(game.device), masks).double()
    distance = (values - torch.from_numpy(outputs).to(game.device)[:, None, :]).norm(dim=2)
    best = distance.argmin(dim=1) if how == "compact" else distance.argmax(dim=1)
    return masks[torch.arange(len(rows), device=game.device), best].cpu().numpy()
