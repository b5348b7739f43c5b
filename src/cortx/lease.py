"""A lease on a folder: one run at a time spends its budget there, and a dead run does not block the next one.

The lease is a file, made by whoever is first, with the owner in it; the owner renews its time of change while it runs.
A lease whose owner is dead is taken over: on the same machine a process that is gone, elsewhere one that has not
renewed it for `SECONDS_STALE`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from cortx.errors import StorageError
from cortx.storage import read_whole, temporary_beside

NAME = ".lease.json"
SECONDS_RENEWED = 20.0
SECONDS_STALE = 300.0
SECONDS_TAKEOVER = 60.0
"""A takeover is a matter of milliseconds; one that is older was killed."""
MOST = 2**16
"""Bytes of a lease."""


class Lease:
    """``with Lease(folder, "cortx label")``: raises `StorageError` at once if another run holds the folder.

    The folder is made if it is not there, and removed again if nothing was written to it.
    """

    def __init__(self, folder: Path, purpose: str) -> None:
        self.folder, self.path = folder, folder / NAME
        self._owner = {
            "purpose": purpose, "token": secrets.token_hex(8), "host": socket.gethostname(), "pid": os.getpid(),
            "machine": _machine(), "born": _born(os.getpid()), "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }  # fmt: skip
        self._done = threading.Event()
        self._lost = False

    def __enter__(self) -> Lease:
        self._made = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while not self._taken():
                self._remove_dead()
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be written to: {error}") from error
        threading.Thread(target=self._renew, name="cortx-lease", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        try:
            if not self._is_anothers():
                self.path.unlink(missing_ok=True)
            if self._made:
                self.folder.rmdir()
        except OSError:
            return  # the folder has content, or is gone

    def check(self) -> None:
        """Raises `StorageError` if another run has taken the folder over, because this one seemed to be dead."""
        if self._lost:
            raise StorageError(
                f"another run took {self.folder} over while this one did not move; what is finished is kept: run again "
                "when the other one has ended"
            )

    def _taken(self) -> bool:
        try:
            opened = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        try:
            with os.fdopen(opened, "w") as file:
                file.write(json.dumps(self._owner))
        except BaseException:
            self.path.unlink(missing_ok=True)  # an empty lease would block the folder until it is stale
            raise
        return True

    def _is_ours(self) -> bool:
        return _owner_of(self.path).get("token") == self._owner["token"]

    def _is_anothers(self) -> bool:
        """Whether somebody else's lease lies there; of one that cannot be read, what is known of ours counts."""
        try:
            return not self._is_ours()
        except OSError:
            return self._lost

    def _renew(self) -> None:
        while not self._done.wait(SECONDS_RENEWED):
            try:
                if not self._is_ours():
                    self._lost = True
                    return
                os.utime(self.path)
            except OSError:
                continue  # a file system that does not answer may do so again

    def _remove_dead(self) -> None:
        """Removes the lease of a dead run, or raises because the other run lives."""
        other = _owner_of(self.path)
        if not self.path.exists():
            return  # it ended meanwhile
        if self._lives(other):
            raise StorageError(_held_words(self.folder, other))
        # Of all who see the same dead owner, one may remove its lease: else the second would remove the first's.
        guard = self.folder / f"{NAME}.{hashlib.sha256(str(other.get('token')).encode()).hexdigest()[:16]}"
        try:
            os.close(os.open(guard, os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            if self._age(guard) > SECONDS_TAKEOVER:
                guard.unlink(missing_ok=True)
            time.sleep(0.05)
            return
        try:
            if _owner_of(self.path) == other:
                self.path.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)

    def _lives(self, other: dict[str, Any]) -> bool:
        if other.get("machine") == self._owner["machine"] and isinstance(other.get("pid"), int):
            return _runs(other["pid"]) and other.get("born") in (None, _born(other["pid"]))
        return self._age(self.path) <= SECONDS_STALE

    def _age(self, path: Path) -> float:
        """Seconds since a file was changed, by the clock of its own file system; a file that is gone is new."""
        probe = temporary_beside(self.path)
        try:
            probe.touch()
            return probe.stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)


def _owner_of(path: Path) -> dict[str, Any]:
    """What a lease says; nothing while it is being written, or if there is none."""
    try:
        owner = json.loads(read_whole(path, MOST))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _held_words(folder: Path, owner: dict[str, Any]) -> str:
    who = f"{owner.get('purpose', 'a run')} (process {owner.get('pid')} on {owner.get('host')}, since "
    who += f"{owner.get('since')})" if owner else "unknown)"
    return (
        f"{folder} is in use by {who}: two runs at once would spend the budget twice. Wait for it, stop it, or give "
        f"another folder; should it be dead, its lease ends {SECONDS_STALE / 60:.0f} minutes after its last sign of "
        f"life, or when {folder / NAME} is deleted"
    )


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it belongs to somebody else
    return True


def _machine() -> str:
    """What tells numbers of processes apart: a host, since it was started, and its space of process numbers."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        pass  # not Linux
    return " ".join(parts)


def _born(pid: int) -> str | None:
    """When a process was started, in ticks, for its number may be another one's by now; None if it ended."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if facts[0] in ("Z", "X") else facts[19]
    except (OSError, IndexError):
        return None
