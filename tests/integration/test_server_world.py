"""What the server's tests share: a small artifact of real data, its model, and a server in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.conftest import make_tiny_recipe
from tests.guard import HANG

import cortx

MODEL = '''
"""Three probabilities from wines. Some rows make it fail or wait, as real models do."""
import os
import time

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

data = load_wine(as_frame=True).data
wines = data.iloc[:, :4].copy()
wines.columns = ["alcohol", "acid", "ash", "alkalinity"]
wines["colour"] = np.where(data["color_intensity"] > 5, "dark", np.where(data["hue"] > 1, "light", "pale"))
wines["bottles"] = (data["proline"] // 10).astype(int)
wines.loc[::9, "ash"] = np.nan
FAILS, HANGS = 666.0, 888.0


def model(frame):
    alcohol = frame["alcohol"].to_numpy(float)
    if (alcohol == FAILS).any():
        raise ValueError("secret-value-666")
    while (alcohol == HANGS).any() and os.path.exists("hang"):
        time.sleep(0.01)
    return probabilities(frame)


def probabilities(frame):
    alcohol = frame["alcohol"].to_numpy(float)
    z = alcohol - 13 + 0.3 * (frame["acid"].to_numpy(float) - 2.3) + np.nan_to_num(frame["ash"].to_numpy(float)) / 5
    z = z + frame["colour"].map({"dark": 0.5, "light": -0.5, "pale": 0.0}).to_numpy(float)
    p = 1 / (1 + np.exp(-(z + (frame["bottles"].to_numpy(float) - 70) / 50)))
    return np.stack([1 - p, 0.6 * p, 0.4 * p], axis=1)


def single(frame):
    return model(frame)[:, 1]
'''


class World:
    """A folder with a model's module and artifacts of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "wine_model.py").write_text(textwrap.dedent(MODEL), encoding="utf-8")
        self.module = _import(folder / "wine_model.py")
        self.artifact = self.make("wine.cortx", seed=0)
        self.explainer = cortx.load(self.artifact, self.module.model)

    def make(self, name: str, seed: int, function: str = "model") -> Path:
        """Fits an explainer in seconds and saves it; another seed is another version."""
        wines = self.module.wines
        target = "all" if function == "model" else None
        game = cortx.Game(getattr(self.module, function), reference=wines, output="probability", target=target)
        explainer = cortx.CoRTX(make_tiny_recipe(60), seed=seed)
        explainer.fit(game, wines[:130], n_labels=30, progress=False)
        explainer.calibrate(wines[130:], progress=False)
        return explainer.save(self.folder / name)

    def record(self, position: int = 0, **changes: Any) -> dict[str, Any]:
        row = json.loads(self.module.wines.iloc[[position % len(self.module.wines)]].to_json(orient="records"))[0]
        return {**row, **changes}

    def outputs(self, record: dict[str, Any]) -> list[float]:
        """What the model itself says of a record."""
        import pandas as pd

        frame = pd.DataFrame([record]).astype({"alcohol": float, "acid": float, "ash": float, "alkalinity": float})
        return [float(value) for value in self.module.probabilities(frame)[0]]


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Running:
    """A server process; its standard error is kept in a file."""

    def __init__(self, world: World, *arguments: str, artifacts: tuple[Path, ...] = (), model: bool = True,
                 tokens: str = "") -> None:  # fmt: skip
        self.errors = world.folder / f"stderr-{time.monotonic_ns()}.txt"
        folders = [str(folder) for folder in artifacts or (world.artifact,)]
        given = ["--model", "wine_model:model"] if model else []
        # Nobody here learns late that it stops; and no request is refused because the machine is slow.
        for option, value in {"--linger": 0, "--deadline": 600, "--stall": 600, "--body-seconds": 600}.items():
            given += [] if option in arguments else [option, str(value)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CORTX_TOKENS": tokens}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cortx.interfaces.cli", "serve", *folders, *given, "--port", "0", *arguments],
                cwd=world.folder, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if "http://" not in line:
            self.process.wait(HANG)
            raise RuntimeError(self.errors.read_text())
        self.port = int(line.rpartition("/ (")[0].rpartition(":")[2])
        self.url = f"http://127.0.0.1:{self.port}"

    def terminate(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(HANG)
        finally:
            if self.process.poll() is None:
                self.process.kill()

    def logs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.errors.read_text().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def serving(world: World, *arguments: str, **settings: Any) -> Iterator[Running]:
    server = Running(world, *arguments, **settings)
    try:
        yield server
    finally:
        server.stop()


def request_bytes(path: str, data: Any, method: str = "POST", headers: str = "") -> bytes:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body
    )


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """The status and the JSON of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head[9:12]), json.loads(await reader.readexactly(length))


async def ask(port: int, path: str, data: Any, headers: str = "") -> tuple[int, Any]:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request_bytes(path, data, headers=headers))
        return await read_answer(reader)
    finally:
        writer.close()


def test_a_world_knows_what_its_model_says(tmp_path: Path) -> None:
    (tmp_path / "wine_model.py").write_text(MODEL, encoding="utf-8")
    module = _import(tmp_path / "wine_model.py")
    assert abs(module.model(module.wines).sum(axis=1) - 1).max() < 1e-12
