"""How many threads and worker processes this process may use, and how many torch uses for a piece of work.

Threads that share an operation wait for each other at its end by spinning. Operations of less than a few milliseconds
gain little from that, and where another process wants the same cores they take a hundred times as long. So only
large operations are shared; `threads=` and the variable CORTX_THREADS overrule that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import NamedTuple

from cortx.errors import InputError

VARIABLE = "CORTX_THREADS"
"""The number of threads to use, as if it were given as `threads=` to every call."""
UPPER_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the most threads to use."""


# What there is ---------------------------------------------------------------------------------------------------


def available_cpus() -> int:
    """CPUs that this process may use: its affinity and the CPU quota of its cgroup (rounded up), at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_of_this_process()
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def available_threads(environment: Mapping[str, str] = os.environ) -> int:
    """Threads for one process: CORTX_THREADS, else `available_cpus` and at most OMP_NUM_THREADS, MKL_NUM_THREADS."""
    asked = asked_threads(None, environment)
    if asked is not None:
        return asked
    limits = [limit for limit in (_first_number(environment.get(name, "")) for name in UPPER_LIMITS) if limit]
    return min([available_cpus(), *limits])


def asked_threads(threads: int | None, environment: Mapping[str, str] = os.environ) -> int | None:
    """The number of threads a caller asks for: `threads`, else CORTX_THREADS, else None."""
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InputError(f"threads must be a whole number, 1 or more, or None, got {threads!r}")
        return threads
    text = environment.get(VARIABLE, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"the variable {VARIABLE} must be a whole number, 1 or more, got {text!r}")
    return int(text)


def _first_number(text: str) -> int | None:
    """OpenMP allows a list, with one number for each level of nesting; it ignores what is not a positive number."""
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


@cache
def _quota_of_this_process() -> float | None:
    return cpu_quota()


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The CPUs that the cgroup of this process and the cgroups above it allow, such as 1.5; None without a limit.

    Reads cgroup v2 (``cpu.max``) and v1 (``cpu.cfs_quota_us``). `root` is the folder that stands for ``/``.
    """
    mounts = _mounts(root)
    found = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        kind = "cgroup2" if not controllers else "cgroup" if "cpu" in controllers.split(",") else None
        for mounted, at in mounts.get(kind, []) if kind else []:
            found += [_limit(folder) for folder in _upwards(root / at.lstrip("/"), _inside(path, mounted))]
    limits = [limit for limit in found if limit is not None]
    return min(limits, default=None)


def _mounts(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Mounted hierarchies by their kind, each as (the cgroup that is mounted, where)."""
    found: dict[str, list[tuple[str, str]]] = {"cgroup": [], "cgroup2": []}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        parts = fields.split(" ")
        if kind in found and len(parts) > 4 and (kind == "cgroup2" or "cpu" in options.split(" ")[-1].split(",")):
            found[kind].append((parts[3], parts[4]))
    return found


def _inside(path: str, mounted: str) -> PurePosixPath:
    """A cgroup relative to the one that is mounted; in a container often the mounted one itself."""
    whole = PurePosixPath("/", path)
    if ".." not in whole.parts and whole.is_relative_to(mounted):
        return whole.relative_to(mounted)
    return PurePosixPath()


def _upwards(top: Path, path: PurePosixPath) -> Iterator[Path]:
    """The folders of a cgroup and of those above it, up to the one that is mounted: the tightest limit counts."""
    yield top / path
    for above in path.parents:
        yield top / above


def _limit(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if not quota.isdecimal() or not period.isdecimal() or not int(quota) or not int(period):
        return None  # "max", -1, or no such files
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# What torch uses -------------------------------------------------------------------------------------------------


class _Limit(NamedTuple):
    threads: int
    exact: bool
    """Whether the caller asked for this number, so that small work gets as many."""


_limit_here: ContextVar[_Limit | None] = ContextVar("threads", default=None)


def torch_threads(threads: int | None = None) -> int:
    """Threads that torch may use for large operations: those asked for, else what it is set to and what there is."""
    return _current(threads).threads


def _current(threads: int | None = None) -> _Limit:
    if threads is None:
        outer = _limit_here.get()
        if outer is not None:
            return outer
    asked = asked_threads(threads)
    if asked is not None:
        return _Limit(asked, True)
    import torch

    now = torch.get_num_threads()
    return _Limit(now if now == 1 else min(now, available_threads()), False)


@contextmanager
def limited(threads: int | None = None) -> Iterator[None]:
    """Torch with so many threads; with None with as many as there are CPUs for. Afterwards it has as many as before."""
    limit = _current(threads)
    token = _limit_here.set(limit)
    try:
        with _set(limit.threads):
            yield
    finally:
        _limit_here.reset(token)


@contextmanager
def work(*, large: bool) -> Iterator[None]:
    """Torch with the threads that this work is worth: one, unless its operations are large or the caller asked."""
    limit = _current()
    token = _limit_here.set(limit)
    try:
        with _set(limit.threads if large or limit.exact else 1):
            yield
    finally:
        _limit_here.reset(token)


@contextmanager
def openmp() -> Iterator[None]:
    """Libraries with an OpenMP of their own, such as scikit-learn, with as many threads as torch for large work."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    with threadpool_limits(torch_threads(), user_api="openmp"):
        yield


class _InForce:
    """Changes of torch's number of threads that are not undone yet: fits may run side by side in one process."""

    def __init__(self) -> None:
        self.lock, self.count, self.first = Lock(), 0, 1

    def begin(self, before: int) -> None:
        self.first = before if self.count == 0 else self.first
        self.count += 1

    def end(self, before: int) -> int:
        """What to set torch to. A Python thread that starts meanwhile begins with a changed number, so the last change
        to end puts back what was there before the first."""
        self.count -= 1
        return before if self.count else self.first


_in_force = _InForce()


@contextmanager
def _set(threads: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    with _in_force.lock:
        _in_force.begin(before)
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        with _in_force.lock:
            torch.set_num_threads(_in_force.end(before))
