"""The paper's tabular study: which tasks it has, how each is done, and how their results become records.

A task is one fit, or one measurement, with one seed. Its result is one JSON file in the folder of the study, so a
killed study goes on where it was, and tasks of several runs, or machines, can be put together.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from cortx.errors import BudgetError
from cortx.estimators.shapley import shapley
from cortx.explainer.explainer import CoRTX
from cortx.explanation import Explanation
from cortx.metrics import faithfulness, throughput
from cortx.paper import permutations, theorems
from cortx.paper.grid import LABELLED, PEERS, SAMPLING, UNLABELLED, Grid, grid
from cortx.paper.problems import Problem, closeness, make_problem, relative_error
from cortx.paper.records import hardware, versions, write_json
from cortx.rivals.fastshap import FastSHAP, PublishedSettings, StrongSettings
from cortx.rivals.l2x import L2X, L2XSettings
from cortx.rivals.sampled import Sampled
from cortx.rivals.supervised import SupervisedRTX
from cortx.seeding import numpy_generator, stream_seed
from cortx.training.recipe import Recipe, get_recipe, paper_recipe

Scores = dict[str, dict[str, float]]
"""Method -> metric -> value."""
SHARE = 0.25
"""Of the labels, where the paper reports one share: fig:intep_time, tab:l2xcomp, tab:exp_ps2."""


@dataclass(frozen=True)
class Scale:
    """How much of the study is done."""

    name: str
    seeds: tuple[int, ...] = (0, 1, 2)
    train_rows: int | None = None
    test_rows: int | None = None
    sampled_rows: int = 2_000
    """Test rows that sampling methods explain."""
    timed_rows: int = 10
    """Test rows that every method of tab:exp_ps2 explains in turn."""
    theorem_rows: int = 1_000
    budgets: tuple[int, ...] = (700_000, 2_700_000, 11_000_000)
    """Model evaluations, everything included, at which methods are compared besides."""
    shorter: int = 1
    """Steps of every training are divided by this."""


FULL = Scale("full")
QUICK = Scale(
    "quick",
    seeds=(0,),
    train_rows=2_000,
    test_rows=500,
    sampled_rows=200,
    timed_rows=3,
    theorem_rows=200,
    budgets=(250_000,),
    shorter=12,
)


@dataclass(frozen=True)
class Task:
    """One unit of work. `at` is a share of labels, a total budget, or evaluations per row."""

    kind: str
    data: str
    setting: str
    method: str
    at: float | None
    seed: int

    def path(self, context: Context, problem: Problem) -> Path:
        """Where its result is kept: by scale, problem, settings, and, for times, the kind of device."""
        at = "" if self.at is None else f"-{self.at:g}"
        where = f"-{torch.device(context.device).type}" if self.kind in TIMED else f"-{_settings_key(self, context)}"
        folder = context.folder / "results" / context.scale.name / f"{self.data}-{problem.key}"
        return folder / f"{self.kind}-{self.method}{at}-{self.seed}{where}.json"


def tasks(data: str, *, quick: bool = False) -> list[Task]:
    """All tasks of a data set, the longest first; those that measure time come last."""
    plan, scale = grid(data, quick=quick), QUICK if quick else FULL
    found = [Task(*about, seed) for setting in plan.settings for about in _about(data, setting, plan, scale)
             for seed in scale.seeds]  # fmt: skip
    return sorted(found, key=lambda task: task.kind in TIMED)


def _about(data: str, setting: str, plan: Grid, scale: Scale) -> Iterator[tuple[str, str, str, str, float | None]]:
    first = setting == plan.settings[0]
    for budget in reversed(scale.budgets):
        yield "fit", data, setting, "cortx-budget", budget
        yield "fit", data, setting, "fastshap-strong", budget
    yield "fit", data, setting, "fastshap", None
    if first:
        yield "fit", data, setting, "fastshap-unnormalized", None
    for share in sorted(plan.shares[setting], reverse=True):
        for method in ("cortx", "supervised-strong", "cortx-paper", "supervised-mse", "supervised-ce"):
            yield "fit", data, setting, method, share
        if first and share in plan.ablation:
            yield "fit", data, setting, "cortx-paper-random", share
            yield "fit", data, setting, "cortx-paper-farthest", share
    if plan.l2x and first:
        yield "fit", data, setting, "l2x", None
    if data != "census":
        yield "noise", data, setting, "labels", None
    if plan.theorems:
        yield "theorems", data, setting, "theorems", SHARE
    for method, budgets in (("kernel", plan.kernel), ("permutation", plan.permutation)):
        for budget in budgets:
            yield "sampling", data, setting, method, budget
    yield "throughput", data, setting, "throughput", None
    if plan.permutations and first:
        yield "permutations", data, setting, "permutations", None


# Doing a task ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """Where and how tasks are done."""

    folder: Path
    scale: Scale
    device: str = "cpu"
    threads: int = 1


@lru_cache(maxsize=4)
def problem_of(data: str, setting: str, context: Context) -> Problem:
    scale = context.scale
    return make_problem(
        data, setting, context.folder, train_rows=scale.train_rows, test_rows=scale.test_rows, device=context.device
    )


def do(task: Task, context: Context) -> dict[str, Any]:
    """The result of a task, from its file or by doing it."""
    torch.set_num_threads(context.threads)
    problem = problem_of(task.data, task.setting, context)
    path = task.path(context, problem)
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text())
        return kept
    started = perf_counter()
    result = KINDS[task.kind](task, problem, context)
    result = {
        "task": asdict(task),
        "scale": context.scale.name,
        "seconds": perf_counter() - started,
        "hardware": hardware(context.device),
        "versions": versions(),
        "device": torch.device(context.device).type,
        "target": dict(problem.target),
    } | result
    write_json(path, result)
    return result


def scored(problem: Problem, explanation: Explanation, ranking_only: bool = False) -> dict[str, float]:
    """Against the labels of all test rows; a ranking head's answer counts where there is one."""
    scores = closeness(explanation, problem.truth)
    if ranking_only:
        return {"rank_accuracy": scores["rank_accuracy"]}
    return scores | {"faithfulness": float(faithfulness(explanation.values, problem.drops).mean())}


def _fit(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    started = perf_counter()
    explain, evaluations = FITS[task.method](task, problem, context)
    seconds = perf_counter() - started
    spent = problem.game.evaluations
    explanation = explain(problem.x_test)
    problem.game.evaluations = spent
    name = task.method
    if explanation.predicted_ranking is None:
        scores = {name: scored(problem, explanation)}
    else:
        by_value = replace(explanation, predicted_ranking=None)
        ranked = scored(problem, explanation, ranking_only=True)
        both = {f"{name}-ce": ranked, f"{name}-mse": scored(problem, by_value)}
        scores = {name: ranked} if name == "supervised-ce" else both
    return {"scores": scores, "evaluations": evaluations, "seconds": seconds}


Fitting = tuple[Callable[..., Explanation], int]
"""What explains, and what it cost: labels, pre-training and all."""


def _shorter(recipe: Recipe, by: int) -> Recipe:
    def fewer(steps: int) -> int:
        return -(-steps // by)

    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, steps=fewer(recipe.pretrain.steps)),
        attribution=replace(recipe.attribution, steps=fewer(recipe.attribution.steps)),
        ranking=replace(recipe.ranking, steps=fewer(recipe.ranking.steps)),
    )


def _settings_key(task: Task, context: Context) -> str:
    """A hash of everything that a fit is told: with other settings it is another result."""
    told: Any
    if task.method.startswith("supervised"):
        told = supervised(task, context).explainer.resolved_recipe().to_json()
    elif task.method.startswith("fastshap"):
        told = asdict(fastshap(task, context).settings)
    elif task.method == "l2x":
        told = asdict(l2x(task, context).settings)
    elif task.method in ("cortx", "cortx-budget"):
        told = _shorter(get_recipe("default"), context.scale.shorter).to_json()
    else:
        told = _shorter(paper_recipe_of(task.data), context.scale.shorter).to_json()
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]


def _explainer(task: Task, context: Context, recipe: Recipe, heads: tuple[str, ...] = ("attribution",)) -> CoRTX:
    recipe = _shorter(recipe, context.scale.shorter)
    return CoRTX(recipe, heads=heads, unseen="ignore", seed=task.seed, device=context.device)


def _given(task: Task, problem: Problem) -> tuple[Any, Any, int]:
    """Labelled rows of the task's share, their values, and what they cost."""
    assert task.at is not None
    index = problem.chosen(task.at, task.seed)
    labels = problem.labels("train", index)
    return index, labels, labels.evaluations


def _cortx(task: Task, problem: Problem, context: Context) -> Fitting:
    """The default recipe. Exact labels come with free masked copies, so they are made here."""
    game = problem.game
    assert task.at is not None
    if problem.data == "census":
        rows = problem.x_train[problem.chosen(task.at, task.seed)]
        labels = shapley(game, rows, "exact", seed=task.seed, progress=False)
    else:
        _, known, cost = _given(task, problem)
        labels = Explanation(
            known.values[..., 0], np.repeat(game.base_values, len(known)), game.players.names, data=known.data,
            error_std=known.errors[..., 0], outputs=known.outputs[:, 0], evaluations=cost, method=known.source,
        )  # fmt: skip
    explainer = _explainer(task, context, get_recipe("default"))
    explainer.fit(game, problem.x_train, labels=labels, progress=False)
    return explainer.explain, explainer.costs_["total_evaluations"]


def _cortx_budget(task: Task, problem: Problem, context: Context) -> Fitting:
    assert task.at is not None
    explainer = _explainer(task, context, get_recipe("default"))
    explainer.fit(problem.game, problem.x_train, budget=int(task.at), progress=False)
    return explainer.explain, explainer.costs_["total_evaluations"]


def paper_recipe_of(data: str) -> Recipe:
    """tab:hyper_setting: what differs for Bankruptcy is the encoder's depth, the positives and the temperature."""
    recipe = paper_recipe()
    if data == "census":
        return recipe
    return replace(
        recipe,
        encoder=replace(recipe.encoder, depth=6),
        pretrain=replace(recipe.pretrain, n_positives=300, temperature=0.03),
    )


def _paper(task: Task, problem: Problem, context: Context) -> Fitting:
    explainer, cost = paper_explainer(task, problem, context)
    return explainer.explain, cost


def paper_explainer(task: Task, problem: Problem, context: Context) -> tuple[CoRTX, int]:
    """The paper's recipe with both heads, the positives by the name of the task."""
    index, labels, cost = _given(task, problem)
    heads = ("attribution",) if task.method.endswith("-mse") else ("attribution", "ranking")
    explainer = _explainer(task, context, paper_recipe_of(problem.data), heads)
    how = task.method.rpartition("-")[2]
    explainer.positives = how if how in ("random", "farthest") else "compact"  # type: ignore[assignment]
    explainer.fit(problem.game, problem.x_train, labels=(index, labels.values[..., 0]), progress=False)
    return explainer, explainer.costs_["total_evaluations"] + cost


def supervised(task: Task, context: Context) -> SupervisedRTX:
    form = "strong" if task.method == "supervised-strong" else "paper"
    loss = "ce" if task.method == "supervised-ce" else "mse"
    rival = SupervisedRTX(form, loss=loss, seed=task.seed, device=context.device)  # type: ignore[arg-type]
    rival.explainer.recipe = _shorter(rival.explainer.resolved_recipe(), context.scale.shorter)
    return rival


def _supervised(task: Task, problem: Problem, context: Context) -> Fitting:
    index, labels, cost = _given(task, problem)
    rival = supervised(task, context)
    rival.fit(problem.game, problem.x_train, labels=(index, labels.values[..., 0]), progress=False)
    return rival.explain, rival.costs_["total_evaluations"] + cost


def fastshap(task: Task, context: Context) -> FastSHAP:
    shorter = context.scale.shorter
    strong = task.method == "fastshap-strong"
    settings: Any = StrongSettings() if strong else PublishedSettings()
    if strong:
        steps, noisy = (-(-count // shorter) for count in (settings.steps, settings.noisy_steps))
        settings = replace(settings, steps=steps, noisy_steps=noisy)
    else:
        settings = replace(
            settings, epochs=max(1, settings.epochs // (5 * shorter) if shorter > 1 else settings.epochs)
        )
    return FastSHAP(
        "strong" if strong else "published", normalization=task.method != "fastshap-unnormalized", settings=settings,
        seed=task.seed, device=context.device,
    )  # fmt: skip


def _fastshap(task: Task, problem: Problem, context: Context) -> Fitting:
    rival = fastshap(task, context)
    rival.fit(problem.game, problem.x_train, None if task.at is None else int(task.at), progress=False)
    return rival.explain, rival.costs_["evaluations"]


def l2x(task: Task, context: Context) -> L2X:
    settings = L2XSettings()
    settings = replace(settings, steps=-(-settings.steps // context.scale.shorter))
    return L2X(settings=settings, seed=task.seed, device=context.device)


def _l2x(task: Task, problem: Problem, context: Context) -> Fitting:
    rival = l2x(task, context)
    rival.fit(problem.game, problem.x_train, progress=False)
    return rival.explain, rival.costs_["evaluations"]


FITS: dict[str, Callable[[Task, Problem, Context], Fitting]] = {
    "cortx": _cortx,
    "cortx-budget": _cortx_budget,
    "cortx-paper": _paper,
    "cortx-paper-mse": _paper,
    "cortx-paper-ce": _paper,
    "cortx-paper-random": _paper,
    "cortx-paper-farthest": _paper,
    "supervised-mse": _supervised,
    "supervised-ce": _supervised,
    "supervised-strong": _supervised,
    "fastshap": _fastshap,
    "fastshap-unnormalized": _fastshap,
    "fastshap-strong": _fastshap,
    "l2x": _l2x,
}


def _some(problem: Problem, count: int) -> Any:
    """Some of the test rows, the same in every task."""
    n = len(problem.x_test)
    return np.arange(n) if count >= n else np.sort(numpy_generator(0, "some").choice(n, count, replace=False))


def _sampling(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    """A sampling estimator on some test rows: its error, and how fast it is."""
    assert task.at is not None
    index = _some(problem, context.scale.sampled_rows)
    # Labels of Bankruptcy come from the same estimator: a rival must not share their draws.
    seed = stream_seed(task.seed, "rival")
    rival = Sampled(problem.game, task.method, row_budget=int(task.at), seed=seed)  # type: ignore[arg-type]
    try:
        rival.explain(problem.x_test[index[:2]])
        shown = rival.explain(problem.x_test[index])
    except BudgetError as error:
        return {"scores": {task.method: {}}, "reason": str(error), "evaluations": None}
    scores = closeness(shown, problem.truth[index]) | {"rows_per_second": len(index) / shown.seconds}
    return {"scores": {task.method: scores}, "evaluations": shown.evaluations / len(index), "seconds": shown.seconds}


def _throughput(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    """Rows per second of the amortized methods; it depends on a network's shape, so each is trained for a moment."""
    short = replace(context, scale=replace(context.scale, shorter=10**6))
    torch.set_num_threads(1)  # many tiny operations
    about = replace(task, kind="fit", at=min(0.05, 500 / len(problem.x_train)))
    explain: dict[str, Callable[..., Explanation]] = {}
    for method in LABELLED:
        explain[method] = FITS[method](replace(about, method=method), problem, short)[0]
    least = 4 * len(problem.x_train) + 50_000
    for method in UNLABELLED:
        explain[method] = FITS[method](replace(about, method=method, at=least), problem, short)[0]
    torch.set_num_threads(context.threads)
    spent = problem.game.evaluations
    rows = np.concatenate([problem.x_test] * max(1, 20_000 // len(problem.x_test)))
    outputs = problem.game.outputs_of(problem.game.rows(rows).table)[:, 0]
    scores: Scores = {}
    for method, one in explain.items():
        # The model's own output is known where explanations are served: it was just predicted.
        scores[method] = {"rows_per_second": throughput(partial(one, outputs=outputs), rows)}
    table = problem.game.rows(rows).table
    model_speed = throughput(lambda _: problem.game.outputs_of(table), rows)
    problem.game.evaluations = spent
    return {"scores": scores, "evaluations": None, "model_rows_per_second": model_speed, "rows": len(rows)}


def _permutations(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    """tab:exp_ps1 and tab:exp_ps2: errors and times of sampling methods, ours and the peers', in one run."""
    plan = grid(task.data, quick=context.scale.name == "quick")
    index = _some(problem, context.scale.sampled_rows // 2)
    methods = (*SAMPLING, *(PEERS if plan.peers else ()))
    found = permutations.run(
        problem.game, problem.x_test[index], problem.truth[index],
        budgets=plan.permutations, methods=methods, seeds=(task.seed,), rows_timed=context.scale.timed_rows,
    )  # fmt: skip
    return {"points": found, "evaluations": None}


def _theorems(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    explainer, cost = paper_explainer(task, problem, context)
    index = _some(problem, context.scale.theorem_rows)
    rows, game = problem.x_test[index], problem.game
    truth = _as_labels(problem, rows, problem.truth[index])
    chosen = problem.chosen(SHARE, task.seed)[: context.scale.theorem_rows]
    known = problem.labels("train", chosen)
    training = _as_labels(problem, problem.x_train[chosen], known.values[..., 0])
    results = [
        theorems.theorem_1(game, rows, values="shapley", seed=task.seed, labels=truth, progress=False),
        theorems.theorem_1(game, rows, values="banzhaf", seed=task.seed, progress=False),
        theorems.theorem_2(explainer, game, rows, training, seed=task.seed, labels=truth, progress=False),
    ]
    return {"scores": {result.method: result.summary() for result in results}, "evaluations": cost}


def _as_labels(problem: Problem, rows: Any, values: Any) -> Explanation:
    game = problem.game
    outputs = game.outputs_of(game.rows(rows).table)[:, 0]
    return Explanation(
        values, np.repeat(game.base_values, len(values)), game.players.names, data=rows, outputs=outputs, method="exact"
    )


def _noise(task: Task, problem: Problem, context: Context) -> dict[str, Any]:
    """How far labels of this precision are from each other: no method can be seen to come closer."""
    labels = problem.labels("test")
    assert labels.errors is not None
    drawn = numpy_generator(task.seed, "label noise").normal(size=labels.errors[..., 0].shape)
    other = problem.truth + np.sqrt(2) * labels.errors[..., 0] * drawn
    scores = closeness(other, problem.truth) | {"relative_standard_error": relative_error(labels)}
    return {"scores": {"labels": scores}, "evaluations": labels.evaluations}


KINDS: dict[str, Callable[[Task, Problem, Context], dict[str, Any]]] = {
    "fit": _fit,
    "sampling": _sampling,
    "throughput": _throughput,
    "permutations": _permutations,
    "theorems": _theorems,
    "noise": _noise,
}
TIMED = ("sampling", "throughput", "permutations")
"""Kinds that measure time: one after another, when nothing else runs."""
