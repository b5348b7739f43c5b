"""The study's tasks cover its grid, are done once, and become records as plain arithmetic says. No data are needed."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import make_model

import cortx
from cortx.errors import InputError, ModelError
from cortx.explainer import store
from cortx.explainer.labels import Labels
from cortx.paper import run, study
from cortx.paper.grid import AUTHORS, GRID, LOG_ODDS, METHODS, PEERS, SAMPLING, THEOREM_METRICS, THEOREMS, grid
from cortx.paper.grid import missing_cells as missing
from cortx.paper.problems import Part, Problem, make_problem, relative_error, relative_noise
from cortx.paper.records import write_json
from cortx.paper.run import kept_results, points, records_of
from cortx.paper.study import FULL, QUICK, TIMED, Context, Task, do, tasks

Result = dict[str, Any]
every_data = pytest.mark.parametrize("data", list(GRID))
every_scale = pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
EVERY = ("l2", "squared_l2", "faithfulness", "rank_accuracy")
BESIDES = ("equal-error", "noise")
"""Experiments that help to read the others and have no cells."""
BOTH_HEADS = ("cortx-paper", "cortx-paper-random", "cortx-paper-farthest")
AMORTIZED = (
    "cortx", "cortx-paper-mse", "cortx-paper-ce", "supervised-mse", "supervised-ce", "supervised-strong", "fastshap",
    "fastshap-strong",
)  # fmt: skip


# Made-up results ---------------------------------------------------------------------------------------------------


def some_number(*about: object) -> float:
    """Any positive number, the same in every run."""
    return 0.01 + zlib.crc32(repr(about).encode()) / 2**33


def content(task: Task, quick: bool) -> Result:
    """What doing the task gives (`test_tasks_give_results_of_this_form` holds it against the real thing)."""

    def scores(method: str, *metrics: str) -> dict[str, dict[str, float]]:
        return {method: {metric: some_number(task, method, metric) for metric in metrics}}

    if task.kind == "fit":
        if task.method in BOTH_HEADS:
            both = scores(f"{task.method}-ce", "rank_accuracy") | scores(f"{task.method}-mse", *EVERY)
            return {"scores": both, "evaluations": 1_000}
        only_ranks = task.method == "supervised-ce"
        return {"scores": scores(task.method, *(("rank_accuracy",) if only_ranks else EVERY)), "evaluations": 1_000}
    if task.kind == "sampling":
        timed = scores(task.method, "l2", "squared_l2", "rank_accuracy", "rows_per_second")
        return {"scores": timed, "evaluations": task.at}
    if task.kind == "throughput":
        found: dict[str, dict[str, float]] = {}
        for method in AMORTIZED:
            found |= scores(method, "rows_per_second")
        return {"scores": found, "evaluations": None, "model_rows_per_second": 5.0, "rows": 100}
    if task.kind == "theorems":
        found = {}
        for method in THEOREMS:
            found |= scores(method, *THEOREM_METRICS, "rows", "evaluations", "seconds")
        return {"scores": found, "evaluations": 1_000}
    if task.kind == "noise":
        noise = scores(task.method, "l2", "rank_accuracy", "relative_standard_error")
        return {"scores": noise, "evaluations": 1_000}
    plan = grid(task.data, quick=quick)
    metrics = ("l2", "squared_l2", "rank_accuracy", "seconds_per_row", "evaluations_per_row")
    return {
        "points": [
            {"method": method, "at": at} | {metric: some_number(task, method, at, metric) for metric in metrics}
            for method in (*SAMPLING, *(PEERS if plan.peers else ()))
            for at in plan.permutations
        ],
        "evaluations": None,
    }


def made_up(task: Task, quick: bool = False, device: str = "cpu", **changes: Any) -> Result:
    return {
        "task": asdict(task), "scale": "quick" if quick else "full", "seconds": 2.0, "hardware": f"a {device}",
        "versions": "torch 9", "device": device, "target": {"model": "any"},
        **content(task, quick), **changes,
    }  # fmt: skip


# Tasks and cells -----------------------------------------------------------------------------------------------------


@cache
def all_records(data: str, quick: bool) -> list[dict[str, Any]]:
    return records_of(made_up(task, quick) for task in tasks(data, quick=quick))


@every_data
@every_scale
def test_tasks_fill_every_cell_of_the_grid(data: str, quick: bool) -> None:
    records = all_records(data, quick)
    assert missing(records, data, quick=quick) == []
    assert {record["method"] for record in records if record["experiment"] not in BESIDES} <= set(METHODS)
    json.dumps(records, allow_nan=False)


@every_data
@every_scale
def test_no_task_is_idle(data: str, quick: bool) -> None:
    """Without the tasks of a method, or place, some cell or some point of "evaluations" is missing."""
    everything = [made_up(task, quick) for task in tasks(data, quick=quick)]
    cells = set(grid(data, quick=quick).cells())
    for result in everything:
        setting = result["task"]["setting"]
        if result["task"]["kind"] in BESIDES:
            continue
        shown = {(point.experiment, setting, point.method, point.metric, point.at) for point in points(result)}
        by_cost = [place for place in shown if place[0] == "evaluations"]
        assert by_cost or shown & cells, result["task"]


@every_data
@every_scale
def test_records_belong_to_experiments_of_the_data(data: str, quick: bool) -> None:
    """A table or figure that the paper does not have on these data must not appear with a method or two."""
    wanted = {cell.experiment for cell in grid(data, quick=quick).cells()}
    assert {record["experiment"] for record in all_records(data, quick)} <= {*wanted, *BESIDES}


@every_data
@every_scale
def test_tasks_are_different_and_so_are_their_files(data: str, quick: bool, tmp_path: Path) -> None:
    everything = tasks(data, quick=quick)
    assert len(set(everything)) == len(everything)
    problem = make_small(tmp_path)
    for setting in grid(data, quick=quick).settings:
        here = [task for task in everything if task.setting == setting]
        at = {
            task: [task.path(Context(tmp_path, scale, device), problem) for device in ("cpu", "cuda", "cuda:0")]
            for task in here
            for scale in (QUICK if quick else FULL,)
        }
        assert len({paths[0] for paths in at.values()}) == len(here)
        assert all(len(set(paths)) == (2 if task.kind in TIMED else 1) for task, paths in at.items())


@pytest.mark.parametrize(
    "method", [method for method in study.FITS if method not in ("cortx-paper-ce", "cortx-budget")]
)
def test_other_settings_are_another_result(method: str, tmp_path: Path) -> None:
    problem, task = make_small(tmp_path), Task("fit", "census", AUTHORS, method, 0.25, 0)
    kept = [task.path(Context(tmp_path, scale), problem) for scale in (FULL, QUICK, replace(FULL, shorter=2))]
    assert len(set(kept)) == 3
    assert task.path(Context(tmp_path, FULL, threads=5), problem) == kept[0]


@every_data
def test_every_cell_has_all_its_seeds(data: str) -> None:
    for record in all_records(data, False):
        assert record["seeds"] == list(FULL.seeds), record
        assert len(record["seeds"]) >= 3


@every_data
@every_scale
def test_what_measures_time_comes_last(data: str, quick: bool) -> None:
    timed = [task.kind in TIMED for task in tasks(data, quick=quick)]
    assert timed == sorted(timed)
    assert any(timed)


def test_a_fit_stands_wherever_it_belongs() -> None:
    def shown(method: str, at: float | None) -> set[tuple[str, str, float | None]]:
        found = points(made_up(Task("fit", "census", AUTHORS, method, at, 0)))
        return {(point.experiment, point.method, point.at) for point in found}

    assert shown("cortx", 0.05) == {("labels", "cortx", 0.05)}
    assert shown("cortx", 0.25) == {
        ("labels", "cortx", 0.25), ("throughput", "cortx", None),
        ("l2x", "cortx", None), ("permutations", "cortx", None),
    }  # fmt: skip
    assert shown("cortx-budget", 700_000) == {("evaluations", "cortx", 700_000)}
    assert shown("fastshap-strong", 700_000) == {("evaluations", "fastshap-strong", 700_000)}
    assert ("labels", "fastshap-strong", None) in shown("fastshap-strong", max(FULL.budgets))
    assert shown("cortx-paper-random", 0.25) == {("ablation", "random-ce", 0.25), ("ablation", "random-mse", 0.25)}
    assert {("ablation", "compact-mse", 0.05), ("labels", "cortx-paper-ce", 0.05)} <= shown("cortx-paper", 0.05)
    assert shown("l2x", None) == {("l2x", "l2x", None)}


# Records -------------------------------------------------------------------------------------------------------------


def test_mean_and_spread_over_seeds() -> None:
    numbers = np.random.default_rng(0).normal(size=(4, 3))  # (seeds, what is measured)
    results = [
        made_up(
            Task("fit", "census", AUTHORS, "cortx", 0.05, seed), evaluations=1_000 * (seed + 1), seconds=10.0 + seed,
            scores={"cortx": {"l2": numbers[seed, 0], "rank_accuracy": numbers[seed, 1]}},
        )
        for seed in range(4)
    ]  # fmt: skip
    random.Random(1).shuffle(results)
    records = records_of(results)
    assert len(records) == 2
    for column, metric in enumerate(("l2", "rank_accuracy")):
        (record,) = [record for record in records if record["metric"] == metric]
        values = numbers[:, column]
        mean = sum(values) / 4
        assert record["value"] == pytest.approx(mean)
        assert record["spread"] == pytest.approx(math.sqrt(sum((value - mean) ** 2 for value in values) / 3))
        assert record["seeds"] == [0, 1, 2, 3]
        assert record["evaluations"] == (1_000 + 2_000 + 3_000 + 4_000) / 4
        assert record["seconds"] == pytest.approx((10 + 11 + 12 + 13) / 4)
        about = {"data": "census", "setting": AUTHORS, "experiment": "labels", "method": "cortx", "at": 0.05}
        assert {key: record[key] for key in about} == about
        assert (record["hardware"], record["versions"], record["target"]) == ("a cpu", "torch 9", {"model": "any"})


def test_one_seed_has_no_spread() -> None:
    task = Task("fit", "census", AUTHORS, "l2x", None, 0)
    records = records_of([made_up(task)])
    assert {record["spread"] for record in records} == {None}


def test_settings_and_data_stay_apart() -> None:
    places = [(data, setting) for data in GRID for setting in GRID[data].settings]
    records = records_of(made_up(Task("fit", *place, "fastshap", None, 0)) for place in places)
    labels = [record for record in records if (record["experiment"], record["metric"]) == ("labels", "l2")]
    assert [(record["data"], record["setting"]) for record in labels] == places
    assert len({record["value"] for record in labels}) == len(places)


@pytest.mark.parametrize(("kind", "method", "at"), [("throughput", "throughput", None), ("sampling", "kernel", 64)])
def test_times_of_two_devices_stay_apart(kind: str, method: str, at: float | None) -> None:
    results = []
    for device, speed in (("cpu", 100.0), ("cuda", 7_000.0)):
        for seed in range(3):
            scores = {"rows_per_second": speed + seed}
            if kind == "sampling":
                scores |= {"l2": 0.5 + seed, "rank_accuracy": 0.25}
            shown = "cortx" if kind == "throughput" else method
            task = Task(kind, "census", AUTHORS, method, at, seed)
            results.append(made_up(task, device=device, scores={shown: scores}))
    records = [record for record in records_of(results) if record["metric"] == "rows_per_second"]
    assert {record["device"]: record["value"] for record in records} == {"cpu": 101.0, "cuda": 7_001.0}
    assert all(record["spread"] == pytest.approx(1.0) for record in records)
    assert {record["hardware"] for record in records} == {"a cpu", "a cuda"}


def test_the_same_seed_on_two_devices_counts_once() -> None:
    """Errors do not depend on the device: doing a task on a second one adds no seed and makes no spread smaller."""
    results = [
        made_up(
            Task("sampling", "census", AUTHORS, "kernel", 64, seed), device=device,
            scores={"kernel": {"l2": float(seed), "rank_accuracy": 0.5, "rows_per_second": 9.0}},
        )
        for device in ("cpu", "cuda")
        for seed in range(3)
    ]  # fmt: skip
    (record,) = [record for record in records_of(results) if record["metric"] == "l2"]
    assert record["seeds"] == [0, 1, 2]
    assert record["value"] == pytest.approx(1.0)
    assert record["spread"] == pytest.approx(np.std([0.0, 1.0, 2.0], ddof=1))


def test_a_reason_stands_for_a_number() -> None:
    everything = tasks("bankruptcy")
    few = [task for task in everything if task.kind == "sampling" and task.at == 8]
    assert few
    changes: dict[str, Any] = {"reason": "the budget is too small", "evaluations": None}
    results = [
        made_up(task, **({**changes, "scores": {task.method: {}}} if task in few else {})) for task in everything
    ]
    records = records_of(results)
    without = [record for record in records if record["experiment"] == "throughput" and record["at"] == 8]
    assert {record["metric"] for record in without} == {"l2", "rank_accuracy", "rows_per_second"}
    for record in without:
        assert (record["value"], record["spread"]) == (None, None)
        assert record["reason"] == "the budget is too small"
    assert missing(records, "bankruptcy") == []
    json.dumps(records, allow_nan=False)


# Problems ------------------------------------------------------------------------------------------------------------


class Counted(torch.nn.Module):
    """A model that counts the rows it is asked for, and can break down after some."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.asked, self.most = inner, 0, math.inf

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.asked += len(x)
        if self.asked > self.most:
            raise RuntimeError("out of order")
        outputs: torch.Tensor = self.inner(x)
        return outputs


def make_small(
    folder: Path, data: str = "census", n_players: int = 6, n_train: int = 240, n_test: int = 40, seed: int = 0
) -> Problem:
    """A problem made by hand, with a model of its own and random rows."""
    x_train, x_test = (
        np.random.default_rng(stream).normal(size=(n, n_players)).astype(np.float32)
        for stream, n in ((4, n_train), (5, n_test))
    )
    model = Counted(make_model(n_players, seed=seed)).requires_grad_(False)
    census = data == "census"
    game = cortx.Game(
        model, reference="zero" if census else x_train.mean(axis=0), output="probability" if census else "raw"
    )
    setting = AUTHORS if census else LOG_ODDS
    return Problem(data, setting, model, game, x_train, x_test, {"model": "small"}, folder)


def asked(problem: Problem) -> int:
    assert isinstance(problem.model, Counted)
    return problem.model.asked


def test_shares_are_nested(tmp_path: Path) -> None:
    problem = make_small(tmp_path)
    for seed in range(3):
        before: set[int] = set()
        for share in (0.01, 0.05, 0.1, 0.25, 0.5, 1.0):
            chosen = problem.chosen(share, seed).tolist()
            assert len(chosen) == len(set(chosen)) == round(240 * share)
            assert before <= set(chosen)
            before = set(chosen)
        assert before == set(range(240))
    first, other = (problem.chosen(0.25, seed).tolist() for seed in (0, 1))
    assert sorted(first) != sorted(other)
    assert first == make_small(tmp_path).chosen(0.25, 0).tolist()


def test_relative_error_is_the_mean_of_ratios_of_norms() -> None:
    generator = np.random.default_rng(2)
    values, errors = generator.normal(size=(7, 5, 1)), generator.random((7, 5, 1))
    labels = Labels(None, values, np.zeros((7, 1)), 0, 0.0, "made up", errors=errors)
    total = 0.0
    for row in range(7):
        error = sum(errors[row, j, 0] ** 2 for j in range(5)) ** 0.5
        size = sum(values[row, j, 0] ** 2 for j in range(5)) ** 0.5
        total += error / size
    assert relative_error(labels) == pytest.approx(total / 7)


def test_two_labels_of_each_row_tell_their_relative_noise() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(400, 30, 1))
    one, two = (truth + 0.05 * generator.normal(size=truth.shape) for _ in range(2))
    assert relative_noise(one, two) == pytest.approx(0.05, rel=0.05)
    assert relative_noise(truth, truth) == 0


def test_key_names_rows_weights_and_setting(tmp_path: Path) -> None:
    problem = make_small(tmp_path)
    others = [
        make_small(tmp_path, seed=1),
        make_small(tmp_path, n_test=39),
        make_small(tmp_path, n_train=239),
        replace(problem, setting="another"),
        replace(problem, data="another"),
    ]
    assert make_small(tmp_path).key == problem.key
    assert len({problem.key, *(other.key for other in others)}) == 1 + len(others)


def test_labels_of_census_are_exact_and_kept(tmp_path: Path) -> None:
    problem = make_small(tmp_path, n_train=30)
    expected = cortx.shapley(problem.game, problem.x_train, "exact", progress=False).values
    problem.game.evaluations = 0
    labels = problem.labels("train")
    np.testing.assert_allclose(labels.values[..., 0], expected, atol=1e-6)
    assert labels.evaluations == 30 * 2**6 - 30  # of all coalitions but the empty one, which all rows share
    np.testing.assert_array_equal(labels.values[[4, 1]], problem.labels("train", np.array([4, 1])).values)
    assert problem.truth.shape == problem.drops.shape == (40, 6)
    assert problem.game.evaluations == 0


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    """18 players: too many to enumerate within the budget of a label, few enough to enumerate for a check."""
    problem = make_small(tmp_path_factory.mktemp("sampled"), "bankruptcy", n_players=18, n_train=40, n_test=12)
    problem.labels("train")
    problem.labels("test")
    return problem


def test_sampled_labels_are_precise(sampled: Problem) -> None:
    parts: tuple[Part, ...] = ("train", "test")
    for part in parts:
        labels = sampled.labels(part)
        assert relative_error(labels) <= 0.01
        assert labels.evaluations > 0
    assert sampled.game.evaluations == 0  # nobody's cost
    exact = cortx.shapley(sampled.game, sampled.x_test[:6], "exact", row_budget=2**18, progress=False).values
    sampled.game.evaluations = 0
    distance = np.linalg.norm(sampled.truth[:6] - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < distance.mean() < 0.02
    total = sampled.labels("test").outputs[:, 0] - sampled.game.base_values
    np.testing.assert_allclose(sampled.truth.sum(axis=1), total, atol=1e-6)


def test_kept_labels_are_not_paid_for_again(sampled: Problem) -> None:
    """In a new process: the model is asked only whether it is still the same."""
    first = sampled.labels("train")
    files = {path: path.stat().st_mtime_ns for path in sampled.folder.rglob("*") if path.is_file()}
    again = make_small(sampled.folder, "bankruptcy", n_players=18, n_train=40, n_test=12)
    second = again.labels("train")
    np.testing.assert_array_equal(first.values, second.values)
    np.testing.assert_array_equal(first.errors, second.errors)
    assert (first.evaluations, first.source) == (second.evaluations, second.source)
    assert asked(again) < first.evaluations / len(first)  # less than a single label
    assert {path: path.stat().st_mtime_ns for path in sampled.folder.rglob("*") if path.is_file()} == files
    assert not [path for path in files if ".tmp" in path.name]


def test_labels_in_any_order_are_the_same(sampled: Problem, tmp_path: Path) -> None:
    problem = make_small(tmp_path, "bankruptcy", n_players=18, n_train=40, n_test=12)
    some = np.array([31, 7, 12])
    expected = sampled.labels("train").values
    np.testing.assert_allclose(problem.labels("train", some).values, expected[some], rtol=1e-5, atol=1e-7)
    before = asked(problem)
    found = problem.labels("train")
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-7)
    assert found.evaluations * 0.9 < (asked(problem) - before) * 40 / 37 < found.evaluations * 1.1


def test_an_interrupted_labelling_goes_on(sampled: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_AT_RISK", 1)  # parts of the least size
    problem = make_small(tmp_path, "bankruptcy", n_players=18, n_train=40, n_test=12)
    problem.truth  # noqa: B018 - the pilot and the test rows are there before it breaks
    model = problem.model
    assert isinstance(model, Counted)
    whole, before = sampled.labels("train").evaluations, asked(problem)
    model.most = before + whole // 2
    with pytest.raises(ModelError, match="out of order"):
        problem.labels("train")
    assert list(tmp_path.rglob("labels/*-train/kept-*.safetensors"))

    other = make_small(tmp_path, "bankruptcy", n_players=18, n_train=40, n_test=12)
    found = other.labels("train")
    assert asked(other) < 0.9 * whole
    np.testing.assert_allclose(found.values, sampled.labels("train").values, rtol=1e-5, atol=1e-7)


def test_settings_that_do_not_exist(tmp_path: Path) -> None:
    for data, setting in (("census", LOG_ODDS), ("bankruptcy", AUTHORS), ("iris", AUTHORS)):
        with pytest.raises(InputError, match=f"no setting '{setting}' of '{data}'"):
            make_problem(data, setting, tmp_path)


# Doing tasks ---------------------------------------------------------------------------------------------------------

BRIEF = replace(QUICK, shorter=10**6, sampled_rows=20, timed_rows=2, theorem_rows=15)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def context(small: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """All tasks are about the small problem; results go to a new folder, labels are shared."""
    for module in (study, run):
        monkeypatch.setattr(module, "problem_of", lambda data, setting, context: small)
    return Context(tmp_path, QUICK)


@pytest.fixture
def brief(context: Context) -> Context:
    return replace(context, scale=BRIEF)


def count_calls(monkeypatch: pytest.MonkeyPatch, method: str) -> list[Task]:
    calls: list[Task] = []

    def fit(task: Task, problem: Problem, context: Context) -> study.Fitting:
        calls.append(task)

        def explain(rows: Any) -> cortx.Explanation:
            game = problem.game
            outputs = game.outputs_of(game.rows(rows).table)[:, 0]
            values = np.repeat((outputs - game.base_values)[:, None] / 6, 6, axis=1) + rows * 1e-3
            return cortx.Explanation(values, np.repeat(game.base_values, len(rows)), game.players.names)

        return explain, 123

    monkeypatch.setitem(study.FITS, method, fit)
    return calls


def test_a_task_is_done_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, "l2x")
    task = Task("fit", "census", AUTHORS, "l2x", None, 0)
    first = do(task, context)
    second = do(task, context)
    assert calls == [task]
    assert first == second
    assert first["evaluations"] == 123
    assert Task(**first["task"]) == task
    do(replace(task, seed=1), context)
    assert [call.seed for call in calls] == [0, 1]
    assert sorted(path.suffix for path in context.folder.rglob("*") if path.is_file()) == [".json", ".json"]
    assert kept_results("census", context.folder, quick=True) == [first]  # the quick study has one seed
    assert kept_results("census", context.folder) == kept_results("bankruptcy", context.folder) == []


def test_scores_are_those_of_all_test_rows(small: Problem, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    count_calls(monkeypatch, "l2x")
    before = small.game.evaluations
    result = do(Task("fit", "census", AUTHORS, "l2x", None, 0), context)
    assert small.game.evaluations == before  # measuring is nobody's cost
    explain, _ = study.FITS["l2x"](Task("fit", "census", AUTHORS, "l2x", None, 0), small, context)
    values = explain(small.x_test).values
    truth = cortx.shapley(small.game, small.x_test, "exact", progress=False).values
    squared = [sum((values[i, j] - truth[i, j]) ** 2 for j in range(6)) for i in range(len(truth))]
    assert result["scores"]["l2x"]["squared_l2"] == pytest.approx(sum(squared) / len(squared), rel=1e-4)
    assert result["scores"]["l2x"]["l2"] == pytest.approx(sum(s**0.5 for s in squared) / len(squared), rel=1e-4)


def test_a_task_that_fails_leaves_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Task, problem: Problem, context: Context) -> study.Fitting:
        raise ModelError("out of order")

    monkeypatch.setitem(study.FITS, "l2x", fail)
    task = Task("fit", "census", AUTHORS, "l2x", None, 0)
    with pytest.raises(ModelError):
        do(task, context)
    assert not [path for path in context.folder.rglob("*") if path.is_file()]
    calls = count_calls(monkeypatch, "l2x")
    do(task, context)
    assert calls == [task]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow beyond some hundred bytes, as on a disk that is full (nor what pytest writes: be brief)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "deep" / "new.json"
    write_json(old, [1, 2])
    for path in (old, new):
        with pytest.raises(OSError, match="File too large"), full_disk():
            write_json(path, list(range(1_000)))
    assert json.loads(old.read_text()) == [1, 2]
    assert not new.exists()


def test_a_kill_in_the_middle_of_writing_leaves_no_result(
    small: Problem, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies under a temporary name counts for nothing, and the next run replaces it."""
    calls = count_calls(monkeypatch, "l2x")
    task = Task("fit", "census", AUTHORS, "l2x", None, 0)
    path = task.path(context, small)
    path.parent.mkdir(parents=True)
    path.with_suffix(f".tmp{os.getpid()}").write_text('{"task": {"ki')
    assert kept_results("census", context.folder, quick=True) == []
    result = do(task, context)
    assert calls == [task]
    assert kept_results("census", context.folder, quick=True) == [result]


def form(result: Result) -> Any:
    """Which numbers a result has."""
    if "points" in result:
        return sorted((point["method"], point["at"]) for point in result["points"])
    return {method: set(scores) for method, scores in result["scores"].items()}


REAL = [task for task in tasks("census", quick=True) if task.at != 0.05 and task.at not in (128, 512)]


@pytest.mark.slow
@pytest.mark.parametrize("task", REAL, ids=lambda task: f"{task.kind}-{task.method}")
def test_tasks_give_results_of_this_form(task: Task, small: Problem, brief: Context) -> None:
    result = do(task, brief)
    expected = made_up(task, quick=True)
    assert set(expected) <= set(result)
    if task.kind == "theorems":
        assert all(form(expected)[method] <= form(result)[method] for method in THEOREMS)
        assert set(form(result)) == set(THEOREMS)
    else:
        assert form(result) == form(expected)
    assert result == json.loads(task.path(brief, small).read_text())
    assert (result["evaluations"] is None) == (expected["evaluations"] is None)
    for point in points(result):
        assert math.isfinite(point.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cortx", "supervised-mse", "cortx-paper"])
def test_labels_are_part_of_the_price(method: str, small: Problem, brief: Context) -> None:
    """Of a share of the rows, as if nothing had been kept: what all methods are compared by."""
    result = do(Task("fit", "census", AUTHORS, method, 0.25, 0), brief)
    index = small.chosen(0.25, 0)
    labels = cortx.shapley(small.game, small.x_train[index], "exact", progress=False)
    assert result["evaluations"] >= labels.evaluations
    if method == "supervised-mse":
        probes = 32  # rows by whose outputs the model is recognised
        assert result["evaluations"] == pytest.approx(labels.evaluations + len(small.x_train) + probes, abs=2)
