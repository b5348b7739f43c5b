"""What every rival promises: `explain`, with the one result type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explanation import Explanation
from cortx.games import Game, Rows

Array = npt.NDArray[np.float64]


class Rival(ABC):
    """A method to compare with. Those that sample take their game when built; those that learn, in `fit`."""

    name: ClassVar[str]

    @abstractmethod
    def explain(self, X: Any, outputs: Any = None) -> Explanation:
        """Attributions of rows. `outputs`, what the model gave for them, saves evaluations where a method needs it."""


def full_values(game: Game, rows: Rows, outputs: Any = None) -> Array:
    """v(all), (rows, outputs): as the caller gave it, or from the model."""
    if outputs is None:
        return game.full_values(rows)
    full = np.asarray(outputs, dtype=np.float64)
    full = full[:, None] if full.ndim == 1 else full
    if full.shape != (len(rows), game.n_outputs):
        raise InputError(
            f"outputs have shape {np.shape(outputs)}; expected one number for each row and output, "
            f"({len(rows)}, {game.n_outputs})"
        )
    return full


class Account:
    """The clock and the counter of one explanation; start it once the rows are read."""

    def __init__(self, game: Game) -> None:
        self.game, self.started, self.spent = game, perf_counter(), game.evaluations

    def close(self, rows: Rows, values: Array, full: Array, method: str, empty: Array | None = None) -> Explanation:
        """The explanation, from `values` (rows, players, outputs), v(all), `full`, and v(none), (rows, outputs)."""
        game, one = self.game, self.game.n_outputs == 1
        empty = game.empty_values(rows) if empty is None else empty
        each = (..., 0) if one else (...,)
        return Explanation(
            values=values[each],
            base_values=empty.copy()[each],
            feature_names=game.players.names,
            data=rows.data,
            output_names=game.output_names,
            outputs=full[each],
            evaluations=game.evaluations - self.spent,
            seconds=perf_counter() - self.started,
            method=method,
        )
