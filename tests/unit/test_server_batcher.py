"""The queue in front of a model: what arrives together goes together, and everybody gets their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.guard import HANG

from cortx.interfaces.server.batcher import Batcher
from cortx.interfaces.server.http import HttpError


class Doubler:
    """Doubles numbers, keeps its batches, and waits while it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, works: Sequence[int]) -> list[Any]:
        self.entered.set()
        self.free.wait(HANG)
        self.batches.append(list(works))
        return [HttpError(500, "seven") if work == 7 else 2 * work for work in works]


@pytest.mark.parametrize("inline", [0.0, 100.0])
def test_everybody_gets_their_own(inline: float) -> None:
    run = Doubler()
    batcher: Batcher[int] = Batcher(
        run, max_queue=10_000, max_batch=64, inline_seconds=inline, may_inline=lambda work: True
    )

    async def main() -> list[Any]:
        return await asyncio.gather(*(batcher.submit(i, 1, HANG) for i in range(500)), return_exceptions=True)

    answers = asyncio.run(main())
    assert [i for i, answer in enumerate(answers) if isinstance(answer, HttpError)] == [7]
    assert [answer for i, answer in enumerate(answers) if i != 7] == [2 * i for i in range(500) if i != 7]
    assert max(map(len, run.batches)) == 64
    assert [work for batch in run.batches for work in batch] == list(range(500))
    assert batcher.queued_rows == 0


@pytest.mark.parametrize(("rows", "computes", "inline"), [(1, True, True), (1, False, False), (1_000, True, False)])
def test_only_small_batches_that_compute_run_on_the_loop(rows: int, computes: bool, inline: bool) -> None:
    threads = []

    def run(works: Sequence[int]) -> list[Any]:
        threads.append(threading.current_thread())
        return list(works)

    batcher: Batcher[int] = Batcher(
        run, max_queue=10_000, max_batch=64, inline_seconds=100.0, may_inline=lambda work: computes
    )

    async def main() -> None:
        await batcher.submit(1, rows, HANG)

    asyncio.run(main())
    assert (threads == [threading.main_thread()]) == inline


def test_what_arrives_while_it_works_gathers() -> None:
    run = Doubler()
    batcher: Batcher[int] = Batcher(run, max_queue=100, max_batch=64)

    async def main() -> None:
        run.free.clear()
        first = batcher.submit(1, 1, HANG)
        await asyncio.to_thread(run.entered.wait, HANG)
        later = [batcher.submit(i, 1, HANG) for i in range(10, 20)]
        run.free.set()
        await asyncio.gather(first, *later)

    asyncio.run(main())
    assert run.batches == [[1], list(range(10, 20))]


def test_a_full_queue_refuses_and_a_lone_request_never_is() -> None:
    run = Doubler()
    batcher: Batcher[int] = Batcher(run, max_queue=10, max_batch=64)

    async def main() -> None:
        run.free.clear()
        large = batcher.submit(1, 50, HANG)
        with pytest.raises(HttpError) as caught:
            batcher.submit(2, 1, HANG)
        assert caught.value.status == 429
        assert dict(caught.value.headers)[b"retry-after"].isdigit()
        run.free.set()
        assert await large == 2
        assert await batcher.submit(3, 10, HANG) == 6

    asyncio.run(main())


def test_deadlines_and_abort_do_not_wait_for_the_worker() -> None:
    run = Doubler()
    batcher: Batcher[int] = Batcher(run, max_queue=100, max_batch=64)

    async def main() -> None:
        run.free.clear()
        running, waiting = batcher.submit(1, 1, 0.1), batcher.submit(2, 1, 60)
        with pytest.raises(HttpError) as caught:
            await running
        assert caught.value.status == 504
        last = batcher.submit(3, 1, 60)
        batcher.abort(HttpError(503, "stopping"))
        for future in (waiting, last):
            with pytest.raises(HttpError, match="stopping"):
                await future
        run.free.set()
        assert await batcher.submit(4, 1, HANG) == 8
        assert batcher.queued_rows == 0

    asyncio.run(main())


def test_a_failure_of_the_runner_itself_is_everybodys_error() -> None:
    def broken(works: Sequence[int]) -> list[Any]:
        raise KeyboardInterrupt

    batcher: Batcher[int] = Batcher(broken, max_queue=100, max_batch=64)

    async def main() -> None:
        for answer in await asyncio.gather(*(batcher.submit(i, 1, HANG) for i in range(3)), return_exceptions=True):
            assert isinstance(answer, HttpError)
            assert answer.status == 500

    asyncio.run(main())


def status_of(answer: Any) -> int:
    assert isinstance(answer, HttpError)
    return answer.status


def test_requests_behind_a_hung_call_give_their_place_back() -> None:
    run, told = Doubler(), list[float]()
    batcher: Batcher[int] = Batcher(run, max_queue=4, max_batch=64, stall=0.3, on_stall=told.append)

    async def main() -> None:
        run.free.clear()
        before = []
        while not batcher.stalled:  # each time more rows than the queue holds would be there, had none left it
            together = [batcher.submit(1, 2, 0.05), batcher.submit(2, 2, 0.05)]
            before += await asyncio.gather(*together, return_exceptions=True)
            assert batcher.queued_rows == 0
        assert len(before) > 4
        assert {status_of(answer) for answer in before} == {504}
        with pytest.raises(HttpError, match="at its last call") as caught:
            batcher.submit(3, 1, HANG)
        assert caught.value.status == 503
        assert dict(caught.value.headers)[b"retry-after"].isdigit()
        run.free.set()
        while batcher.stalled:
            await asyncio.sleep(0.01)
        assert await batcher.submit(4, 4, HANG) == 8
        assert batcher.queued_rows == 0
        assert batcher.busy_seconds == 0

    asyncio.run(main())
    assert len(told) == 1
    assert run.batches == [[1, 2], [4]], "what had expired was not worked on"


def test_a_request_that_waits_when_the_call_returns_is_answered() -> None:
    run = Doubler()
    batcher: Batcher[int] = Batcher(run, max_queue=4, max_batch=64)

    async def main() -> None:
        run.free.clear()
        with pytest.raises(HttpError):
            await batcher.submit(1, 4, 0.05)
        patient = batcher.submit(5, 4, 60)  # the queue has room, though the worker is still at the first
        with pytest.raises(HttpError) as caught:
            batcher.submit(6, 1, 60)
        assert caught.value.status == 429, "those that wait count"
        run.free.set()
        assert await patient == 10

    asyncio.run(main())
