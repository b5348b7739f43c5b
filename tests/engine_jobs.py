"""Small jobs that behave well or badly, in a module that workers can import."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortx.distributed.work import Done, Task, Work
from cortx.errors import InputError
from tests.guard import HANG


def tasks_of(n: int, **trouble: Any) -> list[Task]:
    """Numbers to square; `trouble` says at which of them what happens."""
    return [Task(f"batch {number}", rows=number + 1, payload={"number": number, **trouble}) for number in range(n)]


@dataclass(frozen=True)
class Squares:
    """Squares numbers; notes each opening and each attempt as a file, so that tests can count them."""

    folder: str
    seconds: float = 0.0
    together: int = 0
    """So many workers must have opened the job before any of them works."""

    def open(self, device: str) -> Work:
        note(self.folder, "open", os.getpid(), device)

        def work(task: Task) -> Done:
            number = task.payload["number"]
            note(self.folder, "attempt", number)
            assert wait_until(lambda: len(pids(self.folder)) >= self.together)
            time.sleep(task.payload.get("seconds", {}).get(number, self.seconds))
            make_trouble(self.folder, number, task.payload)
            return Done(task.name, task.rows, result={"number": number, "square": number**2, **where()})

        return work


def make_trouble(folder: str, number: int, payload: dict[str, Any]) -> None:
    if number in payload.get("raises", ()):
        raise ZeroDivisionError("the model divided by zero")
    if number in payload.get("refuses", ()):
        raise InputError("column 'age' is missing")
    if number in payload.get("starves", ()):
        bytearray(1 << 62)
    if number in payload.get("leaves", ()):
        os._exit(3)
    once = number in payload.get("dies_once", ()) and attempts(folder, number) == 1
    if once or number in payload.get("dies", ()):
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class CannotOpen:
    """A job whose model cannot be loaded, for one reason or another."""

    reason: str

    def open(self, device: str) -> Work:
        if self.reason == "input":
            raise InputError("there is no such model")
        if self.reason == "other":
            raise KeyError("weights")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True)
class DieTogether:
    """The first workers die in opening, as soon as `together` of them have come so far; those after them work."""

    folder: str
    together: int

    def open(self, device: str) -> Work:
        work = Squares(self.folder).open(device)
        assert wait_until(lambda: len(pids(self.folder)) >= self.together)
        if os.getpid() in pids(self.folder)[: self.together]:
            os.kill(os.getpid(), signal.SIGKILL)
        return work


@dataclass(frozen=True)
class Answers:
    """Answers what a function says in the worker."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def open(self, device: str) -> Work:
        return lambda task: Done(task.name, task.rows, result=self.function(*self.arguments))


class Unreadable:
    """Travels, but needs a module that the other side does not have."""

    def __reduce__(self) -> Any:
        return importlib.import_module, ("notebook_only",)


@dataclass(frozen=True)
class Unfinished:
    """Begins a file and takes very long to finish it."""

    folder: str

    def open(self, device: str) -> Work:
        def work(task: Task) -> Done:
            path = Path(self.folder) / f"{task.payload['number']}.unfinished"
            path.touch()
            try:
                time.sleep(60)
            finally:
                path.unlink()
            return Done(task.name, task.rows)

        return work


def where() -> dict[str, Any]:
    ray = sys.modules.get("ray")
    node = ray.get_runtime_context().get_node_id() if ray is not None and ray.is_initialized() else None
    return {"pid": os.getpid(), "node": node}


def thread_settings() -> Any:
    return os.environ.get("OMP_NUM_THREADS")


def torch_threads() -> Any:
    import torch

    return torch.get_num_threads()


def makes_lambda() -> Any:
    return lambda: 1


def note(folder: str, *parts: object) -> None:
    (Path(folder) / "_".join([*map(str, parts), str(time.monotonic_ns())])).touch()


def notes(folder: Path | str, *parts: object) -> list[list[str]]:
    """What was noted with these first parts, each note as a list of parts, oldest first."""
    found = [path.name.split("_") for path in Path(folder).glob("_".join([*map(str, parts), "*"]))]
    return sorted(found, key=lambda note: int(note[-1]))


def attempts(folder: Path | str, number: int) -> int:
    return len(notes(folder, "attempt", number))


def pids(folder: Path | str) -> list[int]:
    return [int(parts[1]) for parts in notes(folder, "open")]


def squares(dones: Iterable[Done]) -> dict[int, int]:
    return {done.result["number"]: done.result["square"] for done in dones}


def until_error(dones: Iterable[Done]) -> tuple[list[Done], Exception]:
    """What a run yields, and the error that it ends with."""
    found = []
    try:
        for done in dones:
            found.append(done)
    except Exception as error:
        return found, error
    raise AssertionError("the run ended without an error")


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(what: Callable[[], bool], seconds: float = HANG) -> bool:
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if what():
            return True
        time.sleep(0.02)
    return what()


def score(rows: Any) -> Any:
    """A model that workers import by name, slow enough for something to happen while it works."""
    import numpy as np

    time.sleep(0.1)
    columns = np.asarray(rows, dtype=np.float64)
    return np.tanh(columns[:, 0] * columns[:, 1] + columns[:, 2]) + 0.3 * columns[:, 3] * columns[:, 4] + columns[:, 5]
