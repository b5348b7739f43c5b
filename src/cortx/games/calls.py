"""Calls of slow, remote and paid models: several at a time, at a limited rate, repeated where they fail."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from queue import Empty, SimpleQueue
from random import SystemRandom
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError, ModelError

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Task = TypeVar("Task")
Answer = TypeVar("Answer")
logger = logging.getLogger("cortx")
THREAD = "cortx-call"
"""What the names of the threads start with."""
SECONDS_TO_STOP = 1.0
"""An interrupted run waits at most this long for calls under way; a thread cannot be stopped from outside."""
SECONDS_UNAWARE = 0.5
"""How long a wait for answers may last before it looks for an interrupt."""
MOST_RETRY_AFTER = 3_600.0
"""Seconds a service can ask us to wait."""
WORTH_REPEATING = (408, 425, 429)
"""HTTP status codes below 500 that may be gone at the next try; any other 4xx is an answer."""


@dataclass(frozen=True, kw_only=True)
class Calls:
    """How a slow, remote or paid model is called: ``Game(model, reference, calls=Calls(workers=8, retries=5))``.

    The model's values are the same whatever `workers`, `per_second` and `retries` are. Every row counts once among the
    model evaluations, also when its call is repeated; `Game.repeated_calls` counts the repetitions.

    Parameters
    ----------
    workers:
        Calls under way at a time. A function is called from so many threads, so it must be safe to call from several;
        an ``async def`` function runs in one event loop.
    batch:
        Rows of a call, at most.
    per_second:
        Calls begun a second, at most, repetitions included: one every ``1 / per_second`` seconds. None: no limit.
    retries:
        How often a call that raised is repeated before the work stops with `cortx.errors.ModelError`. Errors with an
        HTTP status of 400 to 499 (408, 425 and 429 aside) and answers that are no finite numbers are not repeated.
    timeout:
        Seconds after which a call counts as failed. An ``async def`` function is cancelled; a plain function cannot be
        stopped from outside: its thread stays until it returns, and its answer is ignored. None: no limit.
    wait, longest_wait:
        Seconds before the first repetition, and at most. The wait doubles each time, and is cut at random by up to
        half. A Retry-After header of the error's response is obeyed, by all calls.
    """

    workers: int = 8
    batch: int = 64
    per_second: float | None = None
    retries: int = 0
    timeout: float | None = None
    wait: float = 1.0
    longest_wait: float = 60.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("batch", 1), ("retries", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number, {least} or more, got {value!r}")
        for name in ("per_second", "timeout", "wait", "longest_wait"):
            value = getattr(self, name)
            optional = name in ("per_second", "timeout")
            if (value is None and optional) or (_is_number(value) and (value > 0 or (not optional and value == 0))):
                continue
            allowed = "a positive number or None" if optional else "a number of seconds, 0 or more"
            raise InputError(f"{name} must be {allowed}, got {value!r}")

    def delay(self, repetition: int, uniform: float) -> float:
        """Seconds before a repetition, counted from 1, without a Retry-After; `uniform` is drawn from 0 to 1."""
        longest = min(self.longest_wait, self.wait * 2.0 ** min(repetition - 1, 60))
        return longest * (1 - uniform / 2)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


class Pace:
    """Spaces the beginnings of calls evenly: at most `per_second` in any second, and none before `hold` ends."""

    def __init__(self, per_second: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = 0.0 if per_second is None else 1 / per_second
        self._clock, self._next, self._lock = clock, -math.inf, threading.Lock()

    def reserve(self) -> float:
        """Takes the next free moment; returns the seconds until then."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._next)
            self._next = begin + self._every
            return begin - now

    def hold(self, seconds: float) -> None:
        """No call begins for so long."""
        with self._lock:
            self._next = max(self._next, self._clock() + seconds)


class Arrived(NamedTuple, Generic[Answer]):
    """The answer to the call with this number, counted from 0 in the order they were handed out."""

    number: int
    answer: Answer


class Caller:
    """Makes the calls of one game. `pause` waits for some seconds, or until an event is set: true if it was."""

    def __init__(
        self,
        calls: Calls,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self.calls, self.pace, self.pause = calls, Pace(calls.per_second, clock), pause
        self._lock, self._jitter = threading.Lock(), SystemRandom()
        self.repeated = 0
        """Calls that were repeated."""

    def __reduce__(self) -> tuple[type[Caller], tuple[Calls]]:
        return Caller, (self.calls,)  # a copy keeps a pace of its own

    def answers(
        self,
        ask: Callable[[Task], Answer],
        tasks: Iterator[Task],
        *,
        unasked: Callable[[Task], None],
        cancel: Callable[[], None],
        timed: bool,
    ) -> Generator[list[Arrived[Answer]]]:
        """Yields answers as they arrive. `tasks` is read in the caller's thread, whenever a worker is free.

        If a call fails for good, or `tasks` raises, no more are begun; those under way are still yielded, and then the
        error is raised. `unasked` is told, in the caller's thread, of tasks that were read but never asked. `cancel`
        ends calls under way, if the model can; `timed` says that `ask` itself keeps to the time limit.
        """
        burst = _Burst(self, ask if timed or self.calls.timeout is None else partial(_within, self.calls.timeout, ask))
        error: BaseException | None = None
        done = False
        try:
            while True:
                while error is None and not done and burst.under_way < self.calls.workers:
                    try:
                        burst.begin(next(tasks))
                    except StopIteration:
                        done = True
                    except Exception as raised:  # told once the calls under way, which are paid for, have arrived
                        error = raised
                if not burst.under_way:
                    break
                arrived, failure = burst.wait(unasked)
                if failure is not None and error is None:
                    error = failure
                    burst.giving_up.set()
                if arrived:  # before their workers get new work: who keeps answers is never behind by more than these
                    yield arrived
            if error is not None:
                raise error
        finally:
            burst.stop(cancel)

    def attempts(self, ask: Callable[[Task], Answer], task: Task, giving_up: threading.Event) -> Answer:
        """One call, repeated where it fails."""
        tried, failure = 0, None
        while True:
            if self.pause(giving_up, self.pace.reserve()):
                if failure is None:
                    raise _Stopped
                raise _failed(failure, tried) from failure
            if failure is not None:
                with self._lock:
                    self.repeated += 1
            tried += 1
            try:
                return ask(task)
            except (InputError, ModelError):
                raise
            except Exception as error:
                if tried > self.calls.retries or not worth_repeating(error) or giving_up.is_set():
                    raise _failed(error, tried) from error
                failure = error
            self._wait_after(failure, tried, giving_up)

    def _wait_after(self, error: Exception, tried: int, giving_up: threading.Event) -> None:
        """Waits before a repetition; ends sooner where the work is given up."""
        asked = retry_after(error)
        # Drawn from the system: processes that were refused at the same moment must not come back at the same moment.
        delay = self.calls.delay(tried, self._jitter.random()) if asked is None else asked
        if asked is not None:
            self.pace.hold(asked)
        logger.info(
            "a call of the model failed (%s); repetition %d of %d in %.1f s",
            _words(error), tried, self.calls.retries, delay,
        )  # fmt: skip
        self.pause(giving_up, delay)


class _Stopped(Exception):
    """The work ended before this call began."""


class _Burst(Generic[Task, Answer]):
    """Threads that live for one run of calls."""

    def __init__(self, caller: Caller, ask: Callable[[Task], Answer]) -> None:
        self._caller, self._ask = caller, ask
        self._tasks: SimpleQueue[tuple[int, Task, Context] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[int, Task, Any, BaseException | None]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.giving_up = threading.Event()
        self.under_way, self._begun = 0, 0

    def begin(self, task: Task) -> None:
        if self.under_way == len(self._threads):
            thread = threading.Thread(target=self._work, name=f"{THREAD}-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._tasks.put((self._begun, task, copy_context()))
        self._begun, self.under_way = self._begun + 1, self.under_way + 1

    def _work(self) -> None:
        while (given := self._tasks.get()) is not None:
            number, task, context = given
            try:
                answer = context.run(self._caller.attempts, self._ask, task, self.giving_up)
                self._results.put((number, task, answer, None))
            except BaseException as error:  # also what would end the program: the caller's thread raises it
                self._results.put((number, task, None, error))

    def wait(self, unasked: Callable[[Task], None]) -> tuple[list[Arrived[Answer]], BaseException | None]:
        """What has arrived, at least one answer or failure, and the first failure among it."""
        found: list[tuple[int, Task, Any, BaseException | None]] = []
        while not found:
            # An interrupt that comes just before a wait without end would be noticed after it only.
            with suppress(Empty):
                found.append(self._results.get(timeout=SECONDS_UNAWARE))
        while True:
            try:
                found.append(self._results.get_nowait())
            except Empty:
                break
        self.under_way -= len(found)
        arrived, failures = [], []
        for number, task, answer, error in found:
            if error is None:
                arrived.append(Arrived(number, answer))
            elif isinstance(error, _Stopped):
                unasked(task)
            else:
                failures.append(error)
        return arrived, failures[0] if failures else None

    def stop(self, cancel: Callable[[], None]) -> None:
        """Ends the threads: at once if no call is under way, else as soon as it returns."""
        self.giving_up.set()
        if self.under_way:
            cancel()
        for _ in self._threads:
            self._tasks.put(None)
        end = time.monotonic() + SECONDS_TO_STOP
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def _within(seconds: float, ask: Callable[[Task], Answer], task: Task) -> Answer:
    """What `ask` returns within the time; a call that takes longer is left to itself."""
    result: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run(context: Context) -> None:
        try:
            result.put((context.run(ask, task), None))
        except BaseException as error:
            result.put((None, error))

    threading.Thread(target=run, args=(copy_context(),), name=f"{THREAD}-timed", daemon=True).start()
    try:
        answer, error = result.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    found: Answer = answer
    return found


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _failed(error: Exception, tried: int) -> ModelError:
    times = "once" if tried == 1 else f"{tried} times"
    advice = "; Calls(retries=...) repeats calls that fail" if tried == 1 and worth_repeating(error) else ""
    return ModelError(f"a call of the model failed ({_words(error)}); it was tried {times}{advice}")


@dataclass(frozen=True)
class Pieces:
    """How pairs of a row and a coalition are divided into calls; a piece has the same number of calls as any other.

    A piece is as many pairs as one call has rows for, with all background rows of each; or one pair in several calls.
    """

    pairs: int
    background: int
    each: int
    """Pairs of a piece."""
    calls: int
    """Calls of a piece."""

    @classmethod
    def of(cls, pairs: int, background: int, batch: int) -> Pieces:
        return cls(pairs, background, max(1, batch // background), -(-background // batch))

    def part(self, piece: int) -> slice:
        return slice(piece * self.each, min(self.pairs, (piece + 1) * self.each))

    def rows(self, piece: int) -> int:
        """Masked rows of a piece."""
        return self.background * (min(self.pairs, (piece + 1) * self.each) - piece * self.each)

    def batches(self) -> Iterator[tuple[IntArray, IntArray]]:
        """For each call its masked rows: the numbers of their pairs and of their background rows."""
        for piece in range(-(-self.pairs // self.each)):
            part = self.part(piece)
            background, pair = np.divmod(np.arange(self.rows(piece)), part.stop - part.start)
            for some in np.array_split(np.arange(len(pair)), self.calls):
                yield part.start + pair[some], background[some]

    def mean(self, outputs: Array) -> Array:
        """The outputs of a piece, (background * pairs, outputs), averaged over the background: (pairs, outputs)."""
        result: Array = outputs.reshape(self.background, -1, outputs.shape[1]).sum(axis=0) / self.background
        return result


# What errors of HTTP clients say --------------------------------------------------------------------------------


def _status(error: BaseException) -> int | None:
    """The status of an HTTP error: of requests, httpx, aiohttp or urllib."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status
    return None


def worth_repeating(error: BaseException) -> bool:
    """Whether the same call may succeed later: not if a service says that the request itself is wrong."""
    status = _status(error)
    return status is None or not 400 <= status < 500 or status in WORTH_REPEATING


def retry_after(error: BaseException) -> float | None:
    """Seconds that a service asks to wait, from the Retry-After header (seconds or a date); None if it does not."""
    for holder in (getattr(error, "response", None), error):
        headers: Any = getattr(holder, "headers", None)
        text = headers.get("Retry-After") if hasattr(headers, "get") else None
        if text is None:
            continue
        try:
            seconds = float(text)
        except (TypeError, ValueError):
            try:
                moment = parsedate_to_datetime(str(text))
            except ValueError:
                continue
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            seconds = (moment - datetime.now(UTC)).total_seconds()
        if math.isfinite(seconds):
            return min(max(0.0, seconds), MOST_RETRY_AFTER)
    return None
