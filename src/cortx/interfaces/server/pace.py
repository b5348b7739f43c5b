"""Background work within a share of one core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortx.games.models import Model

CHUNK_ROWS = 2_048
"""Rows of one call of the model, so that bursts are short and closing is soon."""
LEAST_REST = 0.005


class ClosedError(Exception):
    """The audit ends."""


class Pace:
    """Rests so long after work that work takes at most a share of the time.

    `sleep` gets seconds and says whether the audit ends. Time is that of a clock on the wall: where others need the
    processor, the audit takes less of it.
    """

    def __init__(self, share: float, clock: Callable[[], float], sleep: Callable[[float], bool]) -> None:
        self._share, self._clock, self._sleep = share, clock, sleep
        self._since = clock()
        self._owed = 0.0

    def start(self) -> None:
        """Work begins."""
        self._since = self._clock()

    def rest(self, *, all_of_it: bool = False) -> None:
        """Work pauses: what it took is paid for with rest, once that is worth a pause."""
        now = self._clock()
        self._owed += (now - self._since) * (1 / self._share - 1)
        self._since = now
        if self._owed < LEAST_REST and not all_of_it:
            return
        if self._sleep(self._owed):
            raise ClosedError
        self._since = self._clock()
        self._owed = max(0.0, self._owed - (self._since - now))


class Paced(Model):
    """A model that rests after every batch."""

    def __init__(self, model: Model, pace: Pace) -> None:
        super().__init__(model.output)
        self._model, self._pace = model, pace
        self.tensor, self.dtype, self.device = model.tensor, model.dtype, model.device
        self.class_names, self.frames = model.class_names, model.frames
        self.chunk_rows = min(model.chunk_rows, CHUNK_ROWS)

    def outputs(self, batch: Any) -> Any:
        return self._model.outputs(batch)

    def _ask(self, batch: Any, n_rows: int) -> Any:
        found = super()._ask(batch, n_rows)
        self._pace.rest()
        return found
