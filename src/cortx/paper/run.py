"""Runs the study of a data set, and turns the results of its tasks into records, tables and figures."""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cortx.errors import need
from cortx.paper.equal_error import equal_error
from cortx.paper.grid import ABLATION, AUTHORS, OF_VALUES, ONE_PASS, grid
from cortx.paper.problems import IntArray, Part
from cortx.paper.records import record, write_json, write_text
from cortx.paper.study import FULL, KINDS, QUICK, SHARE, TIMED, Context, Task, do, problem_of, tasks
from cortx.progress import progress_bar
from cortx.threads import available_cpus

TIMES = ("rows_per_second", "seconds_per_row")
SCALES = {scale.name: scale for scale in (FULL, QUICK)}


def run_study(
    data: str,
    folder: str | Path,
    *,
    quick: bool = False,
    device: str = "cpu",
    workers: int = 1,
    kinds: Iterable[str] = tuple(KINDS),
    show: bool | None = None,
) -> list[dict[str, Any]]:
    """Does every task that has no result yet, and gives the records of all; everything is kept in `folder`."""
    folder = Path(folder)
    threads = max(1, available_cpus() // workers)
    scale = QUICK if quick else FULL
    context = Context(folder, scale, device, threads)
    everything = [task for task in tasks(data, quick=quick) if task.kind in kinds]
    _label(data, dict.fromkeys(task.setting for task in everything), context, workers, show)
    results = []
    with progress_bar(f"{data}: tasks", len(everything), show=show) as advance:
        together = [task for task in everything if task.kind not in TIMED]
        for task, result in _in_parallel(together, context, workers):
            results.append(result)
            advance(1, f"{task.kind} {task.method}")
        alone = Context(folder, scale, device, available_cpus())
        for task in everything[len(together) :]:
            results.append(do(task, alone))
            advance(1, f"{task.kind} {task.method}")
    return records_of(results)


def check_libraries(data: str, *, quick: bool = False) -> None:
    """Fails before any work where a library that the end of the study needs is missing."""
    needed = [("matplotlib", "drawing the figures", "plots")]
    plan = grid(data, quick=quick)
    if plan.peers and plan.permutations:
        needed += [(name, "the table with the peers", "peers") for name in ("shap", "captum", "shapiq")]
    for module, why, extra in needed:
        if importlib.util.find_spec(module) is None:
            raise need(module, why, extra)


def _label(data: str, settings: Iterable[str], context: Context, workers: int, show: bool | None) -> None:
    """Makes the labels of all rows before any task needs them."""
    jobs: list[tuple[str, str, Part, IntArray, Context]] = []
    for setting in settings:
        problem = problem_of(data, setting, context)
        parts: tuple[Part, Part] = ("test", "train")
        for part in parts:
            if workers == 1:
                problem.labels(part, show=show)
            else:
                pieces = np.array_split(np.arange(len(problem.rows(part))), 4 * workers)
                jobs += [(data, setting, part, piece, context) for piece in pieces]
    if jobs:
        context_of_pool = multiprocessing.get_context("spawn")
        with progress_bar(f"{data}: labels", len(jobs), show=show) as advance, context_of_pool.Pool(workers) as pool:
            for _ in pool.imap_unordered(_label_piece, jobs):
                advance(1, "")


def _label_piece(job: tuple[str, str, Part, IntArray, Context]) -> None:
    data, setting, part, index, context = job
    torch.set_num_threads(context.threads)
    problem_of(data, setting, context).labels(part, index)


def _in_parallel(todo: Sequence[Task], context: Context, workers: int) -> Iterator[tuple[Task, dict[str, Any]]]:
    if workers == 1:
        yield from ((task, do(task, context)) for task in todo)
        return
    # Threads that the parent has started do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_do, [(task, context) for task in todo])


def _do(job: tuple[Task, Context]) -> tuple[Task, dict[str, Any]]:
    return job[0], do(*job)


def kept_results(data: str, folder: str | Path, *, quick: bool = False) -> list[dict[str, Any]]:
    """The results of a study that lie in its folder, as made with the present settings, whatever device made them."""
    scale, results = QUICK if quick else FULL, []
    for task in tasks(data, quick=quick):
        for device in ("cpu", "cuda") if task.kind in TIMED else ("cpu",):
            context = Context(Path(folder), scale, device)
            problem = problem_of(data, task.setting, replace(context, device="cpu"))
            path = task.path(context, problem)
            if path.exists():
                results.append(json.loads(path.read_text()))
    return results


# From results to records -----------------------------------------------------------------------------------------


class Point(NamedTuple):
    """One number of one seed, for one cell of a table or figure."""

    experiment: str
    method: str
    metric: str
    at: float | None
    value: float
    evaluations: float | None = None
    """Of this point, where its task has several."""


def records_of(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and spreads over seeds. Times of different devices stay apart."""
    groups: dict[tuple[Any, ...], list[tuple[float, dict[str, Any]]]] = defaultdict(list)
    for result in results:
        task = result["task"]
        for point in points(result):
            device = result["device"] if point.metric in TIMES else None
            found = groups[(task["data"], task["setting"], *point[:4], device)]
            if all(other["task"]["seed"] != task["seed"] for _, other in found):  # the same on another device
                spent = result["evaluations"] if point.evaluations is None else point.evaluations
                found.append((point.value, result | {"evaluations": spent}))
    records = [_record(key, sorted(found, key=lambda one: one[1]["task"]["seed"])) for key, found in groups.items()]
    return records + equal_error(records)


def _record(key: tuple[Any, ...], found: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    data, setting, experiment, method, metric, at, _ = key
    first = found[0][1]
    evaluations = [result["evaluations"] for _, result in found if result["evaluations"] is not None]
    facts = {
        "data": data, "at": at, "device": "+".join(sorted({result["device"] for _, result in found})),
        "target": first["target"], "hardware": "; ".join(sorted({result["hardware"] for _, result in found})),
        "versions": first["versions"],
    }  # fmt: skip
    if "reason" in first:
        facts["reason"] = first["reason"].partition(", got budget")[0]
    for name in ("model_rows_per_second", "rows"):
        if name in first:
            facts[name] = first[name]
    made = record(
        experiment, setting, method, metric, [value for value, _ in found],
        seeds=[result["task"]["seed"] for _, result in found],
        evaluations=sum(evaluations) / len(evaluations) if evaluations else None,
        seconds=sum(result["seconds"] for _, result in found) / len(found), **facts,
    )  # fmt: skip
    if not math.isfinite(made["value"]):
        made |= {"value": None, "spread": None}
    return made


def points(result: dict[str, Any]) -> Iterator[Point]:
    """All cells that the result of one task fills."""
    task = Task(**result["task"])
    if task.kind == "permutations":
        for found in result["points"]:
            for metric in ("l2", "squared_l2", "rank_accuracy", "seconds_per_row"):
                spent = found["evaluations_per_row"]
                yield Point("permutations", found["method"], metric, found["at"], found[metric], spent)
        return
    for method, scores in result["scores"].items():
        if task.kind == "fit":
            yield from _of_fit(task, method, scores, result["scale"])
        elif task.kind == "sampling":
            for metric in ("l2", "rank_accuracy", "rows_per_second"):
                yield Point("throughput", method, metric, task.at, scores.get(metric, math.nan))
        elif task.kind == "throughput":
            yield Point("throughput", method, "rows_per_second", None, scores["rows_per_second"])
            if method in ONE_PASS and task.setting == AUTHORS:
                yield Point("permutations", method, "seconds_per_row", None, 1 / scores["rows_per_second"])
        elif task.kind == "noise":
            yield from (Point("noise", method, metric, None, value) for metric, value in scores.items())
        else:
            for metric in scores:
                if metric not in ("rows", "evaluations", "seconds"):
                    yield Point("theorems", method, metric, None, scores[metric])


def _of_fit(task: Task, method: str, scores: dict[str, float], scale: str) -> Iterator[Point]:
    """A fit may stand in several tables and figures."""

    def everywhere(experiment: str, name: str, at: float | None, metrics: Iterable[str]) -> Iterator[Point]:
        yield from (Point(experiment, name, metric, at, scores[metric]) for metric in metrics if metric in scores)

    plan = grid(task.data, quick=scale == "quick")
    first = task.setting == plan.settings[0]
    every = (*OF_VALUES, "rank_accuracy")
    shown = method.replace("cortx-paper-random", "random").replace("cortx-paper-farthest", "farthest")
    if shown in ABLATION:
        yield from everywhere("ablation", shown, task.at, every)
        return
    if method == "l2x":
        yield from everywhere("l2x", method, None, ("rank_accuracy", "faithfulness"))
        return
    if task.method in ("cortx-budget", "fastshap-strong"):
        yield from everywhere("evaluations", "cortx" if task.method == "cortx-budget" else method, task.at, every)
        if task.method == "fastshap-strong" and task.at == max(SCALES[scale].budgets):
            yield from everywhere("labels", method, None, every)
            yield from everywhere("throughput", method, None, ("l2", "rank_accuracy"))
        return
    yield from everywhere("labels", method, task.at, every)
    if task.at in (SHARE, None):
        yield from everywhere("throughput", method, None, ("l2", "rank_accuracy"))
        if plan.l2x and first and method.startswith("cortx"):
            yield from everywhere("l2x", method, None, ("rank_accuracy", "faithfulness"))
        if plan.permutations and first and method in ONE_PASS:
            yield from everywhere("permutations", method, None, ("l2", "squared_l2"))
    if method.startswith("cortx-paper-") and plan.ablation and first:
        yield from everywhere("ablation", f"compact-{method.rpartition('-')[2]}", task.at, every)


# Handing them out ------------------------------------------------------------------------------------------------


def write_results(records: Sequence[dict[str, Any]], data: str, out: str | Path, *, quick: bool = False) -> list[Path]:
    """JSON, Markdown tables and figures of a study."""
    from cortx.paper import figures, tables

    out = Path(out)
    found = [write_json(out / f"{data}.json", list(records))]
    found.append(write_text(out / f"{data}.md", tables.render(records, data, quick=quick)))
    return [*found, *figures.draw_all(records, out)]
