"""What a fit with a budget reaches: error, bounds, evaluations and time; and what each part of the method earns.

    CORTX_DATA=... python -m benchmarks.taught truth --problem census-mean --out FOLDER [--device cuda]
    CORTX_DATA=... python -m benchmarks.taught run --problem census-mean --budget 65000 --seed 0 --out FOLDER
    python -m benchmarks.taught jobs [--group census bankruptcy thorough fastshap ablation unseen coverage]
    python -m benchmarks.taught collect FOLDER

One run is one fit in a process of its own, on one thread, and leaves one small JSON file in FOLDER/parts. `truth` makes
the true values of a problem's test rows once, and keeps them in FOLDER; a run makes them if they are not there. `jobs`
prints the arguments of all runs, a line each: ``... jobs | xargs -P 16 -L 1 python -m benchmarks.taught run --out
FOLDER``. `collect` writes all parts into benchmarks/results/taught.json, in place of the records of the same fits, and
makes the tables of docs/results.md. ``--tiny`` tries it all in seconds.

Everything is scored on all test rows. True values are exact (Census, the boosted trees, the classes, the Gaussian
process), or sampled, with their relative standard error beside them; they are nobody's cost. Coverage of the 90% bounds
is the mean over 100 calibrations: as many rows as calibrated the fit are drawn from 1,200 test rows whose labels are
like those of the fit, a few values v(S) corrected by its student, and all other test rows are judged by their true
values. Fits to Census with the mean reference are refined too, with their student and without (`benchmarks.refined`).
Seconds stand beside the rate at which the same thread multiplied matrices, so that other machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import cortx
from benchmarks import unseen
from benchmarks.coverage import CONFIDENCE, SPLITS, hours, occupation, pool_by_student, pool_of, study
from benchmarks.records import RESULTS, hardware, record, versions, write
from benchmarks.refined import student_scores, unbiased_scores
from benchmarks.speed import gemm_rate
from benchmarks.taught_tables import render
from cortx import metrics
from cortx.explanation import take_rows
from cortx.paper import tables
from cortx.paper.grid import AUTHORS, LOG_ODDS, WORDS
from cortx.paper.problems import make_problem, relative_error
from cortx.paper.records import write_json
from cortx.rivals.fastshap import FastSHAP, StrongSettings
from cortx.training.recipe import Recipe, get_recipe

Array = npt.NDArray[np.float64]
DOCS = Path(__file__).parents[1] / "docs"
LABELLED = 1_200
"""Test rows from which those that calibrate are drawn."""
REFINED = {"census-mean": 1_000}
"""Test rows that are refined with the fit's student and without, where true values are exact."""
REPEATS = {("census-mean", 65_000): 1_000}
"""Repeats of the unbiased mode."""
HELD = 2_000
"""Test rows of the boosted trees and of the classes."""
TINY_ROWS = {"train_rows": 1_500, "test_rows": 150}


@dataclass(frozen=True, eq=False)
class Problem:
    """A game with rows to learn from and rows to explain; truth: (test rows, players, outputs)."""

    setting: str
    game: cortx.Game
    train: Any
    test: Any
    truth: Array
    truth_error: float
    """The mean standard error of the truth over its mean norm, at most: those of few draws are made larger."""


@dataclass(frozen=True)
class Place:
    """Where truths and parts lie, on what the model is evaluated and the networks are trained, and how much is done."""

    folder: Path
    device: str = "cpu"
    tiny: bool = False


# Problems --------------------------------------------------------------------------------------------------------


def _of_paper(data: str, setting: str, words: str, place: Place) -> Problem:
    rows = TINY_ROWS if place.tiny else {}
    found = make_problem(data, setting, place.folder, device=place.device, **rows)  # type: ignore[arg-type]

    def truth() -> tuple[Array, float]:
        labels = found.labels("test")
        known = labels.errors is not None and np.isfinite(labels.errors).all()
        return labels.values, relative_error(labels) if known else 0.0

    values, error = _kept(place, f"{data}-{found.key}", found.game, found.x_test, truth)
    return Problem(words, found.game, found.x_train, found.x_test, values, error)


def _of_unseen(name: str, place: Place) -> Problem:
    made = unseen.TABLES[name]()
    if place.tiny:
        made = replace(made, test=take_rows(made.test, np.arange(20)))
    tiny = "-tiny" if place.tiny else ""
    values, error = _kept(place, f"{name}{tiny}", made.game, made.test, lambda: made.truth(16 if place.tiny else 1))
    words = f"{unseen.WHAT[name]}, {made.game.n_players} columns"
    return Problem(words, made.game, made.train, made.test, values[..., None], error)


def _of_tables(make: Callable[[], tuple[cortx.Game, Any]], words: str, name: str, place: Place) -> Problem:
    game, rows = make()
    order = np.random.default_rng(0).permutation(len(rows))
    n_held = 150 if place.tiny else HELD
    test, train = (rows.iloc[index].reset_index(drop=True) for index in (order[:n_held], order[n_held:]))
    if place.tiny:
        train = train.iloc[:1_500]

    def truth() -> tuple[Array, float]:
        spent = game.evaluations
        found = cortx.shapley(game, test, "exact", views=0, progress=False)
        game.evaluations = spent
        return found.values.reshape(len(test), game.n_players, -1), 0.0

    values, error = _kept(place, f"{name}{'-tiny' if place.tiny else ''}", game, test, truth)
    return Problem(words, game, train, test, values, error)


def _kept(
    place: Place, name: str, game: cortx.Game, test: Any, make: Callable[[], tuple[Array, float]]
) -> tuple[Array, float]:
    """The truth of a problem, from its file or made now: a model that was trained elsewhere may be another one."""
    path = place.folder / f"truth-{name}.npz"
    outputs = game.outputs_of(game.rows(test).table)
    kept = dict(np.load(path, allow_pickle=False)) if path.exists() else {}
    if "outputs" not in kept or not np.allclose(kept["outputs"], outputs, rtol=1e-3, atol=1e-4 * np.abs(outputs).max()):
        values, error = make()
        kept = {"values": values, "error": np.array(error), "outputs": outputs}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.npz")
        np.savez(temporary, **kept)
        temporary.replace(path)
    return kept["values"], float(kept["error"])


ZERO = "Census, sigmoid output, zero reference"
MEAN = "Census, linear output, mean reference"
RATIOS = "Bankruptcy, log-odds, mean reference"
TREES = "hours per week, boosted trees as a black box"
CLASSES = "kind of work, four classes"
PROBLEMS: dict[str, Callable[[Place], Problem]] = {
    "census-zero": lambda place: _of_paper("census", AUTHORS, ZERO, place),
    "census-mean": lambda place: _of_paper("census", WORDS, MEAN, place),
    "bankruptcy": lambda place: _of_paper("bankruptcy", LOG_ODDS, RATIOS, place),
    **{name: partial(_of_unseen, name) for name in unseen.TABLES},
    "hours": lambda place: _of_tables(partial(hours, black_box=True), TREES, "hours", place),
    "occupation": lambda place: _of_tables(occupation, CLASSES, "occupation", place),
}


# Methods ---------------------------------------------------------------------------------------------------------


def _without_student(recipe: Recipe) -> Recipe:
    return replace(recipe, student=None)


def _without_made_up(recipe: Recipe) -> Recipe:
    assert recipe.student is not None
    return replace(recipe, student=replace(recipe.student, label_asks=1))  # the rows of the table, and no more


def _without_trees(recipe: Recipe) -> Recipe:
    assert recipe.student is not None
    return replace(recipe, student=replace(recipe.student, trees=False))


def _without_contrast(recipe: Recipe) -> Recipe:
    return replace(recipe, pretrain=replace(recipe.pretrain, steps=0))


RECIPES: dict[str, Callable[[], Recipe]] = {
    "default": lambda: get_recipe("default"),
    "quick": lambda: get_recipe("quick"),
    "thorough": lambda: get_recipe("thorough"),
    "no-student": lambda: _without_student(get_recipe("quick")),
    "no-made-up-rows": lambda: _without_made_up(get_recipe("default")),  # a quick fit has hardly any
    "no-boosted-trees": lambda: _without_trees(get_recipe("quick")),
    "no-pre-training": lambda: _without_contrast(get_recipe("quick")),
}
RIVAL = "fastshap-strong"


def shortened(recipe: Recipe) -> Recipe:
    """The same recipe with next to no training, to try the script."""
    student = recipe.student
    if student is not None:
        asks = min(student.label_asks, 20_000)
        student = replace(student, steps=60, label_rows=2_000, label_asks=asks, width=32)
    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, steps=min(recipe.pretrain.steps, 5)),
        attribution=replace(recipe.attribution, steps=60),
        student=student,
    )


# One run ---------------------------------------------------------------------------------------------------------


def run(name: str, method: str, budget: int, seed: int, place: Place) -> dict[str, Any]:
    """Fits, scores, and writes the part."""
    torch.set_num_threads(1)
    problem = PROBLEMS[name](place)
    resident = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the fit, not of making the truth
    clock, work, spent = perf_counter(), process_time(), problem.game.evaluations
    if method == RIVAL:
        explain, facts = _rival(problem, budget, seed, place)
    else:
        explain, facts = _fit(problem, name, method, budget, seed, place)
    scores = {
        "seconds": perf_counter() - clock,
        "processor seconds": process_time() - work,
        "MiB above those before the fit": _memory("VmHWM") - resident,
        "billion operations a second of matrix products": gemm_rate() / 1e9,
    }
    facts["evaluations"] = problem.game.evaluations - spent
    assert facts["evaluations"] <= budget
    scores |= explain()
    part = {
        "problem": name, "setting": problem.setting, "method": method, "budget": budget, "seed": seed,
        "scores": scores, "hardware": hardware(place.device), "versions": versions(), "device": place.device,
        "tiny": place.tiny,
        "test_rows": len(problem.truth), "truth_error": problem.truth_error, **facts,
    }  # fmt: skip
    write_json(place.folder / "parts" / f"{name}-{method}-{budget}-{seed}-{place.device}.json", part)
    shown = {metric: round(value, 6) for metric, value in scores.items() if len(metric) < 40}
    print(f"{name}, {method}, {budget:,}, seed {seed}: {facts['evaluations']:,} evaluations, {shown}", flush=True)
    return part


def _rival(problem: Problem, budget: int, seed: int, place: Place) -> tuple[Callable[[], dict[str, float]], Any]:
    settings = StrongSettings(steps=30, noisy_steps=30) if place.tiny else StrongSettings()
    rival = FastSHAP("strong", settings=settings, seed=seed, device=place.device)
    rival.fit(problem.game, problem.train, budget, progress=False)
    return lambda: closeness(rival.explain(problem.test).values, problem.truth), {}


def _fit(
    problem: Problem, name: str, method: str, budget: int, seed: int, place: Place
) -> tuple[Callable[[], dict[str, float]], dict[str, Any]]:
    recipe = RECIPES[method]()
    recipe = shortened(recipe) if place.tiny else recipe
    explainer = cortx.CoRTX(recipe, unseen="ignore", seed=seed, device=place.device)
    explainer.fit(problem.game, problem.train, budget=budget, progress=False)
    costs = explainer.costs_
    stages = {stage: part for stage, part in costs.items() if isinstance(part, dict)}
    facts = {
        "evaluations_by_stage": {stage: part["evaluations"] for stage, part in stages.items()},
        "seconds_by_stage": {stage: part["seconds"] for stage, part in stages.items()},
    }

    def scores() -> dict[str, float]:
        shown = explainer.explain(problem.test, confidence=CONFIDENCE)
        found = closeness(shown.values, problem.truth)
        error = np.linalg.norm(problem.truth - shown.values.reshape(problem.truth.shape), axis=1)
        found["coverage of the fit's own calibration, rows"] = float(
            (error <= shown.error_bound.reshape(error.shape)).mean()
        )
        inside = (problem.truth >= shown.lower_bounds.reshape(problem.truth.shape) - 1e-12) & (
            problem.truth <= shown.upper_bounds.reshape(problem.truth.shape) + 1e-12
        )
        found["coverage of the fit's own calibration, bands"] = float(inside.all(axis=1).mean())
        if "unexplained" in costs.get("student", {}):  # that of trees is exact
            found["unexplained by the student"] = float(costs["student"]["unexplained"])
        return found | _bounds(explainer, problem, budget) | _refined(explainer, problem, name, budget, place)

    return scores, facts


def _bounds(explainer: cortx.CoRTX, problem: Problem, budget: int) -> dict[str, float]:
    """Coverage over re-drawn calibrations, and how far off the student's own Shapley values are on the same rows.

    Where the fit has no student, true values calibrate.
    """
    plan = explainer.plan(problem.game, problem.train, budget)
    count = len(problem.truth)
    labelled, rows = min(LABELLED, count), min(explainer.costs_["calibration"].get("rows", LABELLED), count // 2)
    if explainer.fitted.student is None:
        pool = pool_of(explainer, _as_labels(problem))
        return {f"{SPLITS} splits: {metric}": value for metric, value in study(pool, rows).items()}
    pool = pool_by_student(explainer, problem.test, problem.truth, labelled, plan.precise.values - 1)
    found = {f"{SPLITS} splits: {metric}": value for metric, value in study(pool, rows).items()}
    if pool.known is not None:
        learned, truth = pool.predicted[:labelled] + pool.known, problem.truth[:labelled]
        of_student = closeness(learned, truth)
        found |= {f"the student's own values: {metric}": of_student[metric] for metric in ("l2", "relative l2")}
    return found | {"calibration rows": float(rows), "values of a calibration row": float(plan.precise.values - 1)}


def _refined(explainer: cortx.CoRTX, problem: Problem, name: str, budget: int, place: Place) -> dict[str, float]:
    """What the student is worth in refinement, and whether the unbiased mode is unbiased."""
    if name not in REFINED:
        return {}
    labels = _as_labels(problem)[: 20 if place.tiny else REFINED[name]]
    repeats = min(REPEATS.get((name, budget), 0), 20 if place.tiny else 1_000)
    return student_scores(explainer, labels) | unbiased_scores(explainer, labels, repeats)


def _as_labels(problem: Problem) -> cortx.Explanation:
    game = problem.game
    outputs = game.outputs_of(game.rows(problem.test).table)
    base = np.broadcast_to(game.base_values, outputs.shape)
    return cortx.Explanation(
        problem.truth, base, game.players.names, data=problem.test, outputs=outputs,
        error_std=np.zeros_like(problem.truth),
    )  # fmt: skip


def closeness(values: Array, truth: Array) -> dict[str, float]:
    """Against the true values, (rows, players, outputs); outputs count alike."""
    values = np.asarray(values, dtype=np.float64).reshape(truth.shape)
    error = np.linalg.norm(values - truth, axis=1)
    found = {
        "l2": float(error.mean()),
        "relative l2": float(error.mean() / np.linalg.norm(truth, axis=1).mean()),
        "squared l2": float(np.square(error).mean()),
    }
    if truth.shape[2] == 1:
        found["rank accuracy"] = float(metrics.rank_accuracy(values[..., 0], truth[..., 0]).mean())
    return found


def _memory(which: str) -> float:
    """MiB of memory: in use now ("VmRSS"), or the most since the peak was last reset ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(which)).split()[1]) / 2**10


# All runs --------------------------------------------------------------------------------------------------------

SEEDS = (0, 1, 2)
Job = tuple[str, str, int]
BUDGETS = {
    "census-zero": (20_000, 65_000, 700_000, 2_700_000),
    "census-mean": (20_000, 65_000, 660_000, 2_600_000),
    "bankruptcy": (20_000, 65_000, 100_000, 700_000),
}
MOST = 11_000_000
"""The budget at which the thorough recipe and FastSHAP are compared besides."""
SMALL = 100_000
"""Budgets up to this, at which FastSHAP is run here; `cortx paper` has run it on Census at the larger ones."""
CENSUS = ("census-zero", "census-mean")
GROUPS: dict[str, list[Job]] = {
    "census": [(name, "default", budget) for name in CENSUS for budget in BUDGETS[name]],
    "bankruptcy": [("bankruptcy", "default", budget) for budget in BUDGETS["bankruptcy"]],
    "thorough": [
        *((name, "thorough", budget) for name in CENSUS for budget in (*BUDGETS[name][1:], MOST)),
        ("bankruptcy", "thorough", 700_000),
    ],
    "fastshap": [
        *((name, RIVAL, budget) for name in CENSUS for budget in BUDGETS[name] if budget <= SMALL),
        *(("bankruptcy", RIVAL, budget) for budget in (100_000, 700_000)),  # of a target that is trained anew
    ],
    "ablation": [
        *(("census-mean", method, 65_000) for method in ("no-student", "no-made-up-rows", "no-pre-training", "quick")),
        *(("hours", method, 65_000) for method in ("no-boosted-trees", "quick")),
    ],
    "unseen": [(name, "default", budget) for budget in (100_000, 700_000) for name in unseen.TABLES],
    "coverage": [(name, "quick", budget) for budget in (20_000, 65_000, 700_000) for name in ("hours", "occupation")],
}


def jobs(groups: Sequence[str], seeds: Sequence[int] = SEEDS) -> list[str]:
    """Arguments of `run`, the longest first."""
    found = sorted({job for group in groups for job in GROUPS[group]}, key=lambda job: -job[2])
    return [
        f"--problem {name} --method {method} --budget {budget} --seed {seed}"
        for name, method, budget in found
        for seed in seeds
    ]


def collect(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of all parts: means over the seeds of each problem, method and budget."""
    order = {name: place for place, name in enumerate(PROBLEMS)}
    fits: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for part in sorted(parts, key=lambda part: (order[part["problem"]], part["method"], part["budget"], part["seed"])):
        fits.setdefault((part["problem"], part["method"], part["budget"]), []).append(part)
    records = []
    for (name, method, budget), found in fits.items():
        seeds = [part["seed"] for part in found]
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{name}, {method}, {budget:,} was run twice with the same seed: {seeds}")
        facts = {
            key: found[0][key] for key in ("problem", "budget", "hardware", "versions", "test_rows", "truth_error")
        }
        for kind in ("evaluations_by_stage", "seconds_by_stage"):
            if kind in found[0]:
                facts[kind] = {
                    stage: round(float(np.mean([part[kind].get(stage, 0) for part in found])), 3)
                    for stage in found[0][kind]
                }
        records += [
            record(
                "taught", found[0]["setting"], method, metric, [part["scores"][metric] for part in found], seeds=seeds,
                evaluations=float(np.mean([part["evaluations"] for part in found])),
                seconds=float(np.mean([part["scores"]["seconds"] for part in found])), **facts,
            )
            for metric in found[0]["scores"]
            if all(metric in part["scores"] for part in found)
        ]  # fmt: skip
    return records


def in_place(records: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`records` and those of `kept` that are of other fits, in the order of problems, methods and budgets.

    Records of problems that are there no more are left out.
    """
    order = {name: place for place, name in enumerate(PROBLEMS)}

    def fit(record: dict[str, Any]) -> Job:
        return record["problem"], record["method"], record["budget"]

    new = {fit(record) for record in records}
    both = [*records, *(record for record in kept if fit(record) not in new and record["problem"] in order)]
    return sorted(both, key=lambda record: (order[record["problem"]], *fit(record)[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("truth", "make the true values of a problem"), ("run", "one fit")):
        command = commands.add_parser(name, help=what)
        command.add_argument("--problem", choices=PROBLEMS, required=True)
        command.add_argument("--out", type=Path, required=True, help="the folder of truths and parts")
        command.add_argument("--device", default="cpu")
        command.add_argument("--tiny", action="store_true", help="few rows, next to no training")
        if name == "run":
            command.add_argument("--method", choices=[*RECIPES, RIVAL], default="default")
            command.add_argument("--budget", type=int, required=True)
            command.add_argument("--seed", type=int, default=0)
    command = commands.add_parser("jobs", help="print the arguments of all runs")
    command.add_argument("--group", nargs="+", choices=GROUPS, default=list(GROUPS))
    command.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    command = commands.add_parser("collect", help="make the records of all parts")
    command.add_argument("folder", type=Path)
    command.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.command == "jobs":
        print("\n".join(jobs(given.group, given.seeds)))
    elif given.command == "collect":
        parts = [json.loads(path.read_text()) for path in sorted((given.folder / "parts").glob("*.json"))]
        if any(part.get("tiny") for part in parts) and given.out == RESULTS:
            raise SystemExit("these are parts of --tiny runs, which are no results; collect them with --out FOLDER")
        parts = [part for part in parts if part["problem"] in PROBLEMS]
        path = given.out / "taught.json"
        records = in_place(collect(parts), json.loads(path.read_text()) if path.exists() else [])
        write("taught", records, given.out)
        if given.out == RESULTS:
            tables.update(DOCS / "results.md", "taught", render(records))
    else:
        place = Place(given.out, given.device, given.tiny)
        if given.command == "truth":
            made = PROBLEMS[given.problem](place)
            print(f"{given.problem}: {len(made.truth):,} rows, relative standard error {made.truth_error:.2g}")
        else:
            run(given.problem, given.method, given.budget, given.seed, place)


if __name__ == "__main__":
    main()
