"""All cores of this machine: worker processes that load the model once and are given one task after the other."""

from __future__ import annotations

import copyreg
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess, current_process, parent_process
from multiprocessing.reduction import ForkingPickler
from typing import Any

from cortx.distributed.todo import Held, Stillbirths, Todo, attempt, not_opened, told
from cortx.distributed.work import MOST_DEATHS, Done, Job, Task, Work, failed
from cortx.errors import CortxError, EngineError, InputError
from cortx.threads import available_cpus

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
SAFE_PATH = "PYTHONSAFEPATH"
UNGUARDED = 87
"""What a worker exits with when the script that started it would start workers again."""
SECONDS_TO_LEAVE = 10.0
_GONE = "gone"

# Threads that the parent has started, torch's among them, do not survive a fork.
_CONTEXT = multiprocessing.get_context("spawn")


class LocalEngine:
    """Worker processes on this machine; each loads the model once and shares the cores' threads with the others.

    `workers` is by default the number of available CPUs (affinity, cgroup quota), or one for each of `devices` where
    those are not the CPU; workers take the devices in turn. ``workers=0`` does everything in this process: for
    debugging, and for models that cannot travel to another one.
    """

    name = "local"

    def __init__(self, workers: int | None = None, devices: Sequence[str] = ("cpu",)) -> None:
        self.devices = (devices,) if isinstance(devices, str) else tuple(devices)
        if not self.devices:
            raise InputError("devices is empty; expected at least one, for example ('cpu',) or ('cuda:0', 'cuda:1')")
        if workers is None:
            workers = available_cpus() if set(self.devices) == {"cpu"} else len(self.devices)
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
            raise InputError(f"workers must be a whole number, 0 (in this process) or more, got {workers!r}")
        self.in_process = workers == 0
        self.workers = max(1, workers)

    def __repr__(self) -> str:
        return f"LocalEngine(workers={0 if self.in_process else self.workers}, devices={self.devices!r})"

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yields each task as it is finished; stops its processes when it ends, fails or is closed."""
        if self.in_process:
            return _here(job, tasks, self.devices[0])
        if getattr(current_process(), "_inheriting", False):
            sys.exit(UNGUARDED)  # this process is a worker that imports the script that started it
        if current_process().daemon:
            raise EngineError("this process may start no others (it is itself a worker); use LocalEngine(workers=0)")
        _check_script()
        return _Pool(self, _packed(job)).run(Todo(tasks))


def _check_script() -> None:
    """A script that comes through a pipe has a name, which workers would look for."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if main.__spec__ is None and path is not None and not os.path.exists(path):
        raise EngineError(
            "worker processes import the script that starts them, and this one, "
            f"{path}, is no file; save it as one, or use LocalEngine(workers=0)"
        )


def _here(job: Job, tasks: Iterable[Task], device: str) -> Iterator[Done]:
    work = job.open(device)
    for task in tasks:
        match attempt(work, task):
            case Done() as done:
                yield done
            case error:
                raise error


# In the process that asks ----------------------------------------------------------------------------------------


class _Pickler(ForkingPickler):
    """Packs what travels to workers by value: torch would put tensors into shared memory, which may be small, and whose
    handles can be opened only once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatch_table = copyreg.dispatch_table


def _packed(what: Job | Task) -> memoryview:
    try:
        return _Pickler.dumps(what)
    except Exception as error:  # what cannot be pickled raises whatever it likes
        raise EngineError(
            f"this cannot travel to worker processes ({type(error).__name__}: {error}); give the model by name "
            "('package.module:object', or the path of an .onnx file), or use LocalEngine(workers=0)"
        ) from error


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    connection: Connection
    device: str
    generation: int
    held: Held | None = None
    begun: bool = False

    @property
    def free(self) -> bool:
        return self.begun and self.held is None

    def send(self, packed: memoryview) -> None:
        with suppress(OSError):  # it has died, and will be missed soon
            self.connection.send_bytes(packed)

    def end(self) -> str:
        """Takes leave of a dead worker, and says how it died."""
        self.connection.close()
        self.process.join(SECONDS_TO_LEAVE)
        code = self.process.exitcode
        if code is None:  # it has closed its pipe and lives on
            self.process.kill()
            self.process.join()
            return "it stopped answering"
        if code == UNGUARDED and not self.begun:
            raise EngineError(
                "worker processes import the script that starts them, and this script would start workers again; put "
                "its work under:  if __name__ == '__main__':"
            )
        if code >= 0:
            return f"it left with exit code {code}"
        name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
        return f"killed by {name}" + (", as systems do when memory runs out" if name == "SIGKILL" else "")


class _Pool:
    def __init__(self, engine: LocalEngine, job: memoryview) -> None:
        self.engine, self.job = engine, job
        self.workers: list[_Worker] = []
        self.size = engine.workers
        self.stillbirths = Stillbirths()
        self.error: Exception | None = None

    def run(self, todo: Todo) -> Iterator[Done]:
        finished: list[Done] = []
        whole = False
        try:
            self.size = todo.ahead(self.engine.workers)
            for number in range(self.size):
                self.start(self.engine.devices[number % len(self.engine.devices)])
            while self.waits_for_somebody():
                ready = set(wait([part for one in self.workers for part in (one.connection, one.process.sentinel)]))
                for worker in list(self.workers):
                    if worker.connection in ready or worker.process.sentinel in ready:
                        self.hear(worker, todo, finished)
                self.hand_out(todo)  # before the caller is busy with what is finished
                yield from finished
                finished.clear()
            whole = True
        finally:
            self.stop(kill=not whole)
        if self.error is not None:
            raise self.error

    def waits_for_somebody(self) -> bool:
        """Whether a task is being done, or workers begin while no other has found that there is nothing left to do."""
        begins = self.error is None and bool(self.workers) and not any(worker.free for worker in self.workers)
        return begins or any(worker.held for worker in self.workers)

    def start(self, device: str) -> None:
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(
            target=_serve, args=(theirs, device, SAFE_PATH in os.environ), name=f"cortx worker on {device}", daemon=True
        )
        try:
            with _thread_settings(max(1, available_cpus() // self.size)), _safe_path():
                process.start()
        except OSError as error:
            ours.close()
            raise EngineError(f"a worker process could not be started ({error}); use fewer workers") from error
        finally:
            theirs.close()  # the worker alone holds its end, so that its death closes the pipe
        self.workers.append(_Worker(process, ours, device, self.stillbirths.generation))

    def hand_out(self, todo: Todo) -> None:
        try:
            for worker in self.workers:
                if worker.free and self.error is None and (held := todo.take()) is not None:
                    packed = _packed(held.task)
                    worker.held = held
                    worker.send(packed)
        except Exception as error:  # of whoever makes the tasks; what is being done is finished first
            self.error = error

    def hear(self, worker: _Worker, todo: Todo, finished: list[Done]) -> None:
        """Takes one message of a worker, or notes its death."""
        try:
            message = worker.connection.recv() if worker.connection.poll() else _GONE
        except (EOFError, OSError):
            message = _GONE
        match message:
            case "up":
                worker.send(self.job)
            case "begun":
                worker.begun = True
                self.stillbirths.begun()
            case Done():
                finished.append(message)
                worker.held = None
            case CortxError():
                self.error = self.error or message
                worker.held = None
            case _:
                self.bury(worker, todo)

    def bury(self, worker: _Worker, todo: Todo) -> None:
        """Takes a dead worker off; another one gets its task, and is started if the idle ones are too few."""
        self.workers.remove(worker)
        try:
            how = worker.end()
            if worker.held is not None:
                todo.survived(worker.held, how)
            elif not worker.begun and self.stillbirths.too_many(worker.generation):
                raise EngineError(
                    f"{MOST_DEATHS} workers died before they could begin, one after the other ({how}); if there is too "
                    "little memory for that many models, use fewer workers"
                )
            idle = sum(other.held is None for other in self.workers)
            if self.error is None and todo.ahead(idle + 1) > idle:
                self.start(worker.device)
        except Exception as error:  # also of whoever makes the tasks
            self.error = self.error or error

    def stop(self, *, kill: bool) -> None:
        """Lets all workers leave; those that are busy and no longer wanted are told to."""
        for worker in self.workers:
            if kill or not worker.free:
                worker.process.terminate()
            worker.connection.close()
        last = time.monotonic() + SECONDS_TO_LEAVE
        for worker in self.workers:
            worker.process.join(max(0.0, last - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self.workers.clear()


_ENVIRONMENT = threading.Lock()


@contextmanager
def _thread_settings(threads: int) -> Iterator[None]:
    """The environment a worker starts in, since libraries read it when they are loaded. What the user has set stays."""
    with _ENVIRONMENT:
        names = [name for name in THREAD_SETTINGS if name not in os.environ]
        os.environ.update(dict.fromkeys(names, str(threads)))
        try:
            yield
        finally:
            for name in names:
                os.environ.pop(name, None)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Lets a starting process import nothing from the working directory, where files may be named as Python's are.

    It starts with ``python -c``, which would search there first, before it takes over this process's search path.
    """
    if SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]


# In a worker -----------------------------------------------------------------------------------------------------


def _serve(connection: Connection, device: str, safe_path: bool) -> None:
    """What a worker does: takes the job, then a task at a time, until its pipe is closed.

    `safe_path` says whether the user wants a safe path, also for processes that the model may start.
    """
    if not safe_path:
        os.environ.pop(SAFE_PATH, None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to everybody; whoever started us decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that unfinished files are removed on the way out
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        connection.send("up")  # a large job would wait in a pipe that nobody reads yet
        work = _open(connection, device)
        if isinstance(work, CortxError):
            connection.send_bytes(_Pickler.dumps(work))
            connection.recv()
            return
        connection.send("begun")
        while True:
            task: Task = connection.recv()
            said = attempt(work, task)
            try:
                packed = _Pickler.dumps(said)
            except Exception as error:
                packed = _Pickler.dumps(failed(task, error))
            connection.send_bytes(packed)
    except (EOFError, ConnectionError):
        return


def _open(connection: Connection, device: str) -> Work | CortxError:
    packed = connection.recv_bytes()
    try:
        job: Job = _Pickler.loads(packed)
    except Exception as error:
        return told(
            EngineError(
                f"a worker cannot read what was sent to it ({type(error).__name__}: {error}); what the model is made "
                "of must be in modules that can be imported. Give the model by name ('package.module:object', or the "
                "path of an .onnx file), or use LocalEngine(workers=0)"
            ),
            error,
        )
    try:
        return job.open(device)
    except Exception as error:
        return not_opened(error)


def _leave_with_parent() -> None:
    """Ends this process soon after the one that started it has ended, however that was."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_TO_LEAVE)
        os._exit(1)
