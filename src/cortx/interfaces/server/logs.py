"""Structured logs: one JSON object a line on stderr, with no feature value in it."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Any, TextIO

import orjson

LAST_FRAMES = 6


class Log:
    """Writes events; those of one kind that come in masses are counted and written once a second."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.Lock()
        self._held: dict[tuple[str, str], list[float]] = {}

    def write(self, event: str, **facts: Any) -> None:
        line = {"time": round(time.time(), 3), "event": event, **facts}
        text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        with self._lock:
            self._stream.write(text + "\n")
            self._stream.flush()

    def often(self, event: str, key: str, **facts: Any) -> None:
        """At most one line a second for each event and key; it says how many it stands for."""
        now = time.monotonic()
        with self._lock:
            held = self._held.setdefault((event, key), [-1e9, 0])
            held[1] += 1
            if now - held[0] < 1 or len(self._held) > 1_000:
                return
            count, held[0], held[1] = int(held[1]), now, 0
        self.write(event, **facts, count=count)

    def failure(self, event: str, error: BaseException, **facts: Any) -> None:
        """An exception by its kind and place; its text may hold values, so it is left out."""
        frames = traceback.extract_tb(error.__traceback__)[-LAST_FRAMES:]
        cause = error.__cause__
        self.often(
            event, type(error).__name__, error=type(error).__name__,
            cause=None if cause is None else type(cause).__name__,
            at=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames], **facts,
        )  # fmt: skip
