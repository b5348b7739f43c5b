"""Explainers that trees teach: how far they are from exact values.

    python -m benchmarks.tree_teacher

Two tables whose model is trees: labels come from the leaves. A function with steps (a forest's probability, given as
a plain function) and a smooth one: a student learns v(S), and trees teach where they predict it better than a network.
Relative l2 is mean ||error|| / mean ||exact|| over held-out rows; exact values are those of shap's TreeExplainer, or
enumerated.

What an earlier version reaches is measured by the same code: `PYTHONPATH=<its src>:. python -m benchmarks.tree_teacher
--raw before.json --only trees --method "before (78d1d41)"`, then `python -m benchmarks.tree_teacher --join *.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import shap
import xgboost
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.neural_network import MLPRegressor

import cortx
from benchmarks.records import over_seeds, write
from cortx.training.recipe import get_recipe

SEEDS = (0, 1, 2)
BUDGET, SMALL_BUDGET = 700_000, 65_000
HELD_OUT, ENUMERATED = 1_000, 200


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, its game, rows to learn from and held-out rows with their exact values."""

    game: cortx.Game
    rows: np.ndarray
    held_out: np.ndarray
    exact: np.ndarray


def regression(seed: int) -> Problem:
    """Boosted regression trees of scikit-learn on Friedman's function, 12 columns."""
    x, y = make_friedman1(9_000, n_features=12, noise=0.5, random_state=seed)
    rows, held_out = x[:-HELD_OUT], x[-HELD_OUT:]
    model = HistGradientBoostingRegressor(random_state=seed).fit(rows, y[:-HELD_OUT])
    return problem(model, rows, held_out, "raw")


def log_odds(seed: int) -> Problem:
    """Log-odds of XGBoost on 23 columns: normal, heavy-tailed, counts and codes."""
    rng = np.random.default_rng(seed)
    n = 13_000
    normal = rng.normal(size=(n, 10))
    normal[:, 5:] = 0.7 * normal[:, :5] + 0.7 * normal[:, 5:]
    heavy = rng.lognormal(size=(n, 5))
    counts = rng.poisson(2.0, size=(n, 4)).astype(float)
    codes = rng.integers(0, 5, size=(n, 4)).astype(float)
    x = np.concatenate([normal, heavy, counts, codes], axis=1)
    score = (
        normal[:, 0] * normal[:, 1] + np.sin(2 * normal[:, 2]) + np.log(heavy[:, 0]) * (counts[:, 0] > 2)
        + 0.5 * normal[:, 6] * (codes[:, 0] == 3) - 0.3 * counts[:, 1] + np.minimum(heavy[:, 1], 3)
        + 0.4 * codes[:, 1] * (normal[:, 3] > 0.5)
    )  # fmt: skip
    y = rng.random(n) < 1 / (1 + np.exp(1.5 - score))
    rows, held_out = x[:-HELD_OUT], x[-HELD_OUT:]
    model = xgboost.XGBClassifier(n_estimators=200, max_depth=5, learning_rate=0.1, n_jobs=1, random_state=seed)
    return problem(model.fit(rows, y[:-HELD_OUT]), rows, held_out, "log-odds")


def problem(model: Any, rows: np.ndarray, held_out: np.ndarray, output: Any) -> Problem:
    """The mean row is the reference; exact values come from another package."""
    mean = rows.mean(axis=0, keepdims=True)
    peer = shap.TreeExplainer(model, mean, feature_perturbation="interventional")
    game = cortx.Game(model, reference=mean, output=output, target=1 if output == "log-odds" else None, categorical=())
    exact = peer.shap_values(held_out, check_additivity=False)
    return Problem(game, rows, held_out, np.asarray(exact).reshape(len(held_out), -1))


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 12 columns, and a score with products, waves and a step."""
    x = np.random.default_rng(seed).normal(size=(6_000, 12))
    return x, x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] * (x[:, 4] > 0) + 0.5 * x[:, 5]


def probability(seed: int) -> Problem:
    """A forest's probability as a plain function: nobody tells that it is trees."""
    x, score = table(seed)
    rows, held_out = x[:-HELD_OUT], x[-HELD_OUT:]
    noise = 0.3 * np.random.default_rng(seed + 1).normal(size=len(x))
    model = RandomForestClassifier(50, max_depth=8, random_state=seed).fit(rows, (score + noise > 0)[:-HELD_OUT])
    mean = rows.mean(axis=0, keepdims=True)
    peer = shap.TreeExplainer(model, mean, feature_perturbation="interventional")
    exact = np.asarray(peer.shap_values(held_out, check_additivity=False))[..., 1]
    game = cortx.Game(lambda some: model.predict_proba(some)[:, 1], reference=mean, categorical=())
    return Problem(game, rows, held_out, exact)


def smooth(seed: int) -> Problem:
    """A network as a plain function."""
    x, score = table(seed)
    rows, held_out = x[:-HELD_OUT], x[-ENUMERATED:]
    model = MLPRegressor(hidden_layer_sizes=(64, 64), max_iter=60, random_state=seed).fit(rows, score[:-HELD_OUT])
    game = cortx.Game(model.predict, reference=rows.mean(axis=0, keepdims=True), categorical=())
    return Problem(game, rows, held_out, cortx.shapley(game, held_out, "exact", views=0).values)


TREES: dict[str, Callable[[int], Problem]] = {
    "boosted regression, 12 columns": regression,
    "XGBoost log-odds, 23 columns": log_odds,
}
FUNCTIONS: dict[str, Callable[[int], Problem]] = {
    "a forest's probability as a function, 12 columns": probability,
    "a network as a function, 12 columns": smooth,
}


def measure(make: Callable[[int], Problem], seed: int, budget: int, recipe: Any) -> dict[str, float]:
    """An explainer against exact values."""
    given = make(seed)
    explainer = cortx.CoRTX(recipe, seed=seed).fit(given.game, given.rows, budget=budget)
    values = explainer.explain(given.held_out).values.reshape(given.exact.shape)
    errors = np.linalg.norm(values - given.exact, axis=1)
    found = {
        "relative l2": float(errors.mean() / np.linalg.norm(given.exact, axis=1).mean()),
        "evaluations": float(explainer.costs_["total_evaluations"]),
    }
    if "kind" in explainer.costs_.get("student", {}):
        found["trees teach"] = float(explainer.costs_["student"]["kind"] == "trees")
    return found


def measured(group: str, method: str, seeds: list[int]) -> list[dict[str, Any]]:
    """What fits find, one entry for each problem: its name, the method, the budget and a list over seeds."""
    problems, budget, recipe = (
        (TREES, BUDGET, get_recipe("default")) if group == "trees" else (FUNCTIONS, SMALL_BUDGET, get_recipe("quick"))
    )
    if method == "network student":
        assert recipe.student is not None
        recipe = replace(recipe, student=replace(recipe.student, trees=False))
    found = []
    for name, make in problems.items():
        scores = []
        for seed in seeds:
            scores.append(measure(make, seed, budget, recipe))
            print(name, method, seed, scores[-1], flush=True)
        found.append({"setting": name, "method": method, "budget": budget, "seeds": seeds, "found": scores})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["trees", "functions"])
    parser.add_argument("--method", default="trees teach")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--raw", type=Path, help="write what is found here, without making records of it")
    parser.add_argument("--join", type=Path, nargs="+", help="make records of such files")
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for path in options.join or ():
        found += json.loads(path.read_text())
    if not options.join:
        for group in [options.only] if options.only else ["trees", "functions"]:
            found += measured(group, options.method, options.seeds)
            if group == "functions" and options.raw is None:
                found += measured(group, "network student", options.seeds)
    if options.raw is not None:
        options.raw.write_text(json.dumps(found))
        return
    records = []
    for one in found:
        facts = {"seeds": one["seeds"], "budget": one["budget"]}
        records += over_seeds("tree teacher", one["setting"], one["method"], one["found"], **facts)
    write("tree_teacher", records)


if __name__ == "__main__":
    main()
