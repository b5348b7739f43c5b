"""A model behind HTTP that fails at random, and a run that is killed: no answer is paid for twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.guard import HANG

import cortx
from cortx.games.calls import Calls
from cortx.games.value_store import ValueStore

WORKERS, BATCH = 3, 5
SOURCES = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(cortx.__file__).parents[1])])
SERVICE = """
import json, random, threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen, lock, chance, released = Counter(), threading.Lock(), random.Random(7), threading.Event()
facts = {"failures": 0, "held": 0, "after": None}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/hold":
            facts.update(after=asked, held=0)
            released.clear() if asked is not None else released.set()
            return self.answer(200, None)
        with lock:
            fails = chance.random() < 0.2
            facts["failures"] += fails
            held = facts["after"] is not None and sum(seen.values()) >= facts["after"]
            if not fails:
                seen.update(json.dumps(row) for row in asked)
                facts["held"] += held
        if fails:
            return self.answer(503, "busy")
        if held:
            released.wait()
        self.answer(200, [row[0] * row[1] - row[2] ** 2 + row[3] for row in asked])

    def do_GET(self):
        with lock:
            again = sum(seen.values()) - len(seen)
            self.answer(200, {**facts, "rows": len(seen), "again": again})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        with suppress(BrokenPipeError):  # who asked was killed
            self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
RUN = """
import sys
from tests.integration.test_slow_models import ask_everything
ask_everything(sys.argv[1], sys.argv[2])
"""


def send(address: str, path: str, content: Any) -> Any:
    request = urllib.request.Request(f"{address}{path}", json.dumps(content).encode())
    with urllib.request.urlopen(request, timeout=HANG) as answer:
        return json.loads(answer.read())


def facts(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(address, timeout=HANG) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


TABLE = np.random.default_rng(0).normal(size=(40, 8))
COALITIONS = np.random.default_rng(1).random((40, 10, 8)) < 0.5


def game_of(address: str) -> cortx.Game:
    calls = Calls(workers=WORKERS, batch=BATCH, retries=50, timeout=HANG, wait=0)
    return cortx.Game(lambda rows: send(address, "/score", rows.tolist()), "zero", output="raw", calls=calls)


def ask_everything(address: str, folder: str) -> tuple[np.ndarray, int, cortx.Game]:
    """Values of every row and coalition, how many evaluations recognised the model, and the game."""
    game = game_of(address)
    rows = game.rows(TABLE)
    store = ValueStore.open(folder, game)
    checked = store.check_cost(game, rows)
    return store.values(game, rows, COALITIONS), checked, game


@pytest.fixture
def address() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        yield f"http://127.0.0.1:{int(service.stdout.readline())}"
        service.kill()


def test_a_killed_run_pays_for_one_batch_again_at_most(address: str, tmp_path: Path) -> None:
    send(address, "/hold", 200)  # then calls wait for their answers
    environment = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", RUN, address, str(tmp_path)], env=environment) as run:
        while facts(address)["held"] < WORKERS:
            assert run.poll() is None
            time.sleep(0.01)
        os.kill(run.pid, signal.SIGKILL)
    send(address, "/hold", None)
    asked = facts(address)
    assert 200 <= asked["rows"] < 200 + (WORKERS + 1) * BATCH
    assert asked["again"] == 0
    values, checked, game = ask_everything(address, str(tmp_path))
    masked = np.where(COALITIONS, TABLE[:, None, :], 0.0)
    truth = masked[..., 0] * masked[..., 1] - masked[..., 2] ** 2 + masked[..., 3]
    np.testing.assert_allclose(values[..., 0], truth, atol=1e-12)
    told = facts(address)
    assert told["again"] <= WORKERS * BATCH + checked + 1  # v(none) is asked for anew
    assert told["failures"] > 10
    assert 0 < game.repeated_calls <= told["failures"]
    assert game.evaluations == told["again"] + told["rows"] - asked["rows"]


HANGS = """
import os
import time
import numpy as np
import cortx

def model(rows):
    os.write(1, b"begun\\n")  # in one piece, from two threads
    time.sleep(3_600)

game = cortx.Game(model, np.zeros(3), output="raw", calls=cortx.Calls(workers=2, batch=1))
game.full_values(game.rows(np.ones((4, 3))))
"""


def test_an_interrupt_ends_a_program_whose_calls_hang() -> None:
    environment = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HANGS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        try:
            assert [run.stdout.readline(), run.stdout.readline()] == ["begun\n", "begun\n"]
            run.send_signal(signal.SIGINT)
            assert run.stderr.read().strip().endswith("KeyboardInterrupt")
            assert run.wait(HANG) != 0
        finally:
            run.kill()
