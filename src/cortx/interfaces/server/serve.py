"""Starting and stopping: uvicorn, signals, and a bounded drain.

SIGTERM: readiness fails at once, and new connections are still answered for `linger` seconds, since whoever sends
traffic learns of it late; then the listening socket closes and what was accepted is answered, within `drain_seconds`.
SIGINT (Ctrl+C) skips the first stage. Each further signal ends the stage that is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from cortx.interfaces.server.app import App
from cortx.interfaces.server.catalog import Catalog
from cortx.interfaces.server.connection import Connection
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings

QUIET_SECONDS = 0.1
"""After the linger the listening socket closes as soon as no request came for so long."""
MOST_QUIET_SECONDS = 1.0
"""And at the latest after so long."""
LAST_SECONDS = 2
"""What is left for writing the last answers after the drain."""


class Server(uvicorn.Server):
    """uvicorn, but it answers what has arrived before it closes anything, and leaves with exit code 0."""

    def __init__(self, app: App, settings: Settings, on_start: Callable[[int], None] | None = None) -> None:
        self._app, self._on_start, self._settings = app, on_start, settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hurry = asyncio.Event()
        """Set by a signal that ends the stage under way."""
        self._linger = settings.linger
        limits = {"seconds": settings.body_seconds, "unread": 8 * settings.max_body}
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                loop="uvloop",
                http=type("Connection", (Connection,), limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=4_096,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + LAST_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield
        finally:
            for number, handler in before.items():
                # A second one must not turn an orderly end into a kill.
                signal.signal(number, signal.SIG_IGN if handler is signal.SIG_DFL else handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self.should_exit = True
            if sig == signal.SIGINT:
                self._linger = 0.0
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurry.set)

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._app.catalog.watch(self._loop)
        # What is loaded stays: the collector need not walk over all of torch again and again, a third of a second each.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)
        if self.started and self._on_start is not None:
            self._on_start(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: Any = None) -> None:
        """No longer ready; what arrives still is answered, then the door closes, then what was accepted is answered."""
        app = self._app
        app.draining = True
        app.log.write("stopping", rows=self._open_rows(), linger=self._linger)
        await self._stage(self._linger)
        app.log.write("draining", rows=self._open_rows())
        last = asyncio.create_task(self._abort())
        await self._quiet()
        await super().shutdown(sockets)
        last.cancel()
        app.catalog.close()
        app.log.write("stopped")

    def _open_rows(self) -> int:
        return sum(entry.batcher.queued_rows for entry in self._app.catalog)

    async def _stage(self, seconds: float) -> None:
        """Waits so long, or until a further signal comes."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)
        self._hurry.clear()

    async def _abort(self) -> None:
        """Ends the drain: what is still open is refused."""
        await self._stage(self._settings.drain_seconds)
        self._app.catalog.abort(
            HttpError(503, "the server stopped before this request was answered", (), "stopping")
        )  # fmt: skip

    async def _quiet(self) -> None:
        """Waits until no request came for a moment: those that the kernel has accepted are read before the end."""
        assert self._loop is not None
        started, seen = self._loop.time(), -1
        while seen != self._app.started and self._loop.time() - started < MOST_QUIET_SECONDS:
            seen = self._app.started
            await asyncio.sleep(QUIET_SECONDS)


def run(
    folders: Sequence[Path],
    models: Mapping[str, Any],
    settings: Settings,
    *,
    examples: Mapping[str, Any] | None = None,
    on_start: Callable[[int], None] | None = None,
) -> None:
    """Serves until a signal comes."""
    import torch

    torch.set_num_threads(settings.threads)
    log = Log()
    catalog = Catalog(folders, models, settings, log, examples=examples)
    server = Server(App(catalog, settings, log), settings, on_start)
    server.run()
