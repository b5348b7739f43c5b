"""A small HTTP/1.1 load generator for servers on this machine; it reports as JSON, and runs in a process of its own.

    python -m benchmarks.load http://127.0.0.1:8080/explain --bodies bodies.jsonl [--connections 64] [--rate 2000]

Without a rate the loop is closed: every connection sends its next request when the answer to the last one is there.
With one it is open: requests start when their time has come, whatever the server does, and a latency counts from
that time, so a server that stalls pays for everybody who would have come. Bounded in seconds and in requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from cortx.seeding import numpy_generator

GRACE_SECONDS = 10.0
"""How long answers are waited for when the time is over."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Load:
    """What is sent: to whom, by how many connections, how fast, how long."""

    url: str
    connections: int = 64
    seconds: float = 5.0
    requests: int = 1_000_000
    """Requests at most."""
    rate: float | None = None
    """Requests a second of an open loop; None for a closed one."""
    even: bool = False
    """Whether an open loop sends in equal steps; otherwise the times between requests are exponential, as when many
    clients know nothing of each other."""
    core: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "http" or parts.hostname not in LOOPBACK or parts.port is None:
            raise ValueError(f"the url must be http://127.0.0.1:PORT/..., got {self.url!r}")
        if not (0 < self.seconds <= 600 and 0 < self.connections <= 4_096 and 0 < self.requests <= 10_000_000):
            raise ValueError("a load has up to 600 seconds, 4,096 connections and 10 million requests")
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"the rate must be above 0, got {self.rate}")


class Client(asyncio.Protocol):
    """One connection with one request on its way at most."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.started = crowd, 0.0
        self._transport: Any = None
        self._buffer, self._wanted, self.busy = b"", -1, False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, request: bytes, started: float) -> None:
        self.started, self.busy = started, True
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self._wanted < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            place = self._buffer.lower().find(b"content-length: ", 0, end) + 16
            self._wanted = end + 4 + int(self._buffer[place : self._buffer.find(b"\r\n", place)])
        if len(self._buffer) < self._wanted:
            return
        answer, self._buffer, self._wanted, self.busy = self._buffer, b"", -1, False
        self.crowd.answered(self, answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.crowd.lost(self)

    def close(self) -> None:
        self._transport.close()


class Crowd:
    """All connections of one load, and what they saw."""

    def __init__(self, load: Load, requests: Sequence[bytes]) -> None:
        self.load = load
        self._requests = cycle(requests)
        self._idle: deque[Client] = deque()
        self._waiting: deque[float] = deque()
        """Moments of requests that found no free connection."""
        self._latencies, self._ends, self._late = array("d"), array("d"), array("d")
        self._statuses: Counter[int] = Counter()
        self._retry_after = 0
        self._lost, self._bytes, self._sent, self._planned = 0, 0, 0, 0
        self._stopped = False
        self._over: asyncio.Future[None]

    async def run(self) -> dict[str, Any]:
        """Connects, sends until the time or the number is over, and waits for what is on its way."""
        loop, load = asyncio.get_running_loop(), self.load
        parts = urlsplit(load.url)
        self._over = loop.create_future()
        clients = [
            (await loop.create_connection(lambda: Client(self), parts.hostname, parts.port))[1]
            for _ in range(load.connections)
        ]
        self._idle.extend(clients)
        self._start = perf_counter()
        # An open loop ends with its last request, which may have waited for a free connection.
        timer = loop.call_later(load.seconds + (0 if load.rate is None else GRACE_SECONDS), self._stop)
        if load.rate is None:
            while self._idle:
                self._next(self._idle.popleft(), perf_counter())
        else:
            self._schedule(loop)
        await self._over
        timer.cancel()
        waited = perf_counter()
        while any(client.busy for client in clients) and perf_counter() - waited < GRACE_SECONDS:
            await asyncio.sleep(0.01)
        unanswered = sum(client.busy for client in clients)
        for client in clients:
            client.close()
        return self._report(unanswered)

    def _next(self, client: Client, started: float) -> None:
        if self._sent >= self.load.requests:
            self._stop()
        if not self._stopped:
            self._sent += 1
            client.send(next(self._requests), started)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sends each request of an open loop in its time.

        A thread tells the time, because the timers of the loop know milliseconds only.
        """
        assert self.load.rate is not None
        steps = np.full(int(self.load.rate * self.load.seconds), 1 / self.load.rate)
        if not self.load.even:
            steps = numpy_generator(self.load.seed, "arrivals").exponential(steps)
        moments = np.cumsum(steps)
        moments = moments[moments < self.load.seconds][: self.load.requests]
        self._planned = len(moments)

        def tell() -> None:
            for moment in (self._start + moments).tolist():
                wait = moment - perf_counter()
                if wait > 0:
                    sleep(wait)
                try:
                    loop.call_soon_threadsafe(self._due, moment)
                except RuntimeError:  # the loop is closed: the time is over
                    return

        threading.Thread(target=tell, daemon=True).start()

    def _due(self, moment: float) -> None:
        self._waiting.append(moment)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and self._idle and not self._stopped:
            moment = self._waiting.popleft()
            self._late.append(perf_counter() - moment)
            self._next(self._idle.popleft(), moment)
        if self._sent >= self._planned:
            self._stop()

    def answered(self, client: Client, answer: bytes) -> None:
        now = perf_counter()
        self._latencies.append(now - client.started)
        self._ends.append(now - self._start)
        status = int(answer[9:12])
        self._statuses[status] += 1
        self._bytes += len(answer)
        if status == 429:
            self._retry_after += b"\r\nretry-after: " in answer[:1_000].lower()
        if self.load.rate is None:
            self._next(client, now)
        else:
            self._idle.append(client)
            self._serve_waiting()

    def lost(self, client: Client) -> None:
        """The server closed a connection; with a request on its way this is an error."""
        if not self._stopped or client.busy:
            self._lost += 1
            client.busy = False

    def _stop(self) -> None:
        self._stopped = True
        if not self._over.done():
            self._over.set_result(None)

    def _report(self, unanswered: int) -> dict[str, Any]:
        ends, latencies = np.array(self._ends), np.array(self._latencies)
        inside = ends <= self.load.seconds  # what came in the time that counts
        seconds = min(self.load.seconds, float(ends.max(initial=1e-9)))
        shares = {"p50": 50, "p90": 90, "p99": 99, "p999": 99.9, "max": 100}
        return {
            "load": asdict(self.load),
            "sent": self._sent,
            "statuses": {str(status): count for status, count in sorted(self._statuses.items())},
            "connections_lost": self._lost,
            "unanswered": unanswered,
            "unsent": max(0, self._planned - self._sent),
            "retry_after": self._retry_after,
            "seconds": seconds,
            "per_second": int(inside.sum()) / seconds,
            "latency": {name: float(np.percentile(latencies, share)) for name, share in shares.items()}
            if len(latencies)
            else None,
            "late": float(np.percentile(self._late, 99)) if len(self._late) else 0.0,
            "bytes_per_answer": self._bytes / max(1, len(latencies)),
        }


def make_request(url: str, body: bytes) -> bytes:
    parts = urlsplit(url)
    return (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def run(load: Load, bodies: Sequence[bytes]) -> dict[str, Any]:
    """The report of one load, sent by this process."""
    if load.core is not None:
        os.sched_setaffinity(0, {load.core})
    import uvloop

    return uvloop.run(Crowd(load, [make_request(load.url, body) for body in bodies]).run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--bodies", type=Path, required=True, help="one JSON body a line, sent in turn")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--core", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    bodies = given.pop("bodies").read_bytes().splitlines()
    json.dump(run(Load(**given), bodies), sys.stdout)


if __name__ == "__main__":
    main()
