"""Recognising a model by its outputs, and a game by its settings."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.games.game import Game
from cortx.seeding import numpy_generator

Array = npt.NDArray[np.float64]

# The same model gives the same outputs up to float rounding; another one differs by far more of their spread.
FINGERPRINT_TOLERANCE = 1e-3
N_PROBES = 32
MOST_COUNTED = 10_000
"""Rows of a table that say which value of a column is the commonest, at most."""
LEAST_SPREAD = 1e-6
"""Share of the largest output: what varies by less is taken to vary by this much."""
REDUCED_TOLERANCE = 2e-2
"""In reduced precision, where another choice of kernels on the same GPU already changes the third digit."""


@dataclass(frozen=True)
class ModelDifference:
    """How far a model's outputs are from those it gave for the same rows before, in the output that differs most."""

    largest: float
    spread: float
    tolerance: float = FINGERPRINT_TOLERANCE

    @property
    def same(self) -> bool:
        return self.largest <= self.tolerance * self.spread


def difference(now: Array, before: Array, precision: str | None = None) -> ModelDifference:
    """Outputs of equal shape, (rows, outputs), in the game's precision; each is measured by its own spread."""
    least = LEAST_SPREAD * (float(np.abs(before).max()) or 1.0)
    spreads, differences = np.maximum(np.ptp(before, axis=0), least), np.abs(now - before).max(axis=0)
    output = int((differences / spreads).argmax())
    tolerance = FINGERPRINT_TOLERANCE if precision is None else REDUCED_TOLERANCE
    return ModelDifference(float(differences[output]), float(spreads[output]), tolerance)


def probe_rows(matrix: Any, seed: int, part_of: npt.NDArray[np.int64] | None = None) -> Any:
    """Rows whose columns are each drawn on their own from the rows of a table, so that none of these is stored.

    In every other row some columns have another value than their commonest: in a table of mostly zeros, models could
    not be told apart by more zeros. These are as many columns as in a row of the table, so that probes look like rows
    of it, and each column in turn. Of images whole parts are drawn: `part_of` says to which one each number belongs.
    """
    generator = numpy_generator(seed, "probes")
    columns = matrix.shape[1] if part_of is None else int(part_of.max()) + 1
    index = generator.integers(0, len(matrix), size=(min(N_PROBES, len(matrix)), columns))
    if part_of is not None:
        return np.take_along_axis(matrix, index[:, part_of], axis=0)
    some = matrix[np.sort(generator.choice(len(matrix), min(len(matrix), MOST_COUNTED), replace=False))]
    probes = np.take_along_axis(matrix, index, axis=0)
    rare = np.zeros(some.shape, dtype=bool)
    for column in range(columns):
        _, code, count = np.unique(some[:, column], return_inverse=True, return_counts=True)
        rare[:, column] = code.ravel() != count.argmax()
    varied = generator.permutation(np.flatnonzero(rare.any(axis=0)))
    shown = range(1, len(probes), 2)
    each = max(1, min(round(rare.sum(axis=1).mean()), math.ceil(len(varied) / max(1, len(shown)))))
    for number, row in enumerate(shown):
        for column in np.take(varied, range(number * each, (number + 1) * each), mode="wrap") if len(varied) else ():
            probes[row, column] = generator.choice(some[rare[:, column], column])
    return probes


def game_key(game: Game, *settings: int | str) -> str:
    """A hash of the game, its model aside, and of further settings."""
    facts = [*settings, game.players.names, game.model.output, str(game.target)]
    parts = hashlib.sha256(json.dumps(facts).encode())
    for part in game.identity():
        parts.update(part.encode() if isinstance(part, str) else part.tobytes())
    return parts.hexdigest()
