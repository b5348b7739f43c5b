"""One run at a time labels into a folder; a dead one does not block the next."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cortx.lease
from cortx.distributed import LabelFolder, label
from cortx.distributed.local import LocalEngine
from cortx.errors import ModelError, StorageError
from cortx.lease import NAME, Lease

ROWS = np.random.default_rng(0).normal(size=(40, 3))


def owner(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / NAME).read_text())
    return found


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder: Path, seconds: float = 0.0, **changes: Any) -> None:
    """The lease of another run, renewed so many seconds ago."""
    folder.mkdir(parents=True, exist_ok=True)
    with Lease(folder, "cortx label"):
        text = json.dumps({**owner(folder), "token": "other", **changes})
    (folder / NAME).write_text(text)
    os.utime(folder / NAME, (time.time() - seconds,) * 2)


def test_a_second_run_stops_at_once_and_says_who_holds_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    with Lease(folder, "cortx label"):
        with pytest.raises(StorageError, match=rf"in use by cortx label \(process {os.getpid()} on .*spend the budget"):
            Lease(folder, "cortx label").__enter__()
        assert owner(folder)["pid"] == os.getpid()
    assert not folder.exists(), "a folder in which nothing was written goes again"


def test_a_lease_ends_with_its_process(tmp_path: Path) -> None:
    leave(tmp_path, pid=dead_pid())
    with Lease(tmp_path, "cortx label"):
        assert owner(tmp_path)["pid"] == os.getpid()
    leave(tmp_path, born="1")  # another process has its number by now
    with Lease(tmp_path, "cortx label"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_on_the_same_machine_keeps_it_however_slow(tmp_path: Path) -> None:
    leave(tmp_path, 100_000)
    with pytest.raises(StorageError, match="in use"):
        Lease(tmp_path, "cortx label").__enter__()


def test_on_another_machine_signs_of_life_count(tmp_path: Path) -> None:
    leave(tmp_path, 60, machine="elsewhere", host="elsewhere", pid=dead_pid())
    with pytest.raises(StorageError, match=r"on elsewhere, .*its lease ends 5 minutes after its last sign of life"):
        Lease(tmp_path, "cortx label").__enter__()
    leave_time = time.time() - 301
    os.utime(tmp_path / NAME, (leave_time, leave_time))
    with Lease(tmp_path, "cortx label"):
        assert owner(tmp_path)["pid"] == os.getpid()


def test_damaged_leases_end_too(tmp_path: Path) -> None:
    for text in ("", "[]", "{", '{"pid": "x", "machine": 3, "token": "../../x"}'):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(StorageError, match="in use"):
            Lease(tmp_path, "cortx label").__enter__()
        os.utime(tmp_path / NAME, (1, 1))
        with Lease(tmp_path, "cortx label"):
            pass
        assert list(tmp_path.iterdir()) == []


def test_it_is_renewed_and_its_loss_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cortx.lease, "SECONDS_RENEWED", 0.01)
    (tmp_path / "kept").touch()
    with Lease(tmp_path, "cortx label") as lease:
        os.utime(tmp_path / NAME, (1, 1))
        until(lambda: (tmp_path / NAME).stat().st_mtime > 1)
        lease.check()
        (tmp_path / NAME).write_text(json.dumps({**owner(tmp_path), "token": "other"}))
        until(lambda: lease._lost)
        with pytest.raises(StorageError, match=r"another run took .* over"):
            lease.check()
    assert owner(tmp_path)["token"] == "other", "what belongs to another run stays"


def until(done: Any) -> None:
    """Waits, for as long as the test may take."""
    while not done():
        time.sleep(0.01)


def test_of_many_that_find_a_dead_run_one_takes_over(tmp_path: Path) -> None:
    leave(tmp_path / "labels", pid=dead_pid())
    code = """
import sys, time
from pathlib import Path
from cortx.errors import StorageError
from cortx.lease import Lease
folder = Path(sys.argv[1])
(folder.parent / f"ready-{sys.argv[2]}").touch()
while len(list(folder.parent.glob("ready-*"))) < 4:
    time.sleep(0.001)
try:
    with Lease(folder, "cortx label"):
        print("taken", flush=True)
        while len(list(folder.parent.glob("refused-*"))) < 3:
            time.sleep(0.001)
except StorageError:
    (folder.parent / f"refused-{sys.argv[2]}").touch()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "labels")]
    runs = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in range(4)]
    assert sorted(run.communicate()[0] for run in runs) == ["", "", "", "taken\n"]
    assert not (tmp_path / "labels" / NAME).exists()


def test_labelling_holds_the_lease_and_gives_it_back(tmp_path: Path) -> None:
    folder = tmp_path / "labels"
    asked: list[str] = []

    def model(rows: Any) -> Any:
        asked.append(owner(folder)["token"])
        with pytest.raises(StorageError, match="in use by cortx label"):
            label(other, ROWS, folder, budget=500, engine=LocalEngine(0))
        return np.asarray(rows).sum(axis=1)

    def other(rows: Any) -> Any:
        raise AssertionError("the second run must not ask its model")

    report = label(model, ROWS, folder, budget=500, reference="zero", engine=LocalEngine(0))
    assert report.rows > 0
    assert len(set(asked)) == 1
    assert not (folder / NAME).exists()
    assert len(LabelFolder.open(folder).read()) == report.rows

    def fails(rows: Any) -> Any:
        raise RuntimeError("down")

    with pytest.raises(ModelError):
        label(fails, ROWS, tmp_path / "new", budget=500, reference="zero", engine=LocalEngine(0))
    assert not (tmp_path / "new" / NAME).exists()
