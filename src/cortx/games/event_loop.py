"""An event loop for ``async def`` models, beside whatever loop the caller may be in."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any


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
                weakref.finalize(self, self._loop.close)
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
        asyncio.run_coroutine_threadsafe(self._cancelled(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()

    async def _cancelled(self) -> None:
        """Ends our own calls; what a client does in the background goes on when the loop runs again."""
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def result(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """What a coroutine returns; it is cancelled after `timeout` seconds (`TimeoutError`)."""
        with self.running() as loop:
            future = asyncio.run_coroutine_threadsafe(self._noted(coroutine, timeout), loop)
            try:
                return future.result()
            except BaseException:
                future.cancel()
                raise

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
            with suppress(RuntimeError):  # it ended meanwhile
                asyncio.run_coroutine_threadsafe(self._cancelled(), loop).result()
