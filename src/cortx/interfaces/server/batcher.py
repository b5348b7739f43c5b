"""Requests that arrive together are worked on together: a queue for each model, flushed on the next turn of the loop.

There is no waiting for company: what has arrived goes. While a batch is worked on, the next one gathers. Batches run
in one thread for each model, so that the loop never waits; those of a model that is always fast run on the loop.

A call of the model cannot be interrupted. While one hangs, requests behind it expire and give their place back; past
`stall` seconds new ones are refused at once, until the call returns.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeVar

from cortx.interfaces.server.http import HttpError

T = TypeVar("T")
CHECK_SECONDS = 0.02
"""How often deadlines are looked at."""
MOST_TURNS = 4
"""Turns of the loop that a batch waits at most, and only while each brings more."""
INLINE_SECONDS = 0.003
"""Batches that usually take less may run on the loop itself, which need not fight a thread for the interpreter's lock:
small ones, and only of works that are known to compute and nothing else (`may_inline`)."""
INLINE_ROWS = 128
RETRY_STALLED = 5
"""Seconds after which a client may ask a hung model again."""
SLOWEST = 1.0
"""Seconds that a batch counts at most: what is usual must not be forgotten for hours after one that hung."""


class Job(Generic[T]):
    """One accepted request: its rows, when it must be answered, and where its answer goes."""

    __slots__ = ("counted", "deadline", "future", "rows", "work")

    def __init__(self, work: T, rows: int, deadline: float, future: asyncio.Future[Any]) -> None:
        self.work, self.rows, self.deadline, self.future = work, rows, deadline, future
        self.counted = True
        """Whether its rows still take up places of the queue."""


class Batcher(Generic[T]):
    """The queue of one model and its one worker.

    `run` answers several requests at a time: for each a result, or the exception that is its own. `stall` is the number
    of seconds past which a running batch counts as hung; `on_stall` is told once when that happens.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Sequence[Any]],
        *,
        max_queue: int,
        max_batch: int,
        name: str = "model",
        on_batch: Callable[[int], None] | None = None,
        inline_seconds: float = INLINE_SECONDS,
        may_inline: Callable[[T], bool] | None = None,
        stall: float = math.inf,
        on_stall: Callable[[float], None] | None = None,
    ) -> None:
        self._stall, self._on_stall = stall, on_stall
        self._run, self._max_queue, self._max_batch = run, max_queue, max_batch
        self._on_batch, self._inline_seconds, self._may_inline = on_batch, inline_seconds, may_inline
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Job[T]] = deque()
        self._running: list[Job[T]] = []
        self._since = math.inf
        """When the running batch was given to the worker, by the loop's clock; infinity while none is."""
        self._told = False
        self._scheduled = False
        self._checking = False
        self._usual_seconds = SLOWEST
        self.queued_rows = 0
        """Rows that wait or are worked on, of requests that are not answered yet."""
        self._batches: SimpleQueue[list[Job[T]] | None] = SimpleQueue()
        # A daemon: a model that never returns must not keep a stopping server.
        self._worker = threading.Thread(target=self._work, name=f"cortx-{name}", daemon=True)
        self._worker.start()

    @property
    def busy_seconds(self) -> float:
        """How long the worker has been at the running batch; 0 while it is at none."""
        return 0.0 if self._loop is None else max(0.0, self._loop.time() - self._since)

    @property
    def stalled(self) -> bool:
        """Whether the running batch has taken longer than `stall`."""
        return self.busy_seconds > self._stall

    def submit(self, work: T, rows: int, seconds: float) -> asyncio.Future[Any]:
        """Takes a request, or refuses it: 429 where the queue is full, 503 where the model does not return.

        The future brings its answer or its own error.
        """
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if self.stalled:
            raise HttpError(
                503, f"the model has been at its last call for {self.busy_seconds:.0f} s; send it again later",
                ((b"retry-after", b"%d" % RETRY_STALLED),), "stalled",
            )  # fmt: skip
        # One request alone is always taken, however large: it could not get smaller by waiting.
        if self.queued_rows and self.queued_rows + rows > self._max_queue:
            wait = max(1, round(self._usual_seconds * self.queued_rows / self._max_batch))
            raise HttpError(
                429, f"{self.queued_rows:,} rows wait already; send it again in {wait} s",
                ((b"retry-after", b"%d" % wait),), "queue",
            )  # fmt: skip
        future = loop.create_future()
        self._waiting.append(Job(work, rows, loop.time() + seconds, future))
        self.queued_rows += rows
        if not self._scheduled and not self._running:
            self._scheduled = True
            loop.call_soon(self._flush, len(self._waiting), MOST_TURNS)
        if not self._checking:
            self._checking = True
            loop.call_later(CHECK_SECONDS, self._check_deadlines)
        return future

    def abort(self, error: Exception) -> None:
        """Answers everything that is still open with an error."""
        for job in (*self._running, *self._waiting):
            self._fail(job, error)
        self._waiting.clear()

    def close(self) -> None:
        self._batches.put(None)

    # The loop's side ------------------------------------------------------------------------------------------

    def _take(self) -> list[Job[T]]:
        """Jobs that still want an answer, up to the batch's size."""
        batch: list[Job[T]] = []
        rows = 0
        while self._waiting and (not batch or rows + self._waiting[0].rows <= self._max_batch):
            job = self._waiting.popleft()
            if job.future.done():
                self._release(job)
                continue
            batch.append(job)
            rows += job.rows
        return batch

    def _flush(self, seen: int, turns: int) -> None:
        """Sends what waits to work, unless more arrived in the turn just gone: then it waits for the next one."""
        assert self._loop is not None
        if turns and seen < len(self._waiting) < self._max_batch:
            self._loop.call_soon(self._flush, len(self._waiting), turns - 1)
            return
        self._scheduled = False
        if self._running:
            return
        batch = self._take()
        if not batch:
            return
        self._running = batch
        if self._usual_seconds < self._inline_seconds and self._computes(batch):
            self._deliver(batch, *self._timed(batch))
        else:
            self._since, self._told = self._loop.time(), False
            self._batches.put(batch)

    def _computes(self, batch: list[Job[T]]) -> bool:
        """Whether a batch is small and calls nobody who might wait for something."""
        may = self._may_inline
        return may is not None and sum(job.rows for job in batch) <= INLINE_ROWS and all(may(job.work) for job in batch)

    def _timed(self, batch: list[Job[T]]) -> tuple[Sequence[Any], float]:
        started = perf_counter()
        try:
            results = self._run([job.work for job in batch])
        except BaseException:  # `run` answers for its own failures; this one is ours, and nobody may wait for ever
            results = [HttpError(500, "something went wrong inside the server", (), "internal")] * len(batch)
        return results, perf_counter() - started

    def _deliver(self, batch: list[Job[T]], results: Sequence[Any], seconds: float) -> None:
        assert self._loop is not None
        self._usual_seconds = 0.8 * self._usual_seconds + 0.2 * min(seconds, SLOWEST)
        rows, now = 0, self._loop.time()
        for job, result in zip(batch, results, strict=True):
            rows += job.rows
            self._release(job)
            if not job.future.done():
                if now >= job.deadline:
                    job.future.set_exception(_late())
                elif isinstance(result, BaseException):
                    job.future.set_exception(result)
                else:
                    job.future.set_result(result)
        self._running, self._since = [], math.inf
        if self._on_batch is not None:
            self._on_batch(rows)
        if self._waiting:
            self._scheduled = True
            self._loop.call_soon(self._flush, len(self._waiting), MOST_TURNS)

    def _check_deadlines(self) -> None:
        """Answers requests that are late, which frees their places, and tells of a batch that hangs."""
        assert self._loop is not None
        now = self._loop.time()
        late = [job for job in (*self._running, *self._waiting) if job.counted and now >= job.deadline]
        for job in late:
            self._fail(job, _late())
        if late:
            self._waiting = deque(job for job in self._waiting if job.counted)
        if self.stalled and not self._told:
            self._told = True
            if self._on_stall is not None:
                self._on_stall(self.busy_seconds)
        self._checking = bool(self._running or self._waiting)
        if self._checking:
            self._loop.call_later(CHECK_SECONDS, self._check_deadlines)

    def _fail(self, job: Job[T], error: Exception) -> None:
        self._release(job)
        if not job.future.done():
            job.future.set_exception(error)

    def _release(self, job: Job[T]) -> None:
        """Gives the places of a job back, once."""
        if job.counted:
            job.counted = False
            self.queued_rows -= job.rows

    # The worker's side ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            results, seconds = self._timed(batch)
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._deliver, batch, results, seconds)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


def _late() -> HttpError:
    return HttpError(504, "the deadline passed before this request was answered", (), "deadline")
