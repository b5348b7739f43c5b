"""Starting and stopping: uvicorn, signals, and a bounded drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from cortx.interfaces.server.app import App
from cortx.interfaces.server.catalog import Catalog
from cortx.interfaces.server.connection import Connection
from cortx.interfaces.server.http import HttpError
from cortx.interfaces.server.logs import Log
from cortx.interfaces.server.settings import Settings

QUIET_SECONDS = 0.1
"""A stopping server closes its door when no request came for so long."""
LINGER_SECONDS = 1.0
"""And at the latest after so long."""


class Server(uvicorn.Server):
    """uvicorn, but it answers what has arrived before it closes anything, and leaves with exit code 0."""

    def __init__(self, app: App, settings: Settings, on_start: Callable[[int], None] | None = None) -> None:
        self._app, self._on_start, self._settings = app, on_start, settings
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
                timeout_graceful_shutdown=int(settings.drain_seconds) + 2,
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

    async def startup(self, sockets: Any = None) -> None:
        self._app.catalog.watch(asyncio.get_running_loop())
        # What is loaded stays: the collector need not walk over all of torch again and again, a third of a second each.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)
        if self.started and self._on_start is not None:
            self._on_start(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: Any = None) -> None:
        """No longer ready; what arrives still is answered, then the door closes, then what was accepted is answered."""
        app, loop = self._app, asyncio.get_running_loop()
        app.log.write("stopping", rows=sum(entry.batcher.queued_rows for entry in app.catalog))
        app.draining = True
        last = loop.call_later(
            self._settings.drain_seconds,
            app.catalog.abort, HttpError(503, "the server stopped before this request was answered", (), "stopping"),
        )  # fmt: skip
        started, seen = loop.time(), -1
        while seen != app.started and loop.time() - started < min(LINGER_SECONDS, self._settings.drain_seconds):
            seen = app.started
            await asyncio.sleep(QUIET_SECONDS)
        await super().shutdown(sockets)
        last.cancel()
        app.catalog.close()
        app.log.write("stopped")


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
