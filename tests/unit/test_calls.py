"""Calls of slow and remote models: side by side, at a limited rate, repeated where they fail."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.compat.samples import frame, score
from tests.conftest import make_model, make_tiny_recipe
from tests.guard import HANG

import cortx
from cortx.errors import BudgetError, InputError, ModelError
from cortx.explainer.store import Ask, LabelStore
from cortx.games import calls as calls_module
from cortx.games import event_loop
from cortx.games.calls import Caller, Calls, Pace, Pieces, retry_after, worth_repeating
from cortx.games.game import Game

TABLE = np.random.default_rng(0).normal(size=(23, 5))
COALITIONS = np.random.default_rng(1).random((23, 7, 5)) < 0.5


def smooth(rows: np.ndarray) -> np.ndarray:
    return np.tanh(rows).sum(axis=1) + rows[:, 0] * rows[:, 1]


class Recorder:
    """A model that notes the sizes of its calls, the threads they came from, and how many were under way at a time."""

    def __init__(self, meet: int = 0) -> None:
        self.sizes: list[int] = []
        self.threads: set[str] = set()
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(meet) if meet else None

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        with self.lock:
            self.sizes.append(len(rows))
            self.threads.add(threading.current_thread().name)
            self.now += 1
            self.most = max(self.most, self.now)
        if self.barrier is not None:
            self.barrier.wait(HANG)
        with self.lock:
            self.now -= 1
        return smooth(rows)


class Flaky:
    """Fails at a seeded half of its calls, after it has spoilt its input."""

    def __init__(self, share: float = 0.5) -> None:
        self.rng, self.share, self.lock = np.random.default_rng(3), share, threading.Lock()
        self.failed = self.answered = 0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        with self.lock:
            fails = self.rng.random() < self.share
            self.failed, self.answered = self.failed + fails, self.answered + (0 if fails else len(rows))
        values = smooth(rows)
        rows[:] = np.nan
        if fails:
            raise ConnectionError("try again")
        return values


def call_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith((calls_module.THREAD, "cortx-event"))]


def values_with(model: Any, calls: Calls | None, **settings: Any) -> tuple[np.ndarray, Game]:
    settings = settings or {"reference": "zero"}
    game = cortx.Game(model, output="raw", calls=calls, **settings)
    return game.values(game.rows(TABLE), COALITIONS), game


def answered_rows(game: Game, seen: list[int]) -> None:
    """Asks for v(all players) of every row, and notes those whose values arrive."""
    rows = game.rows(TABLE)
    for arrived in game.answered(rows, np.arange(23), np.ones((23, 5), dtype=bool)):
        for part, values in arrived:
            np.testing.assert_array_equal(values[:, 0], smooth(TABLE[part]))
            seen += range(23)[part]


# Values and counts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [None, TABLE[:3], TABLE[:11]])
@pytest.mark.parametrize("batch", [1, 4, 1_000])
@pytest.mark.parametrize("distinct", [True, False])
def test_values_are_those_of_single_calls(background: np.ndarray | None, batch: int, distinct: bool) -> None:
    absent = {"reference": TABLE} if background is None else {"background": background}
    plain = cortx.Game(smooth, output="raw", **absent)
    model = Recorder()
    game = cortx.Game(model, output="raw", calls=Calls(workers=3, batch=batch), **absent)
    for coalitions in (COALITIONS, COALITIONS[0]):
        spent, expected = np.zeros(23, dtype=int), np.zeros(23, dtype=int)
        found = game.values(game.rows(TABLE), coalitions, distinct=distinct, spent=spent)
        truth = plain.values(plain.rows(TABLE), coalitions, distinct=distinct, spent=expected)
        np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(spent, expected)
    assert max(model.sizes) <= batch
    assert sum(model.sizes) == game.evaluations == plain.evaluations
    assert all(name.startswith(calls_module.THREAD) for name in model.threads)
    assert call_threads() == []


@pytest.mark.parametrize("workers", [2, 7])
def test_the_number_of_workers_changes_no_bit(workers: int) -> None:
    model = make_model(5)
    one, _ = values_with(model, Calls(workers=1, batch=9), background=TABLE[:4])
    many, _ = values_with(model, Calls(workers=workers, batch=9), background=TABLE[:4])
    np.testing.assert_array_equal(one, many)


def test_calls_are_under_way_side_by_side_and_no_more_than_asked() -> None:
    model = Recorder(meet=4)  # no call returns before four have begun
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=4, batch=2))
    np.testing.assert_allclose(game.full_values(game.rows(TABLE[:16]))[:, 0], smooth(TABLE[:16]))
    assert model.most == 4
    assert model.sizes == [2] * 8


@pytest.mark.parametrize("pairs", [0, 1, 5, 64, 100])
@pytest.mark.parametrize("background", [1, 3, 10, 64, 200])
@pytest.mark.parametrize("batch", [1, 10, 64])
def test_pieces_cover_every_pair_and_background_row_once(pairs: int, background: int, batch: int) -> None:
    pieces = Pieces.of(pairs, background, batch)
    seen, parts = [], list(pieces.batches())
    for pair, absent in parts:
        assert 0 < len(pair) <= batch
        seen += list(zip(pair.tolist(), absent.tolist(), strict=True))
    assert sorted(seen) == [(pair, absent) for pair in range(pairs) for absent in range(background)]
    for number, (pair, _) in enumerate(parts):
        part = pieces.part(number // pieces.calls)
        assert part.start <= pair.min() <= pair.max() < part.stop


def test_a_module_in_training_mode_is_asked_in_evaluation_mode() -> None:
    import torch

    module = torch.nn.Sequential(make_model(5), torch.nn.Dropout(0.5))
    module.train()
    found, _ = values_with(module, Calls(workers=4, batch=3))
    truth, _ = values_with(module, None)
    np.testing.assert_allclose(found, truth, atol=1e-6)
    assert module.training


def test_frames_with_categories_and_missing_values_are_called_in_batches_too() -> None:
    rows = frame().assign(income=lambda rows: rows["income"].where(rows["age"] > 40))

    def model(table: pd.DataFrame) -> np.ndarray:
        assert table["region"].dtype == rows["region"].dtype
        return score(table.assign(income=table["income"].fillna(-1.0)))

    background = rows.iloc[:3]
    settings: list[dict[str, Any]] = [{"reference": rows}, {"background": background, "players": {"a": [0, 2]}}]
    for absent in settings:
        plain = cortx.Game(model, output="raw", **absent)
        game = cortx.Game(model, output="raw", calls=Calls(workers=3, batch=7), **absent)
        found, truth = (cortx.shapley(each, rows.iloc[:9], "kernel", row_budget=60) for each in (game, plain))
        np.testing.assert_allclose(found.values, truth.values, atol=1e-10)
        assert found.evaluations == truth.evaluations


def test_games_are_copied() -> None:
    for model in (smooth, Asynchronous(1)):
        game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=2, batch=4))
        rows = game.rows(TABLE)
        expected = game.full_values(rows)
        other = copy.deepcopy(game)
        np.testing.assert_array_equal(other.full_values(other.rows(TABLE)), expected)
        assert other.calls == game.calls


def test_images_are_called_in_batches_too() -> None:
    images = np.random.default_rng(0).random((5, 4, 4)).astype(np.float32)
    sizes: list[int] = []

    def model(some: np.ndarray) -> np.ndarray:
        sizes.append(len(some))
        assert some.shape[1:] == (4, 4)
        return some.mean(axis=(1, 2)) ** 2

    patches = cortx.Patches(2)
    game = cortx.Game(model, "mean", players=patches, output="raw", calls=Calls(workers=2, batch=3))
    plain = cortx.Game(model, "mean", players=patches, output="raw")
    kept = np.random.default_rng(0).random((5, 3, 4)) < 0.5
    np.testing.assert_allclose(game.values(game.rows(images), kept), plain.values(plain.rows(images), kept), atol=1e-6)
    sizes.clear()
    game.full_values(game.rows(images))
    assert sorted(sizes) == [2, 3]


# Repeated calls ---------------------------------------------------------------------------------------------------


def without_waiting(game: Game, retries: int = 50, workers: int = 3, **settings: Any) -> list[float]:
    """Lets the game's calls pass their waits at once; returns what they would have waited."""
    waits: list[float] = []

    def pause(event: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return event.is_set()

    game._caller = Caller(Calls(workers=workers, batch=4, retries=retries, **settings), lambda: 0.0, pause)
    return waits


def test_calls_that_fail_are_repeated_and_their_rows_count_once() -> None:
    model = Flaky()
    game = cortx.Game(model, "zero", output="raw", calls=Calls())
    without_waiting(game)
    truth, _ = values_with(smooth, None)
    with game.spending(10_000) as ledger:
        np.testing.assert_allclose(game.values(game.rows(TABLE), COALITIONS), truth)
    assert model.failed > 5
    assert game.repeated_calls == model.failed
    assert ledger.spent == game.evaluations == model.answered


def test_waits_double_and_are_cut_by_half_at_most() -> None:
    calls = Calls(retries=9, wait=0.5, longest_wait=5)
    assert [calls.delay(n, 0.0) for n in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]
    assert calls.delay(3, 1.0) == 1.0
    assert calls.delay(5_000, 0.0) == 5
    model = Flaky(1.0)
    game = cortx.Game(model, "zero", output="raw", calls=Calls())
    waits = without_waiting(game, retries=3, workers=1, wait=0.5)
    with pytest.raises(ModelError, match=r"failed \(ConnectionError: try again\); it was tried 4 times$"):
        _ = game.rows(TABLE), game.base_values
    pauses = [wait for wait in waits if wait]
    assert all(half / 2 <= wait <= half for wait, half in zip(pauses, (0.5, 1, 2), strict=True))


def test_what_fails_for_good_says_so_and_keeps_what_was_answered() -> None:
    def model(rows: np.ndarray) -> np.ndarray:
        if (rows[:, 0] == TABLE[7, 0]).any():
            raise ConnectionError("gone")
        return smooth(rows)

    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=1, batch=2))
    seen: list[int] = []
    with pytest.raises(ModelError, match=r"gone\); it was tried once; Calls\(retries=\.\.\.\) repeats"):
        answered_rows(game, seen)
    assert seen == list(range(6))
    assert call_threads() == []


def test_calls_under_way_are_yielded_before_a_failure_is_raised() -> None:
    begun, asked = threading.Event(), []

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        if rows[0, 0] == TABLE[0, 0]:
            assert begun.wait(HANG)
            raise OSError("no")
        begun.set()
        return smooth(rows)

    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=2, batch=1))
    game.base_values = np.zeros(1)
    seen: list[int] = []
    with pytest.raises(ModelError, match="no"):
        answered_rows(game, seen)
    assert 1 in seen
    assert game.evaluations == len(asked) == len(seen) + 1


def test_what_was_not_asked_does_not_count() -> None:
    """Calls that wait for their moment when another one fails for good."""
    asked: list[int] = []

    def pause(event: threading.Event, seconds: float) -> bool:
        return bool(seconds) and event.wait(HANG)

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        raise OSError("no")

    game = cortx.Game(model, "zero", output="raw", calls=Calls())
    game._caller = Caller(Calls(workers=5, batch=2, per_second=1), lambda: 0.0, pause)
    game.base_values = np.zeros(1)
    rows = game.rows(TABLE)
    with game.spending(None) as ledger, pytest.raises(ModelError, match="no"):
        game.full_values(rows)
    assert asked == [2]
    assert ledger.spent == game.evaluations == 2
    assert call_threads() == []


@pytest.mark.parametrize("answer", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_an_answer(answer: float) -> None:
    asked: list[int] = []

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        return np.full(len(rows), answer)

    game = cortx.Game(model, "zero", output="raw", calls=Calls(retries=9))
    with pytest.raises(ModelError, match="NaN or infinity"):
        _ = game.rows(TABLE), game.base_values
    assert asked == [1]
    assert game.repeated_calls == 0


def test_a_budget_stops_calls_before_they_begin() -> None:
    model = Recorder()
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=4, batch=2))
    _ = game.rows(TABLE), game.base_values
    seen: list[int] = []
    with game.spending(11), pytest.raises(BudgetError, match="10 of 11 model evaluations"):
        answered_rows(game, seen)
    assert sorted(seen) == list(range(10))  # what was paid for arrived
    assert sum(model.sizes) == game.evaluations == 11


def test_a_fit_counts_every_row_once_and_tells_of_repeated_calls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortx.training.difficulty.STEPS", 1)  # what is learned does not matter here
    model = Flaky(0.3)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=3, batch=50, retries=99, wait=0))
    recipe, rows = make_tiny_recipe(steps=1), np.random.default_rng(0).normal(size=(150, 5))
    with caplog.at_level("INFO", logger="cortx"):
        explainer = cortx.CoRTX(recipe).fit(game, rows, budget=6_000)
    assert model.answered == explainer.costs_["total_evaluations"] <= 6_000
    assert f"{model.failed:,} calls of the model failed and were repeated" in caplog.messages


def test_a_slow_model_that_fails_costs_few_labels(tmp_path: Path) -> None:
    asked: list[int] = []

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        if sum(asked) > 9_000:
            raise ConnectionError("out of credit")
        return np.tanh(rows @ np.linspace(-1, 1, 12))

    game = cortx.Game(model, np.zeros(12), output="raw", calls=Calls(workers=2, batch=100))
    rows = game.rows(np.random.default_rng(0).normal(size=(60, 12)))
    store, settings = LabelStore.open(tmp_path, game, 0), {"views": 0, "seed": 0, "show": False, "title": ""}
    with pytest.raises(ModelError, match=r"out of credit.* labels .* are kept: call fit again"):
        store.labels(game, rows, np.arange(60), Ask("kernel", 500), **settings)
    assert LabelStore.open(tmp_path, game, 0).evaluations > 9_000 - 2_500


# Waiting ----------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now, self.lock = 0.0, threading.Lock()

    def __call__(self) -> float:
        return self.now

    def pause(self, event: threading.Event, seconds: float) -> bool:
        with self.lock:
            self.now += seconds
        return event.is_set()


@pytest.mark.parametrize("per_second", [0.5, 3, 20])
def test_no_second_begins_more_calls_than_allowed(per_second: float) -> None:
    clock = Clock()
    pace, begun = Pace(per_second, clock), []
    rng = np.random.default_rng(0)
    for _ in range(200):
        begun.append(clock.now + pace.reserve())
        clock.now += float(rng.choice([0.0, 0.0, 0.01, 1.3]))
    gaps = np.diff(begun)
    assert gaps.min() >= 1 / per_second - 1e-9
    for begin in begun:
        assert sum(begin <= other < begin + 1 - 1e-9 for other in begun) <= max(1, np.ceil(per_second))


def test_the_rate_holds_from_one_table_to_the_next() -> None:
    clock, begun = Clock(), []

    def model(rows: np.ndarray) -> np.ndarray:
        begun.append(clock.now)
        return smooth(rows)

    calls = Calls(workers=1, batch=2, per_second=4)
    game = cortx.Game(model, "zero", output="raw", calls=calls)
    game._caller = Caller(calls, clock, clock.pause)
    rows = game.rows(TABLE[:7])
    for _ in range(3):
        game.full_values(rows)
    np.testing.assert_allclose(begun, 0.25 * np.arange(12))


def test_a_service_that_asks_to_wait_is_obeyed_by_all_calls() -> None:
    clock = Clock()
    pace = Pace(None, clock)
    pace.hold(7.0)
    assert [pace.reserve(), pace.reserve()] == [7.0, 7.0]
    refusal = ConnectionError("slow down")
    refusal.response = SimpleNamespace(status_code=429, headers={"Retry-After": "12"})  # type: ignore[attr-defined]
    begun: list[float] = []

    def model(rows: np.ndarray) -> np.ndarray:
        begun.append(clock.now)
        if len(begun) == 1:
            raise refusal
        return smooth(rows)

    calls = Calls(workers=1, retries=1)
    game = cortx.Game(model, "zero", output="raw", calls=calls)
    game._caller = Caller(calls, clock, clock.pause)
    _ = game.rows(TABLE), game.base_values
    assert begun == [0.0, 12.0]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": formatdate(0, usegmt=True)}, 0.0),  # a moment long past
        ({"Retry-After": formatdate(4e9, usegmt=True)}, 3_600.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_time_to_wait_is_read(headers: Any, seconds: float | None) -> None:
    error = ConnectionError()
    error.response = SimpleNamespace(headers=headers)  # type: ignore[attr-defined]
    assert retry_after(error) == seconds
    direct = ConnectionError()
    direct.headers = headers  # type: ignore[attr-defined]
    assert retry_after(direct) == seconds


@pytest.mark.parametrize(
    ("status", "repeat"), [(400, False), (401, False), (404, False), (408, True), (429, True), (500, True), (503, True)]
)
@pytest.mark.parametrize("name", ["status_code", "status", "code"])
def test_a_request_that_is_wrong_is_not_repeated(status: int, repeat: bool, name: str) -> None:
    error = ConnectionError("told")
    setattr(error, name, status)
    assert worth_repeating(error) == repeat
    asked: list[int] = []

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        raise error

    game = cortx.Game(model, "zero", output="raw", calls=Calls())
    without_waiting(game, retries=2)
    with pytest.raises(ModelError, match="tried 3 times" if repeat else "tried once"):
        _ = game.rows(TABLE), game.base_values
    assert len(asked) == (3 if repeat else 1)


def test_a_call_that_hangs_is_given_up() -> None:
    release, asked = threading.Event(), []

    def model(rows: np.ndarray) -> np.ndarray:
        asked.append(len(rows))
        if len(asked) == 1:
            release.wait(HANG)
        return smooth(rows)

    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=1, retries=99, timeout=0.01, wait=0))
    game.rows(TABLE)
    try:
        assert game.base_values.tolist() == [0.0]
    finally:
        release.set()
    assert game.repeated_calls == len(asked) - 1 >= 1
    assert game.evaluations == 1


def test_an_interrupt_ends_the_work_and_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: KeyboardInterrupt while the caller waits for answers."""
    release, begun = threading.Event(), threading.Event()

    def model(rows: np.ndarray) -> np.ndarray:
        begun.set()
        assert release.wait(HANG)
        return smooth(rows)

    def interrupted(burst: Any, unasked: Any) -> Any:
        assert begun.wait(HANG)
        raise KeyboardInterrupt

    monkeypatch.setattr(calls_module._Burst, "wait", interrupted)
    monkeypatch.setattr(calls_module, "SECONDS_TO_STOP", 0.0)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=3, batch=1))
    game.base_values = np.zeros(1)
    rows = game.rows(TABLE)
    with pytest.raises(KeyboardInterrupt):
        game.full_values(rows)
    waiting = call_threads()
    release.set()
    for thread in waiting:
        thread.join(HANG)
    assert call_threads() == []
    assert game.evaluations == 3  # what had begun


@pytest.mark.parametrize("timeout", [None, HANG])
def test_a_model_that_ends_the_program_ends_it(timeout: float | None) -> None:
    def model(rows: np.ndarray) -> np.ndarray:
        raise SystemExit(3)

    game = cortx.Game(model, "zero", output="raw", calls=Calls(retries=9, timeout=timeout))
    game.rows(TABLE)
    with pytest.raises(SystemExit):
        _ = game.base_values
    assert call_threads() == []


# Async models -----------------------------------------------------------------------------------------------------


class Asynchronous:
    """An ``async def`` model whose calls wait for each other, so that one at a time would never end."""

    def __init__(self, meet: int) -> None:
        self.meet, self.begun, self.loops, self.cancelled = meet, 0, set[int](), 0
        self.all_begun = threading.Event()

    def __reduce__(self) -> Any:
        return Asynchronous, (self.meet,)

    async def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.begun += 1
        if self.begun == 3:
            self.all_begun.set()
        self.loops.add(id(asyncio.get_running_loop()))
        try:
            while self.begun < self.meet:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return smooth(rows)


def test_async_functions_run_side_by_side_in_one_loop() -> None:
    model = Asynchronous(meet=5)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=5, batch=2))
    game.base_values = np.zeros(1)
    rows = game.rows(TABLE)
    for _ in range(2):  # the loop stays for clients that hold connections, its thread does not
        np.testing.assert_allclose(game.full_values(rows)[:, 0], smooth(TABLE))
        assert call_threads() == []
    assert len(model.loops) == 1


@pytest.mark.parametrize("inside_a_loop", [True, False])
def test_async_functions_need_no_settings_and_may_be_used_inside_a_loop(inside_a_loop: bool) -> None:
    async def predict(rows: np.ndarray) -> np.ndarray:
        return smooth(rows)

    async def use() -> np.ndarray:
        return values_with(predict, None)[0]

    found = asyncio.run(use()) if inside_a_loop else values_with(predict, None)[0]
    np.testing.assert_allclose(found, values_with(smooth, None)[0])


def test_an_async_call_that_takes_too_long_is_cancelled() -> None:
    model = Asynchronous(meet=1_000)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(retries=1, timeout=0.01, wait=0))
    game.rows(TABLE)
    with pytest.raises(ModelError, match=r"TimeoutError: no answer within 0\.01 s\); it was tried 2 times"):
        _ = game.base_values
    assert model.cancelled == model.begun
    assert call_threads() == []


def test_an_interrupt_cancels_async_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Asynchronous(meet=1_000)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=3, batch=1))
    game.base_values = np.zeros(1)
    rows = game.rows(TABLE)

    def interrupted(burst: Any, unasked: Any) -> Any:
        assert model.all_begun.wait(HANG)
        raise KeyboardInterrupt

    monkeypatch.setattr(calls_module._Burst, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        game.full_values(rows)
    assert model.cancelled == 3
    assert call_threads() == []


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Calls(workers=0), "workers must be a whole number, 1 or more, got 0"),
        (lambda: Calls(batch=2.5), "batch must be a whole number, 1 or more, got 2.5"),
        (lambda: Calls(retries=-1), "retries must be a whole number, 0 or more, got -1"),
        (lambda: Calls(per_second=0), "per_second must be a positive number or None, got 0"),
        (lambda: Calls(timeout=-3), "timeout must be a positive number or None, got -3"),
        (lambda: Calls(wait=float("nan")), "wait must be a number of seconds, 0 or more, got nan"),
        (lambda: cortx.Game(smooth, "zero", calls=8), r"calls must be cortx.Calls\(...\).*got 8"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# Models that block, and work that is given up -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["blocks", "is not cancelled"])
def test_an_interrupt_leaves_async_calls_that_cannot_be_cancelled(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun = threading.Event(), threading.Event()

    async def model(rows: np.ndarray) -> np.ndarray:
        begun.set()
        if how == "blocks":
            assert release.wait(HANG)
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
        return smooth(rows)

    def interrupted(burst: Any, unasked: Any) -> Any:
        assert begun.wait(HANG)
        raise KeyboardInterrupt

    game = cortx.Game(model, "zero", output="raw", calls=Calls(workers=2, batch=1, retries=5))
    game.base_values = np.zeros(1)
    rows = game.rows(TABLE)
    with monkeypatch.context() as patch:
        patch.setattr(calls_module._Burst, "wait", interrupted)
        for module in (calls_module, event_loop):
            patch.setattr(module, "SECONDS_TO_STOP", 0.01)
        with pytest.raises(KeyboardInterrupt):
            game.full_values(rows)
    assert not release.is_set()
    release.set()
    for thread in call_threads():
        thread.join(HANG)
    np.testing.assert_allclose(game.full_values(rows)[:, 0], smooth(TABLE))  # the game can be used again
    assert call_threads() == []


def test_a_blocked_event_loop_is_given_up_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    async def model(rows: np.ndarray) -> np.ndarray:
        assert release.wait(HANG)
        return smooth(rows)

    monkeypatch.setattr(event_loop, "SECONDS_TO_STOP", 0.01)
    game = cortx.Game(model, "zero", output="raw", calls=Calls(timeout=0.01, batch=50))
    game.rows(TABLE)
    try:
        with pytest.raises(ModelError, match="not block its event loop"):
            _ = game.base_values
    finally:
        release.set()
    for thread in call_threads():
        thread.join(HANG)
    np.testing.assert_allclose(values_with(model, None)[0], values_with(smooth, None)[0])


def test_a_call_that_waits_for_its_repetition_is_not_begun_once_the_work_is_given_up() -> None:
    """It would come too soon for the rate that was asked for."""
    giving_up, asked = threading.Event(), []

    def pause(event: threading.Event, seconds: float) -> bool:
        if seconds > 5:  # the repetition's turn
            event.set()
        return event.is_set()

    def ask(task: int) -> int:
        asked.append(task)
        raise ConnectionError("busy")

    caller = Caller(Calls(retries=3, per_second=0.1, wait=0), clock=lambda: 0.0, pause=pause)
    with pytest.raises(ModelError, match="tried once"):
        caller.attempts(ask, 7, giving_up)
    assert asked == [7]
    assert caller.repeated == 0
    with pytest.raises(calls_module._Stopped):
        caller.attempts(ask, 8, giving_up)


def test_errors_of_async_models_keep_their_cause() -> None:
    async def model(rows: np.ndarray) -> np.ndarray:
        raise ConnectionError("refused") from OSError("no route")

    game = cortx.Game(model, "zero", output="raw", calls=Calls(timeout=HANG))
    game.rows(TABLE)
    with pytest.raises(ModelError, match="refused") as caught:
        _ = game.base_values
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value.__cause__.__cause__, OSError)
