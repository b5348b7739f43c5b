"""An event loop for ``async def`` models, beside whatever loop the caller may be in."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SECONDS_TO_STOP = 1.0
"""How long calls that are cancelled are waited for. A function that blocks the loop, or does not let itself be
cancelled, is left to itself."""


class EventLoop:
    """One event loop, in a thread of its own that lives while the loop is used.

    The loop itself stays, so that a client with open connections (httpx, aiohttp) can be used again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __reduce__(self) -> tuple[type[EventLoop], tuple[()]]:
        return EventLoop, ()  # a loop belongs to one process, and cannot be copied

    @contextmanager
    def running(self) -> Iterator[asyncio.AbstractEventLoop]:
        """The loop, running; several threads may use it at a time."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                weakref.finalize(self, _close, self._loop)
            if self._users == 0:
                self._thread = threading.Thread(target=self._loop.run_forever, name="cortx-event-loop", daemon=True)
                self._thread.start()
            self._users += 1
        try:
            yield self._loop
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._end(self._loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._thread is not None
        cancelled = asyncio.run_coroutine_threadsafe(_cancelled(self._tasks), loop)
        answers = False
        try:
            cancelled.result(2 * SECONDS_TO_STOP)
            answers = True
        except TimeoutError:
            pass
        finally:  # also if this wait is interrupted
            if not answers:  # it stops once it answers, and the next call gets another loop
                cancelled.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
                self._loop, self._tasks = None, set()
        if answers:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()

    def result(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """What a coroutine returns; it is cancelled after `timeout` seconds (`TimeoutError`)."""
        with self.running() as loop:
            future = asyncio.run_coroutine_threadsafe(self._noted(coroutine, timeout), loop)
            try:
                return future.result(None if timeout is None else timeout + SECONDS_TO_STOP)
            except BaseException as error:
                blocked = isinstance(error, TimeoutError) and timeout is not None and not future.done()
                future.cancel()
                if not blocked:
                    raise
                raise TimeoutError(
                    f"no answer within {timeout:g} s, and the call cannot be cancelled: an async def function must "
                    "await what takes long, and not block its event loop"
                ) from None

    async def _noted(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if timeout is None:
                return await coroutine
            try:
                return await asyncio.wait_for(coroutine, timeout)
            except TimeoutError as error:
                raise TimeoutError(str(error) or f"no answer within {timeout:g} s") from None
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        """Ends the calls under way; who waits for them gets `CancelledError`."""
        loop = self._loop
        if loop is not None and loop.is_running():
            with suppress(RuntimeError, TimeoutError):  # it ended meanwhile, or is blocked
                asyncio.run_coroutine_threadsafe(_cancelled(self._tasks), loop).result(2 * SECONDS_TO_STOP)


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Ends our own calls; what a client does in the background goes on when the loop runs again."""
    waiting = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting, timeout=SECONDS_TO_STOP)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_running():  # blocked ones end with the program
        loop.close()
