"""Work for many workers: a job says what to do, tasks say on what, an engine carries both to where they are done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from cortx.errors import CortxError, EngineError
from cortx.named import load_model_from, module_folder
from cortx.progress import progress_bar


@dataclass(frozen=True)
class Task:
    """A piece of work that a worker does whole or not at all."""

    name: str
    """What an error message calls it: a file and its rows, or the number of a batch."""
    rows: int
    payload: Any = field(default=None, repr=False)
    """What the job needs to know about it; it travels to the worker."""


@dataclass(frozen=True)
class Done:
    """What a worker says of a finished task."""

    task: str
    rows: int
    evaluations: int = 0
    seconds: float = 0.0
    result: Any = field(default=None, repr=False)


Work = Callable[[Task], Done]


class Job(Protocol):
    """Settings that travel to every worker, and what a worker makes of them."""

    def open(self, device: str) -> Work:
        """Called once in each worker, before its first task: loads the model and whatever else is heavy."""
        ...


class Engine(Protocol):
    """Carries tasks to workers."""

    name: str

    @property
    def workers(self) -> int:
        """How many there are."""
        ...

    def run(self, job: Job, tasks: Iterable[Task]) -> Iterator[Done]:
        """Does all tasks, in any order, and yields each as it is finished.

        A task that raises ends the run: what is being done is finished and yielded first. So do tasks that cannot be
        made, or sent. A task whose worker dies is given to another one; at its `MOST_DEATHS`-th death, or later where
        the engine itself tries more often, the run ends with `died`.
        """
        ...


MOST_DEATHS = 3


@dataclass(frozen=True)
class NamedModel:
    """A model that every worker imports for itself, or that travels to it."""

    name: str | None = None
    model: Any = None
    folder: str | None = field(default_factory=module_folder)
    """Where workers look for the model's module besides the installed ones; the process that asks decides."""

    @classmethod
    def of(cls, model: Any) -> NamedModel | None:
        """From what a user gives: a name ``package.module:object``, an .onnx file, or the model itself."""
        if model is None or isinstance(model, NamedModel):
            return model
        if isinstance(model, (str, Path)):
            text = str(model)
            return cls(name=os.path.abspath(text) if text.lower().endswith(".onnx") else text)
        return cls(model=model)

    def load(self) -> Any:
        return self.model if self.name is None else load_model_from(self.folder, self.name)


def failed(task: Task, error: BaseException) -> CortxError:
    """The error of a task, with the task's name in it; the worker's own kind of error where that is one of ours."""
    kind = type(error) if isinstance(error, CortxError) else EngineError
    text = str(error) if isinstance(error, CortxError) else f"{type(error).__name__}: {error}"
    return kind(f"{task.name}: {text}")


def died(task: Task, how: str, deaths: int = MOST_DEATHS) -> EngineError:
    """The error of a task that no worker survives."""
    return EngineError(
        f"{task.name}: {deaths} workers died at it, one after the other ({how}); most often a worker needs more "
        "memory than there is: use fewer workers or smaller batches. What was finished is kept; run again to go on"
    )


@dataclass
class Totals:
    """What a run came to."""

    tasks: int = 0
    rows: int = 0
    evaluations: int = 0
    seconds: float = 0.0


def run_tasks(
    engine: Engine,
    job: Job,
    tasks: list[Task],
    *,
    title: str,
    show: bool | None = None,
    each: Callable[[Done], None] | None = None,
) -> Totals:
    """Lets the engine do all tasks, with a bar that counts rows and estimates the time left."""
    totals, started = Totals(), perf_counter()
    with progress_bar(title, sum(task.rows for task in tasks), show=show) as advance:
        for done in engine.run(job, tasks):
            if each is not None:
                each(done)
            totals.tasks += 1
            totals.rows += done.rows
            totals.evaluations += done.evaluations
            advance(done.rows, f"{totals.rows / (perf_counter() - started):,.0f} rows/s")
    totals.seconds = perf_counter() - started
    return totals
