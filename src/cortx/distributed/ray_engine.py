"""Tasks on Ray: actors that load the model once and live as long as the run."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from time import monotonic
from typing import Any

from cortx.distributed.todo import Held, Stillbirths, Todo, attempt, not_opened, told
from cortx.distributed.work import MOST_DEATHS, Done, Job, Task, Work, failed
from cortx.errors import CortxError, EngineError, InputError, need
from cortx.threads import available_cpus
from cortx.version import __version__

IN_FLIGHT = 2
"""Tasks that an actor has at most: one that it does, one that waits for it, so that it never waits for the driver."""
PATIENCE = 60.0
"""Seconds without any actor after which the user is told what is waited for."""


class RayEngine:
    """Does tasks in actors on a Ray cluster, each with one CPU and `gpus_per_worker` GPUs.

    Where Ray runs already in this process it is used as it is; the address of another one is refused. Otherwise
    `address` says which Ray: None or ``"local"`` starts one on this machine for the time of the run, ``"auto"`` or
    ``"host:port"`` joins a cluster. `workers` is by default as many as there is room for when the run starts; give a
    number for a cluster that grows on demand.

    Actors need cortx, the model's module and its libraries: installed on every node, or sent along by Ray
    (``ray.init(address, runtime_env={"working_dir": ".", "pip": [...]})`` before the run). Folders that jobs read and
    write must be seen by every node.
    """

    name = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None, gpus_per_worker: float = 0.0) -> None:
        import_ray()
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
            raise InputError(f"workers must be a whole number, 1 or more, got {workers!r}")
        if gpus_per_worker < 0:
            raise InputError(f"gpus_per_worker must be 0 or more (0.5 lets two share one), got {gpus_per_worker!r}")
        self.address = "local" if address is None else address
        self.most, self.gpus = workers, float(gpus_per_worker)

    def __repr__(self) -> str:
        return f"RayEngine(address={self.address!r}, workers={self.most}, gpus_per_worker={self.gpus})"

    @cached_property
    def workers(self) -> int:
        """How many there are; where nobody has said it, the cluster is asked."""
        ray = import_ray()
        if self.most is not None:
            return self.most
        if self.address == "local" and not ray.is_initialized():
            return available_cpus()
        with ray_running(self.address, gpus=self.gpus):
            return _room(ray, self.gpus)

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yields each task as it is finished; its actors, and the Ray that it started, end with it."""
        todo = Todo(tasks)
        if not todo.ahead(1):
            return
        ray = import_ray()
        with ray_running(self.address, self.most, self.gpus):
            self.workers = self.most or _room(ray, self.gpus)  # of today
            try:
                packed = ray.put(job)
            except Exception as error:  # what cannot be pickled raises whatever it likes
                reason = error.__cause__ or error  # Ray puts pages of analysis around it
                raise EngineError(
                    f"this cannot travel to Ray's workers ({type(reason).__name__}: {reason}); give the model by name: "
                    "'package.module:object', or the path of an .onnx file"
                ) from error
            yield from _Actors(ray, packed, self.workers, self.gpus).run(todo)


def import_ray() -> Any:
    """The library, told first not to report its usage."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray reports even that reporting is disabled, for clusters that it takes for permanent ones.
    os.environ.setdefault("RAY_USAGE_STATS_REPORT_URL", "http://127.0.0.1:9")
    # Ray announces a change of this default with a warning at every start.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise need("ray", "working on Ray", "ray") from error
    return ray


@contextmanager
def ray_running(address: str, workers: int | None = None, gpus: float = 0.0) -> Iterator[None]:
    """Ray in this process: the one that runs already, or one that is started or joined, and left again."""
    ray = import_ray()
    if ray.is_initialized():
        _check_same(ray, address)
        _check_gpus(ray, gpus, may_grow=workers is not None)
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address == "local":
            os.environ.setdefault("RAY_enable_metrics_collection", "0")
            ray.init(address="local", num_cpus=workers or available_cpus(), include_dashboard=False, **quiet)
        else:
            _check_reachable(address)
            ray.init(address=address, **quiet)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError: by address and reason
        _shutdown(ray)
        if address == "local":
            raise EngineError(f"Ray could not be started on this machine: {error}") from error
        raise EngineError(
            f"there is no Ray cluster to join at {address!r} ({error}); start one with 'ray start --head', or leave "
            "the address out to use this machine alone"
        ) from error
    try:
        _check_gpus(ray, gpus, may_grow=address != "local" and workers is not None)
        yield
    finally:
        _shutdown(ray)


def _check_same(ray: Any, address: str) -> None:
    """Refuses the address of another Ray than the one that this process has."""
    there = ray.get_runtime_context().gcs_address
    if address.startswith("ray://"):  # the port is that of a proxy: which cluster is behind it cannot be told
        same = ray.util.client.ray.is_connected()
    else:
        same = address in ("local", "auto") or _resolved(address) == _resolved(there)
    if not same:
        raise InputError(
            f"address={address!r}, but this process has joined the Ray at {there!r}; call ray.shutdown() first, or "
            "leave the address out"
        )


def _resolved(address: str) -> str:
    host, _, port = address.rpartition(":")
    with suppress(OSError):
        host = socket.gethostbyname(host.strip("[]"))
    return f"{host}:{port}"


def _check_gpus(ray: Any, gpus: float, *, may_grow: bool) -> None:
    """Refuses workers that would wait for ever. Only a cluster that grows on demand may get the GPUs that it lacks."""
    found = ray.cluster_resources().get("GPU", 0.0)
    if gpus > found and not may_grow:
        raise EngineError(
            f"a worker wants {gpus:g} GPUs, but Ray finds {found:g}; start Ray where there are some, or use "
            "gpus_per_worker=0. If this cluster grows on demand, give the number of workers"
        )


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes to reach a place where nothing listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _shutdown(ray: Any) -> None:
    with suppress(Exception):  # whatever the run has to say is more important
        ray.shutdown()


def _room(ray: Any, gpus: float) -> int:
    """How many actors fit into the cluster as it is now."""
    there = ray.cluster_resources()
    room = there.get("CPU", 0.0)
    return max(1, int(min(room, there.get("GPU", 0.0) / gpus) if gpus else room))


@dataclass(eq=False)
class _Actor:
    handle: Any
    generation: int
    held: dict[Any, Held] = field(default_factory=dict)
    """The tasks it has, in the order they were sent, by the references of their results."""
    begun: bool = False

    @property
    def free(self) -> bool:
        return self.begun and not self.held


class _Actors:
    """The actors of one run, and who does what."""

    def __init__(self, ray: Any, job: Any, most: int, gpus: float) -> None:
        self.ray, self.job, self.most = ray, job, most
        self.kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)(CortxWorker)
        self.device = "cuda:0" if gpus else "cpu"  # Ray shows each actor its own GPUs alone
        self.actors: list[_Actor] = []
        self.by_reference: dict[Any, _Actor] = {}
        self.stillbirths = Stillbirths()
        self.error: Exception | None = None

    def run(self, todo: Todo) -> Iterator[Done]:
        finished: list[Done] = []
        try:
            for _ in range(todo.ahead(self.most)):
                self.start()
            alone_since: float | None = monotonic()
            while self.waits_for_somebody():
                waiting = list(self.by_reference)
                ready, _ = self.ray.wait(waiting, num_returns=1, timeout=PATIENCE, fetch_local=False)
                if ready:
                    ready, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
                for reference in ready:
                    self.hear(reference, todo, finished)
                alone_since = self.warn_if_alone(alone_since)
                try:
                    self.hand_out(todo)  # before the caller is busy with what is finished
                except Exception as error:  # of whoever makes the tasks; what is being done is finished first
                    self.error = error
                yield from finished
                finished.clear()
        finally:
            for actor in self.actors:
                with suppress(Exception):  # Ray itself may be gone
                    self.ray.kill(actor.handle)
        if self.error is not None:
            raise self.error

    def waits_for_somebody(self) -> bool:
        """Whether a task is being done, or actors begin while no other has found that there is nothing left to do."""
        begins = self.error is None and bool(self.actors) and not any(actor.free for actor in self.actors)
        return begins or any(actor.held for actor in self.actors)

    def start(self) -> None:
        """Asks for an actor. It is there when Ray has room for it, which may be never."""
        handle = self.kind.remote([path for path in sys.path if path], __version__)
        actor = _Actor(handle, self.stillbirths.generation)
        self.actors.append(actor)
        self.by_reference[handle.open.remote(self.job, self.device)] = actor

    def hand_out(self, todo: Todo) -> None:
        for depth in range(1, IN_FLIGHT + 1):
            # The last tasks wait for whoever is free first, not behind another task.
            least = 1 if depth == 1 else 1 + sum(actor.begun for actor in self.actors)
            for actor in self.actors:
                if not actor.begun or len(actor.held) >= depth or self.error is not None or todo.ahead(least) < least:
                    continue
                if (held := todo.take()) is not None:
                    reference = actor.handle.do.remote(held.task)
                    actor.held[reference] = held
                    self.by_reference[reference] = actor

    def hear(self, reference: Any, todo: Todo, finished: list[Done]) -> None:
        """Takes what an actor says of a task or of its beginning, or notes its death."""
        actor = self.by_reference.pop(reference, None)
        if actor is None:  # of an actor whose death was noted by another reference
            return
        exceptions = self.ray.exceptions
        try:
            said = self.ray.get(reference)
        except exceptions.RayTaskError as error:  # what travels could not be read there, or the answer not be sent
            held = actor.held.pop(reference, None)
            said = _unreadable(error) if held is None else failed(held.task, error.cause or error)
        except exceptions.RayError as error:
            self.bury(actor, _words(error), todo)
            return
        match said:
            case Done():
                del actor.held[reference]
                finished.append(said)
            case CortxError():
                actor.held.pop(reference, None)
                self.error = self.error or said
            case _:
                actor.begun = True
                self.stillbirths.begun()

    def bury(self, actor: _Actor, how: str, todo: Todo) -> None:
        """Takes a dead actor off: others get its tasks, and Ray is asked for another one."""
        self.actors.remove(actor)
        with suppress(Exception):
            self.ray.kill(actor.handle)  # it may only be out of reach
        for other in [other for other, owner in self.by_reference.items() if owner is actor]:
            del self.by_reference[other]
        try:
            if not actor.begun and self.stillbirths.too_many(actor.generation):
                raise EngineError(f"{MOST_DEATHS} Ray actors died before they could begin, one after the other: {how}")
            for position, held in reversed(list(enumerate(actor.held.values()))):
                if position:
                    todo.untouched(held)
                else:
                    todo.survived(held, how)  # the oldest is the one that it was doing
        except EngineError as error:
            self.error = self.error or error
        if self.error is None:
            self.start()

    def warn_if_alone(self, since: float | None) -> float | None:
        """Tells the user when there has been no actor for a while; returns since when, or None when told."""
        if any(actor.begun for actor in self.actors):
            return monotonic()
        if since is not None and monotonic() - since >= PATIENCE:
            free = {name: amount for name, amount in self.ray.available_resources().items() if name in ("CPU", "GPU")}
            warnings.warn(
                f"no Ray worker has begun for {PATIENCE:.0f} seconds; waiting for room (free now: {free or 'nothing'})",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        return since


def _words(error: Exception) -> str:
    """What Ray says of a death, without numbers that only Ray understands and without its guesses."""
    lines = [line for line in str(error).partition("Some common causes")[0].splitlines() if not line.startswith("\t")]
    where = re.search(r"^\tip: (\S+)", str(error), re.MULTILINE)
    text = " ".join(" ".join(lines).split())[:600].rstrip(".")
    return f"on {where[1]}: {text}" if where else text


def _unreadable(error: Any) -> CortxError:
    """The error of an actor that cannot read its job. Ray's words may be a whole traceback: its last line says why."""
    reason = error.cause or error
    text = (str(reason).strip().splitlines() or [type(reason).__name__])[-1]
    unreadable = EngineError(
        f"a Ray worker could not begin ({text}); cortx, the model's module and its libraries must be installed on "
        "every node, or sent along with ray.init(runtime_env=...)"
    )
    return told(unreadable, error)


class CortxWorker:
    """What runs in an actor."""

    def __init__(self, paths: list[str], version: str) -> None:
        self.version = version
        # Modules that the driver finds, this process finds too, where its machine has them.
        sys.path.extend(path for path in paths if path not in sys.path and os.path.exists(path))
        self.work: Work | None = None

    def open(self, job: Job, device: str) -> CortxError | None:
        if self.version != __version__:
            return EngineError(
                f"{socket.gethostname()} has cortx {__version__}, but the run was started by cortx {self.version}; "
                "install the same version on every node"
            )
        try:
            self.work = job.open(device)
        except Exception as error:
            return not_opened(error)
        return None

    def do(self, task: Task) -> Done | CortxError:
        assert self.work is not None
        return attempt(self.work, task)
