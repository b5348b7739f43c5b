"""Squared error of sampled Shapley values over their squared norm: ``"odd"`` against ``"kernel"`` at equal evaluations.

    python -m benchmarks.sampling

Breast cancer and friedman1 are the tables of the goal (XGBoost margin, 100 background rows); nobody tuned anything for
the others: digits by a random forest, and an MLP on 24 made-up columns (12 rows each). True values of boosted trees
and of the forest come from shap's interventional TreeExplainer, those of the MLP are the mean of 24 runs of "kernel"
with 8,000 coalitions.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_digits, make_friedman1
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor

import cortx
from benchmarks.records import over_seeds, write

Array = npt.NDArray[np.float64]
ROWS, SEEDS, COALITIONS = 24, (0, 1, 2), (1_000, 3_000)


class Problem(NamedTuple):
    """A game with rows to explain and their true values, (rows, players)."""

    name: str
    game: cortx.Game
    rows: Array
    truth: Array


def boosted(name: str, data: tuple[Array, Array], classes: bool, depth: int) -> Problem:
    import shap
    import xgboost

    train, test, y, _ = train_test_split(*data, random_state=0)
    model = (xgboost.XGBClassifier if classes else xgboost.XGBRegressor)(max_depth=depth, learning_rate=0.1, n_jobs=1)
    model.fit(train, y)
    background, rows = some(train, 100), test[:ROWS]
    truth = shap.TreeExplainer(model, background, feature_perturbation="interventional").shap_values(rows)
    game = cortx.Game(lambda X: model.predict(X, output_margin=True).astype(np.float64), background=background)
    return Problem(f"{name}, XGBoost margin, depth {depth}, {rows.shape[1]} columns", game, rows, np.asarray(truth))


def forest() -> Problem:
    import shap

    X, y = load_digits(return_X_y=True)
    X = X[:, X.std(axis=0) > 2][:, :40]
    train, test, y, _ = train_test_split(X, y == 8, random_state=0)
    model = RandomForestClassifier(20, max_depth=8, random_state=0, n_jobs=1).fit(train, y)
    background, rows = some(train, 10), test[: ROWS // 2]
    truth = shap.TreeExplainer(model, background, feature_perturbation="interventional").shap_values(rows)[..., 1]
    game = cortx.Game(lambda X: model.predict_proba(X)[:, 1], background=background)
    return Problem(f"digits, random forest, {X.shape[1]} columns", game, rows, np.asarray(truth))


def network() -> Problem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 24)) @ (np.eye(24) + 0.2 * rng.normal(size=(24, 24)))
    y = X[:, 0] * X[:, 1] + np.tanh(X[:, 2] + X[:, 3] * X[:, 4]) + np.abs(X[:, 5]) + X[:, 6:].mean(axis=1)
    model = MLPRegressor(hidden_layer_sizes=(64, 64), max_iter=80, random_state=0).fit(X[:2_500], y[:2_500])
    game = cortx.Game(model.predict, background=some(X[:2_500], 10))
    rows = X[2_500 : 2_500 + ROWS // 2]
    runs = [
        cortx.shapley(game, rows, "kernel", row_budget=10 * 8_001, seed=1_000 + i, progress=False).values
        for i in range(24)
    ]
    return Problem("made-up table, MLP, 24 columns", game, rows, np.mean(runs, axis=0))


def some(X: Array, count: int) -> Array:
    return X[np.random.default_rng(0).choice(len(X), count, replace=False)]


def measure(problem: Problem, coalitions: int) -> list[dict[str, Any]]:
    """Records of both methods, and of how much longer the new one takes in the same runs (processor time)."""
    budget = (coalitions + 1) * problem.game.evaluations_per_value
    size = np.square(problem.truth).sum(axis=1)
    found: dict[str, list[dict[str, float]]] = {"kernel": [], "odd": []}
    for seed in SEEDS:
        for method, scores in found.items():
            started = process_time()
            labels = cortx.shapley(problem.game, problem.rows, method, row_budget=budget, seed=seed, progress=False)
            seconds = process_time() - started
            away, errors = labels.values - problem.truth, np.asarray(labels.error_std)
            scores.append(
                {
                    "nMSE": float((np.square(away).sum(axis=1) / size).mean()),
                    "squared error / squared standard error": float(np.square(away).mean() / np.square(errors).mean()),
                    "share within two standard errors": float((np.abs(away) <= 2 * errors).mean()),
                    "seconds per row": seconds / len(problem.rows),
                }
            )
            if method == "odd":
                scores[-1]["time over kernel's"] = seconds / len(problem.rows) / found["kernel"][-1]["seconds per row"]
    setting = f"{problem.name}, {coalitions} coalitions"
    for method, scores in found.items():
        print(setting, method, {name: f"{np.mean([s[name] for s in scores]):.2e}" for name in scores[0]}, flush=True)
    return [
        line
        for method, scores in found.items()
        for line in over_seeds("sampling", setting, method, scores, seeds=SEEDS, evaluations=budget)
    ]


PROBLEMS: tuple[Callable[[], Problem], ...] = (
    lambda: boosted("breast cancer", load_breast_cancer(return_X_y=True), True, 4),
    lambda: boosted("friedman1", make_friedman1(2_000, n_features=20, noise=1.0, random_state=0), False, 4),
    forest,
    network,
)


def main() -> None:
    records: list[dict[str, Any]] = []
    for make in PROBLEMS:
        problem = make()
        for coalitions in COALITIONS:
            records += measure(problem, coalitions)
        write("sampling", records)


if __name__ == "__main__":
    main()
