"""What engines share: tasks that are handed out, tasks that come back, and what is said of those that fail."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from cortx.distributed.work import MOST_DEATHS, Done, Task, Work, died, failed
from cortx.errors import CortxError, EngineError


@dataclass(eq=False)
class Held:
    """A task in the hands of a worker, and how many workers have died at it."""

    task: Task
    deaths: int = 0


class Todo:
    """Tasks to hand out: those that came back first, then new ones, drawn only when they are wanted."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._new = iter(tasks)
        self._next: deque[Held] = deque()

    def ahead(self, most: int) -> int:
        """How many tasks are still to be handed out, counted up to `most`."""
        drawn = islice(self._new, max(0, most - len(self._next)))
        self._next.extend(Held(task) for task in drawn)
        return min(most, len(self._next))

    def take(self) -> Held | None:
        return self._next.popleft() if self.ahead(1) else None

    def untouched(self, held: Held) -> None:
        """Comes back as it went."""
        self._next.appendleft(held)

    def survived(self, held: Held, how: str) -> None:
        """Comes back because its worker died; raises `died` when that has happened too often."""
        held.deaths += 1
        if held.deaths >= MOST_DEATHS:
            raise died(held.task, how)
        self._next.appendleft(held)


class Stillbirths:
    """Deaths of workers that have not begun, one after the other.

    Of workers that were started together, and may have died of the same thing, the first counts alone.
    """

    def __init__(self) -> None:
        self.generation = 0
        """What a worker that is started now belongs to."""
        self._in_a_row = 0

    def too_many(self, generation: int) -> bool:
        """Notes the death of a worker of this generation; whether there is no use in starting others."""
        if generation == self.generation:
            self.generation += 1
            self._in_a_row += 1
        return self._in_a_row >= MOST_DEATHS

    def begun(self) -> None:
        """Notes that a worker has begun."""
        self._in_a_row = 0


def attempt(work: Work, task: Task) -> Done | CortxError:
    """Does a task in a worker: what it says of it, or the error to raise where the worker was started."""
    try:
        return work(task)
    except Exception as error:
        return told(failed(task, out_of_memory(error)), error)


def not_opened(error: Exception) -> CortxError:
    """The error of a worker that cannot load what its job needs."""
    reason = out_of_memory(error)
    if isinstance(reason, CortxError):
        return told(type(reason)(str(reason)), error)
    return told(EngineError(f"a worker could not begin: {type(error).__name__}: {error}"), error)


def out_of_memory(error: Exception) -> Exception:
    """A refusal of memory in plain words, any other error as it is; also where it is the reason for another error."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, MemoryError):
            text = f" ({reason})" if str(reason) else ""
            return EngineError(
                f"the worker ran out of memory{text}: use fewer workers or smaller batches. What was finished is kept; "
                "run again to go on"
            )
        reason = reason.__cause__ or reason.__context__
    return error


def told(told_error: CortxError, error: Exception) -> CortxError:
    """Lets the worker's traceback travel with an error: as a note, which no process boundary takes off."""
    told_error.add_note("in the worker:\n" + "".join(traceback.format_exception(error)))
    return told_error
