"""A real server in a process of its own, and a page that notes whom it asks and what it complains about."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from tests.guard import HANG

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "docs" / "images" / "page"
CLOSE = 1e-5  # answers are computed in float32


@dataclass
class Served:
    """A running server, and the folder of what it serves."""

    url: str
    folder: Path

    def ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"}), timeout=HANG) as answer:
            return json.loads(answer.read())


def serve(folder: Path, *options: str) -> Iterator[Served]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        *(sys.executable, "-m", "cortx.interfaces.cli", "serve", "wine.cortx", "digits.cortx"),
        *("--linger", "0"),
        *("--model", "wine=page_models:wine", "--model", "digits=page_models:digits"),
        *("--examples", "wine=wine.csv", "--port", str(port), *options),
    ]
    settings = {**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1"}
    with (folder / f"server-{port}.log").open("w+") as log:
        process = subprocess.Popen(command, cwd=folder, env=settings, stdout=log, stderr=subprocess.STDOUT)
        try:
            served = Served(f"http://127.0.0.1:{port}", folder)
            for _ in range(round(HANG / 0.1)):
                try:
                    urlopen(f"{served.url}/v2/health/ready", timeout=60).read()
                    break
                except OSError:
                    if process.poll() is not None:
                        break
                    time.sleep(0.1)
            else:
                process.kill()
            if process.poll() is not None:
                pytest.fail(f"the server did not start:\n{Path(log.name).read_text(encoding='utf-8')}")
            yield served
        finally:
            process.terminate()
            process.wait(timeout=HANG)


@dataclass
class Opened:
    """A page that notes whom it asks and what it complains about."""

    page: Any
    served: Served
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, model: str = "wine") -> Any:
        self.page.goto(f"{self.served.url}/#{model}")
        self.page.locator(".waterfall .step, .drop").first.wait_for()
        return self.page

    def settled(self) -> None:
        """Waits until the newest answer is drawn."""
        self.page.locator("#panel-explain[aria-busy=false]").wait_for(state="attached")

    def numbers(self) -> dict[str, Any]:
        """All numbers that the page shows of an explanation, exact."""
        self.settled()
        return self.page.evaluate(
            """() => {
                 const cells = (row) => [...row.querySelectorAll("data")].map((cell) => Number(cell.value));
                 const rows = [...document.querySelectorAll(".numbers tr[data-player]")];
                 const end = (kind) => cells(document.querySelector(`.numbers tr[data-end=${kind}]`))[0];
                 return { base: end("base"), prediction: end("prediction"),
                          headline: Number(document.querySelector("#prediction data").value),
                          values: Object.fromEntries(rows.map((row) => [row.dataset.player, cells(row)[0]])),
                          bands: Object.fromEntries(rows.map((row) => [row.dataset.player, cells(row).slice(1)])) };
               }"""
        )

    def check_sum(self) -> dict[str, Any]:
        shown = self.numbers()
        assert shown["headline"] == shown["prediction"]
        assert sum(shown["values"].values()) == pytest.approx(shown["prediction"] - shown["base"], abs=CLOSE)
        return shown

    def keep_picture(self, name: str, **options: Any) -> None:
        if "CORTX_SCREENSHOTS" in os.environ:
            PICTURES.mkdir(parents=True, exist_ok=True)
            self.page.wait_for_timeout(400)
            if "full_page" in options:
                self.page.evaluate("scrollTo(0, 0)")
            self.page.screenshot(path=PICTURES / f"{name}.png", **options)


def open_page(browser: Any, served: Served, **context: Any) -> Iterator[Opened]:
    """A fresh browser profile; at the end, no other host was asked and nothing went wrong."""
    profile = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    page = profile.new_page()
    page.set_default_timeout(1_000 * HANG / 10)
    opened = Opened(page, served)
    page.on("request", lambda request: opened.asked.append(request.url))
    page.on("console", lambda message: message.type in ("error", "warning") and opened.complaints.append(message.text))
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    yield opened
    profile.close()
    assert opened.asked
    elsewhere = [url for url in opened.asked if not url.startswith((served.url + "/", "blob:", "data:"))]
    assert elsewhere == []
    assert opened.complaints == []


def field_of(page: Any, name: str) -> Any:
    return page.locator(".field").filter(has=page.get_by_label(name, exact=True))
