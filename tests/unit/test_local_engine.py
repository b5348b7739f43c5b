"""The local engine: who does what, who dies of what, and who is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.engine_jobs import (
    Answers,
    CannotOpen,
    DieTogether,
    Squares,
    alive,
    attempts,
    makes_lambda,
    notes,
    pids,
    squares,
    tasks_of,
    thread_settings,
    torch_threads,
    until_error,
    wait_until,
)
from tests.guard import HANG

from cortx.distributed.engines import make_engine, shares
from cortx.distributed.local import LocalEngine
from cortx.distributed.todo import Todo, not_opened
from cortx.distributed.work import MOST_DEATHS, Task
from cortx.errors import EngineError, InputError
from cortx.threads import available_cpus


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_task_is_done_once_and_the_job_is_opened_once_in_each_worker(workers: int, tmp_path: Path) -> None:
    dones = list(LocalEngine(workers).run(Squares(str(tmp_path), together=workers), tasks_of(12)))
    assert squares(dones) == {number: number * number for number in range(12)}
    assert sorted(done.rows for done in dones) == list(range(1, 13))
    assert [attempts(tmp_path, number) for number in range(12)] == [1] * 12
    opened = pids(tmp_path)
    assert len(opened) == len(set(opened)) == max(1, workers)
    assert (os.getpid() in opened) == (workers == 0)
    assert workers == 0 or not any(alive(pid) for pid in opened)


def test_no_more_workers_than_tasks_and_none_for_none(tmp_path: Path) -> None:
    assert squares(LocalEngine(8).run(Squares(str(tmp_path)), tasks_of(2))) == {0: 0, 1: 1}
    assert len(pids(tmp_path)) <= 2
    before = len(pids(tmp_path))
    assert list(LocalEngine(8).run(Squares(str(tmp_path)), [])) == []
    assert len(pids(tmp_path)) == before


def test_tasks_are_drawn_when_they_are_wanted(tmp_path: Path) -> None:
    drawn = []

    def endless() -> Iterator[Task]:
        for task in tasks_of(1000):
            drawn.append(task)
            yield task

    run = LocalEngine(2).run(Squares(str(tmp_path), 0.01), endless())
    for _ in range(4):
        next(run)
    run.close()  # type: ignore[attr-defined]
    assert len(drawn) < 20


def test_workers_take_the_devices_in_turn(tmp_path: Path) -> None:
    list(LocalEngine(4, devices=("first", "second")).run(Squares(str(tmp_path), together=4), tasks_of(8)))
    devices = [parts[2] for parts in notes(tmp_path, "open")]
    assert sorted(devices) == ["first", "first", "second", "second"]


def test_how_many_workers_by_default() -> None:
    assert LocalEngine().workers == available_cpus() == len(os.sched_getaffinity(0))
    assert LocalEngine(devices=("cuda:0", "cuda:1")).workers == 2
    assert LocalEngine(workers=0).workers == 1


def test_workers_share_the_gpus_that_are_there() -> None:
    assert shares(2, 1) == ("cuda:0", "cuda:1")
    assert shares(2, 0.5) == ("cuda:0", "cuda:1", "cuda:0", "cuda:1")
    assert shares(1, 0.1) == ("cuda:0",) * 10
    assert shares(2, 0.7) == ("cuda:0", "cuda:1")  # two of them would want more than there is of one
    assert shares(5, 2) == ("cuda:0", "cuda:2")
    for found, wanted in ((0, 1), (0, 0.5), (2, 3)):
        with pytest.raises(InputError, match=rf"wants {wanted} GPUs, but torch sees {found} CUDA devices"):
            shares(found, wanted)
    with pytest.raises(InputError, match="gpus_per_worker"):
        shares(2, -1)


def test_an_engine_with_gpus_by_name() -> None:
    there = torch.cuda.device_count()
    if there:
        engine = make_engine("local", gpus_per_worker=0.5)
        assert isinstance(engine, LocalEngine)
        assert engine.workers == 2 * there
        assert make_engine("local", workers=1, gpus_per_worker=0.5).workers == 1
    else:
        with pytest.raises(InputError, match="sees 0 CUDA devices"):
            make_engine("local", gpus_per_worker=0.5)


@pytest.mark.parametrize("workers", [-1, 1.5, True, "2"])
def test_impossible_numbers_of_workers_are_refused(workers: object) -> None:
    with pytest.raises(InputError, match="workers must be"):
        LocalEngine(workers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="devices"):
        LocalEngine(devices=())


# Failures --------------------------------------------------------------------------------------------------------


def test_the_task_of_a_dead_worker_is_done_by_another_one(tmp_path: Path) -> None:
    dones = LocalEngine(2).run(Squares(str(tmp_path), 0.01), tasks_of(10, dies_once=(2, 7)))
    assert squares(dones) == {number: number * number for number in range(10)}
    assert [attempts(tmp_path, number) for number in range(10)] == [1, 1, 2, 1, 1, 1, 1, 2, 1, 1]
    assert len(pids(tmp_path)) >= 3


def test_a_dead_worker_is_replaced_although_another_one_is_free_at_that_moment(tmp_path: Path) -> None:
    job, tasks = Squares(str(tmp_path), 0.2, together=2), tasks_of(20, seconds={0: 1.0, 1: 1.0})
    run = LocalEngine(2, devices=("first", "second")).run(job, tasks)

    def stop_the_second() -> None:
        assert wait_until(lambda: len(notes(tmp_path, "attempt")) == 2)
        os.kill(pid_on(tmp_path, "second"), signal.SIGSTOP)

    stopping = threading.Thread(target=stop_the_second)
    stopping.start()
    dones = [next(run)]
    stopping.join()
    assert dones[0].result["pid"] == pid_on(tmp_path, "first")
    # The receipt of the next task lies in the pipe when the other dies, so that both are heard of together.
    first, second = run.gi_frame.f_locals["self"].workers  # type: ignore[attr-defined]
    assert wait_until(first.connection.poll)
    second.process.kill()
    assert wait_until(lambda: not second.process.is_alive())
    dones += run
    assert squares(dones) == {number: number * number for number in range(20)}
    assert [parts[2] for parts in notes(tmp_path, "open")][2:] == ["second"]


def pid_on(folder: Path, device: str) -> int:
    """The first worker on this device."""
    return next(int(parts[1]) for parts in notes(folder, "open") if parts[2] == device)


def test_workers_that_die_together_before_they_begin_are_one_misfortune(tmp_path: Path) -> None:
    dones = LocalEngine(MOST_DEATHS).run(DieTogether(str(tmp_path), MOST_DEATHS), tasks_of(8))
    assert squares(dones) == {number: number * number for number in range(8)}
    assert len(pids(tmp_path)) > MOST_DEATHS


@pytest.mark.parametrize(("trouble", "how"), [("dies", "SIGKILL"), ("leaves", "exit code 3")])
def test_a_task_that_no_worker_survives_ends_the_run(trouble: str, how: str, tmp_path: Path) -> None:
    found, error = until_error(LocalEngine(2).run(Squares(str(tmp_path)), tasks_of(8, **{trouble: (3,)})))
    assert isinstance(error, EngineError)
    assert "batch 3" in str(error)
    assert how in str(error)
    assert attempts(tmp_path, 3) == MOST_DEATHS
    assert set(squares(found)) <= set(range(8)) - {3}
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_a_task_that_raises_ends_the_run_after_what_is_being_done(tmp_path: Path) -> None:
    # Task 1 is under way while task 0 fails; its receipt comes all the same, and nothing else is begun.
    tasks = tasks_of(9, raises=(0,), seconds={0: 0.4, 1: 1.0})
    found, error = until_error(LocalEngine(2).run(Squares(str(tmp_path), together=2), tasks))
    assert isinstance(error, EngineError)
    assert str(error) == "batch 0: ZeroDivisionError: the model divided by zero"
    assert "make_trouble" in "".join(error.__notes__)
    assert squares(found) == {1: 1}
    assert len(notes(tmp_path, "attempt")) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


@pytest.mark.parametrize("workers", [0, 2])
def test_our_own_errors_keep_their_kind(workers: int, tmp_path: Path) -> None:
    _, error = until_error(LocalEngine(workers).run(Squares(str(tmp_path)), tasks_of(4, refuses=(2,))))
    assert type(error) is InputError
    assert str(error) == "batch 2: column 'age' is missing"


@pytest.mark.parametrize("workers", [0, 1])
def test_memory_that_is_refused_is_said_so(workers: int, tmp_path: Path) -> None:
    found, error = until_error(LocalEngine(workers).run(Squares(str(tmp_path)), tasks_of(4, starves=(2,))))
    assert isinstance(error, EngineError)
    assert str(error).startswith("batch 2: the worker ran out of memory")
    assert set(squares(found)) == {0, 1}


def test_a_job_that_cannot_be_opened() -> None:
    with pytest.raises(InputError, match="there is no such model"):
        list(LocalEngine(2).run(CannotOpen("input"), tasks_of(3)))
    with pytest.raises(EngineError, match="could not begin: KeyError: 'weights'"):
        list(LocalEngine(2).run(CannotOpen("other"), tasks_of(3)))
    with pytest.raises(EngineError, match=r"died before they could begin.*SIGKILL"):
        list(LocalEngine(2).run(CannotOpen("death"), tasks_of(3)))
    starved = not_opened(MemoryError())
    assert isinstance(starved, EngineError)
    assert str(starved).startswith("the worker ran out of memory: use fewer workers")
    assert "MemoryError" in "".join(starved.__notes__)


def test_what_cannot_travel_is_said_at_once_and_runs_in_this_process() -> None:
    with pytest.raises(EngineError, match=r"by name.*workers=0"):
        LocalEngine(2).run(Answers(makes_lambda()), tasks_of(1))
    assert [done.result for done in LocalEngine(0).run(Answers(makes_lambda()), tasks_of(1))] == [1]
    with pytest.raises(EngineError, match=r"batch 0: .*lambda"):  # an answer that cannot travel back
        list(LocalEngine(1).run(Answers(makes_lambda), tasks_of(1)))


def test_an_error_of_whoever_makes_the_tasks_is_theirs_and_comes_after_what_is_being_done(tmp_path: Path) -> None:
    def tasks() -> Iterator[Task]:
        yield from tasks_of(2, seconds={1: 1.0})
        raise FileNotFoundError("the table")

    found, error = until_error(LocalEngine(2).run(Squares(str(tmp_path)), tasks()))
    assert isinstance(error, FileNotFoundError)
    assert squares(found) == {0: 0, 1: 1}
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_a_task_that_cannot_travel_ends_the_run_after_what_is_being_done(tmp_path: Path) -> None:
    tasks = [*tasks_of(2, seconds={1: 1.0}), Task("batch 2", 1, makes_lambda())]
    found, error = until_error(LocalEngine(2).run(Squares(str(tmp_path)), tasks))
    assert isinstance(error, EngineError)
    assert "cannot travel" in str(error)
    assert squares(found) == {0: 0, 1: 1}


# What travels ----------------------------------------------------------------------------------------------------


def test_large_jobs_travel() -> None:
    assert [done.result for done in LocalEngine(2).run(Answers(len, (b"x" * 5_000_000,)), tasks_of(3))] == [
        5_000_000
    ] * 3


@pytest.mark.slow
def test_tensors_travel_by_value() -> None:
    tensor = torch.arange(300_000, dtype=torch.float64)
    assert [done.result for done in LocalEngine(2).run(Answers(torch.numel, (tensor,)), tasks_of(3))] == [300_000] * 3
    assert not tensor.is_shared()  # a container's shared memory is often too small for a model


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for workers in (1, available_cpus(), 4 * available_cpus()):
        done = next(LocalEngine(workers).run(Answers(thread_settings), tasks_of(workers)))
        assert int(done.result) == max(1, available_cpus() // workers)
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "5")  # what the user has set stays
    assert next(LocalEngine(1).run(Answers(thread_settings), tasks_of(1))).result == "5"


@pytest.mark.slow
def test_torch_takes_the_threads_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    done = next(LocalEngine(available_cpus()).run(Answers(torch_threads), tasks_of(available_cpus())))
    assert done.result == 1


# Who is left over ------------------------------------------------------------------------------------------------


def test_closing_a_run_ends_its_workers(tmp_path: Path) -> None:
    run = LocalEngine(2).run(Squares(str(tmp_path), 0.05, together=2), tasks_of(50))
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


SCRIPT = """
    import sys
    sys.path[:0] = {path!r}
    from cortx.distributed.local import LocalEngine
    from tests.engine_jobs import Squares, Unfinished, tasks_of

    {guard}
        for done in LocalEngine(2).run({job}, tasks_of(50)):
            print(done.task, flush=True)
"""


def script(path: Path, job: str, guard: str = "if __name__ == '__main__':") -> list[str]:
    root = str(Path(__file__).resolve().parents[2])
    path.write_text(textwrap.dedent(SCRIPT).format(path=[root], job=job, guard=guard))
    return [sys.executable, str(path)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_leave_with_whoever_started_them(number: signal.Signals, tmp_path: Path) -> None:
    notebook = tmp_path / "notes"
    notebook.mkdir()
    driver = subprocess.Popen(
        script(tmp_path / "driver.py", f"Squares({str(notebook)!r}, 0.2)"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert driver.stdout is not None
        driver.stdout.readline()
        workers = pids(notebook)
        assert workers
        driver.send_signal(number)
        driver.communicate(timeout=HANG)
        assert wait_until(lambda: not any(alive(pid) for pid in pids(notebook)))
    finally:
        driver.kill()
        driver.wait()


def test_unfinished_files_are_removed_when_the_driver_dies(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    driver = subprocess.Popen(script(tmp_path / "driver.py", f"Unfinished({str(folder)!r})"))
    try:
        assert wait_until(lambda: len(list(folder.iterdir())) == 2)
    finally:
        driver.kill()
        driver.wait()
    assert wait_until(lambda: not list(folder.iterdir()))


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    command = script(tmp_path / "driver.py", f"Squares({str(tmp_path)!r})", guard="if True:")
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]
    assert done.stderr.count("Traceback") == 1  # of the script itself, not of its workers
    assert not pids(tmp_path)


def test_a_model_that_only_a_notebook_knows(tmp_path: Path) -> None:
    lines = """
        import sys
        sys.path[:0] = {path!r}
        from cortx.distributed.local import LocalEngine
        from tests.engine_jobs import Answers, tasks_of

        def model():
            return 42

        print([done.result for done in LocalEngine(0).run(Answers(model), tasks_of(1))])
        list(LocalEngine(1).run(Answers(model), tasks_of(1)))
    """
    text = textwrap.dedent(lines).format(path=[str(Path(__file__).resolve().parents[2])])
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=HANG)
    assert done.stdout.strip() == "[42]"
    assert "Give the model by name" in done.stderr
    assert "workers=0" in done.stderr
    piped = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, timeout=HANG)
    assert piped.stdout == done.stdout
    assert "<stdin>, is no file" in piped.stderr.splitlines()[-1]


# The list of tasks -----------------------------------------------------------------------------------------------


def test_tasks_that_come_back_are_handed_out_first() -> None:
    todo = Todo(iter(tasks_of(3)))
    assert todo.ahead(2) == 2
    assert todo.ahead(9) == 3
    first, second = todo.take(), todo.take()
    assert first is not None
    assert second is not None
    todo.untouched(second)
    for _ in range(MOST_DEATHS - 1):
        todo.survived(first, "it fell")
        assert todo.take() is first
    with pytest.raises(EngineError, match=r"batch 0: .*it fell"):
        todo.survived(first, "it fell")
    assert todo.take() is second
    third = todo.take()
    assert third is not None
    assert third.task.name == "batch 2"
    assert todo.take() is None
