"""Exact tree values against shap's TreeExplainer: the same numbers, and at what price, in one process.

    python -m benchmarks.trees

One reference: 1,000 rows at a time, the best of several turns that both take in alternation; tables are made before, as
shap's explainer is. A background of 1,000 rows: 1,000 rows and the making of the tables, against shap on 5 rows, times
200.
"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import lightgbm
import numpy as np
import shap
import xgboost
from sklearn.ensemble import RandomForestRegressor

import cortx
from benchmarks.records import over_seeds, write

SEEDS = (0, 1, 2)
ROWS, COLUMNS, BACKGROUND, SLOW_ROWS, TURNS = 1_000, 23, 1_000, 5, 7
MODELS: dict[str, Callable[[int], Any]] = {
    "XGBoost, 100 trees of depth 6": lambda s: xgboost.XGBRegressor(
        n_estimators=100, max_depth=6, n_jobs=1, random_state=s
    ),
    "XGBoost, 300 trees of depth 5": lambda s: xgboost.XGBRegressor(
        n_estimators=300, max_depth=5, n_jobs=1, random_state=s
    ),
    "XGBoost, 100 trees of depth 8": lambda s: xgboost.XGBRegressor(
        n_estimators=100, max_depth=8, n_jobs=1, random_state=s
    ),
    "LightGBM, 100 trees of 31 leaves": lambda s: lightgbm.LGBMRegressor(
        n_estimators=100, n_jobs=1, verbose=-1, random_state=s
    ),
    "random forest, 100 trees of depth 6": lambda s: RandomForestRegressor(100, max_depth=6, random_state=s),
    "random forest, 20 trees of any depth": lambda s: RandomForestRegressor(20, random_state=s),
}


def table(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and a target with steps, products and waves."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4_000, COLUMNS))
    y = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] * (x[:, 4] > 0) + 0.1 * rng.normal(size=len(x))
    return x, y


def seconds(work: Callable[[], Any]) -> float:
    """Seconds of the processor that other programs do not disturb much."""
    started = process_time()
    work()
    return process_time() - started


def measure(make: Callable[[int], Any], seed: int) -> dict[str, float]:
    x, y = table(seed)
    model = make(seed).fit(x, y)
    rows = x[-ROWS:]
    found: dict[str, float] = {}
    peer = shap.TreeExplainer(model, x[:1], feature_perturbation="interventional")
    game = cortx.Game(model, reference=x[:1], categorical=())
    ours = cortx.shapley(game, rows, "tree")
    theirs = peer.shap_values(rows, check_additivity=False)
    pairs = [
        (
            seconds(lambda: cortx.shapley(game, rows, "tree")),
            seconds(lambda: peer.shap_values(rows, check_additivity=False)),
        )
        for _ in range(2 if "any depth" in name_of(make) else TURNS)
    ]
    own, other = (min(column) for column in zip(*pairs, strict=True))
    found["largest difference, one reference"] = float(np.abs(ours.values - theirs).max())
    found["seconds, one reference"] = own
    found["time over shap's, one reference"] = own / other
    sample = shap.maskers.Independent(x[:BACKGROUND], max_samples=BACKGROUND)
    peer = shap.TreeExplainer(model, sample, feature_perturbation="interventional")
    some = 10 if "any depth" in name_of(make) else ROWS
    wide = cortx.Game(model, background=x[:BACKGROUND], categorical=())
    first = seconds(lambda: cortx.shapley(wide, rows[:1], "tree"))
    ours = cortx.shapley(wide, rows[:some], "tree")
    own = first + seconds(lambda: cortx.shapley(wide, rows[:some], "tree")) * ROWS / some
    theirs = peer.shap_values(rows[:SLOW_ROWS], check_additivity=False)
    other = seconds(lambda: peer.shap_values(rows[:SLOW_ROWS], check_additivity=False)) * ROWS / SLOW_ROWS
    found["largest difference, background"] = float(np.abs(ours.values[:SLOW_ROWS] - theirs).max())
    found["seconds, background"] = own
    found["times as fast as shap, background"] = other / own
    return found


def name_of(make: Callable[[int], Any]) -> str:
    return next(name for name, maker in MODELS.items() if maker is make)


def main() -> None:
    records = []
    for name, make in MODELS.items():
        found = [measure(make, seed) for seed in SEEDS]
        print(
            name, {metric: round(float(np.mean([one[metric] for one in found])), 9) for metric in found[0]}, flush=True
        )
        setting = f"{name}, {COLUMNS} columns, {ROWS:,} rows, one thread"
        records += over_seeds("trees", setting, "tree", found, seeds=SEEDS)
    write("trees", records)


if __name__ == "__main__":
    main()
