"""Models that a student hardly learns: what it teaches, against labels from the model at equal evaluations.

    python -m benchmarks.poor_student

Three models of ten columns: waves (sines of three directions that turn about once from row to row), the nearest
neighbour of a row in scikit-learn's diabetes table, and noise (a sine so fast that neighbouring rows have nothing in
common). "labels alone" is the same recipe without a student. Besides, what rough labels earn where labels are counted:
300 exact labels, with and without them. The quick recipe; rows that no fit saw, exact values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import cortx
from benchmarks.records import over_seeds, write
from cortx.training.recipe import Recipe, get_recipe

Array = npt.NDArray[np.float64]
SEEDS, BUDGET, N_LABELS, ROWS, HELD = (0, 1), 300_000, 300, 6_000, 100


class Problem(NamedTuple):
    """A model of tables, and its rows; the last ones are explained."""

    setting: str
    model: Callable[[Any], Array]
    rows: Array

    @property
    def game(self) -> cortx.Game:
        return cortx.Game(self.model, reference=self.rows[:-HELD].mean(axis=0), output="raw")


def waves(setting: str, speed: float) -> Problem:
    generator = np.random.default_rng(10)
    rows = generator.normal(size=(ROWS, 10))
    weights = generator.normal(size=(10, 3)) * speed
    return Problem(setting, lambda x: np.asarray(np.sin(np.asarray(x) @ weights).sum(axis=1)), rows)


def neighbour() -> Problem:
    from sklearn.datasets import load_diabetes
    from sklearn.neighbors import KNeighborsRegressor

    rows, target = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    rows = (rows / rows.std(axis=0))[order]
    model = KNeighborsRegressor(1).fit(rows, target[order])
    return Problem("nearest neighbour, diabetes", model.predict, rows)


def smooth() -> Problem:
    generator = np.random.default_rng(12)
    rows = generator.normal(size=(ROWS, 12))
    hidden, out = generator.normal(size=(12, 16)) * 0.5, generator.normal(size=16)
    return Problem("a small network, 12 columns", lambda x: np.asarray(np.tanh(np.asarray(x) @ hidden) @ out), rows)


def scores(problem: Problem, recipe: Recipe, seed: int, **spending: int) -> dict[str, float]:
    """Of one fit: errors as shares of the values' mean norm, and evaluations."""
    game, train, test = problem.game, problem.rows[:-HELD], problem.rows[-HELD:]
    truth = cortx.shapley(game, test, "exact", views=0, progress=False).values
    size, game.evaluations = np.linalg.norm(truth, axis=1).mean(), 0
    explainer = cortx.CoRTX(recipe, seed=seed).fit(game, train, progress=False, **spending)
    found = {"evaluations": float(game.evaluations)}
    bounded = "budget" in spending
    shown = explainer.explain(test, confidence=0.9 if bounded else None)
    error = np.linalg.norm(shown.values - truth, axis=1)
    even = np.linalg.norm(truth - truth.mean(axis=1, keepdims=True), axis=1)
    found |= {"relative l2": float(error.mean() / size), "relative l2 of even shares": float(even.mean() / size)}
    if bounded:
        assert shown.error_bound is not None
        found["coverage of 90% bounds"] = float((error <= shown.error_bound).mean())
        found["median bound / mean norm"] = float(np.median(shown.error_bound) / size)
    if "student" in explainer.costs_:
        found["unexplained by the student"] = float(explainer.costs_["student"]["unexplained"])
    return found


def measure(problem: Problem, method: str, recipe: Recipe, **spending: int) -> list[dict[str, Any]]:
    found = [scores(problem, recipe, seed, **spending) for seed in SEEDS]
    print(
        problem.setting,
        method,
        {name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]},
        flush=True,
    )
    evaluations = float(np.mean([one.pop("evaluations") for one in found]))
    return over_seeds("poor student", problem.setting, method, found, seeds=SEEDS, evaluations=evaluations, **spending)


def main() -> None:
    quick = get_recipe("quick")
    alone = replace(quick, student=None)
    records: list[dict[str, Any]] = []
    for problem in (waves("waves", 2.0), neighbour(), waves("noise", 1e6)):
        records += measure(problem, "student", quick, budget=BUDGET)
        records += measure(problem, "labels alone", alone, budget=BUDGET)
        write("poor_student", records)
    without = replace(quick, pretrain=replace(quick.pretrain, rough_pairs=0))
    for problem in (smooth(), neighbour()):
        records += measure(problem, "counted labels, rough ones too", quick, n_labels=N_LABELS)
        records += measure(problem, "counted labels alone", without, n_labels=N_LABELS)
    write("poor_student", records)


if __name__ == "__main__":
    main()
