"""What a budget of model evaluations buys on the published Census target: error, bounds, refinement, stable ranks.

    CORTX_DATA=... python -m benchmarks.budgets [--workers 1] [--fit-only] [--seeds 0 1 2]

Fits lie in benchmarks/.cache and are not made twice. Everything is scored on all test rows in the authors' setting
(sigmoid output, zero reference), and on 1,000 of them for the linear output with the mean reference, where an exact
label costs 8,191 evaluations instead of 1,240.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.census import CACHE, exact_values
from benchmarks.coverage import CONFIDENCE, SPLITS, pool_of, study
from benchmarks.records import RESULTS, hardware, record, write

BUDGETS = (700_000, 2_700_000, 11_000_000)
AT_MOST = {"zero": dict(zip(BUDGETS, (0.0038, 0.0016, 0.0008), strict=True))}
SETTINGS = {
    "zero": "sigmoid output, zero reference, all test rows",
    "mean": "linear output, mean reference, 1,000 test rows",
}
REFINED_ROWS, REFINED_SEEDS = 1_000, 3


def game_of(setting: str) -> tuple[Any, Any]:
    import cortx
    from cortx.paper.census import load_census

    census = load_census()
    if setting == "zero":
        reference, output = "zero", "probability"
    else:
        reference, output = census.x_train.astype(np.float64).mean(axis=0), "raw"
    return cortx.Game(census.model, reference=reference, output=output, categorical=census.categorical), census


def budgets_of(setting: str, budgets: list[int]) -> list[int]:
    """The largest budget is for the authors' setting only."""
    return [budget for budget in budgets if setting == "zero" or budget < 5_000_000]


def place(setting: str, budget: int, seed: int, folder: Path) -> Path:
    return folder / f"budget-{setting}-{budget}-{seed}.cortx"


def one_fit(job: tuple[str, int, int, Path]) -> None:
    setting, budget, seed, folder = job
    import torch

    import cortx

    torch.set_num_threads(1)
    path = place(setting, budget, seed, folder)
    if path.exists():
        return
    game, census = game_of(setting)
    started = perf_counter()
    explainer = cortx.CoRTX(unseen="ignore", seed=seed).fit(game, census.x_train, budget=budget, progress=False)
    facts = {"seconds": perf_counter() - started, "hardware": hardware(), "asked": game.evaluations}
    explainer.save(path)
    path.with_suffix(".json").write_text(json.dumps(facts))
    print(f"{path.name}: {explainer.costs_['total_evaluations']:,} evaluations, {facts['seconds']:.0f} s", flush=True)


def scored(setting: str, budget: int, seed: int, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    import cortx
    from cortx import metrics

    game, census = game_of(setting)
    path = place(setting, budget, seed, folder)
    explainer = cortx.load(path, model=census.model)
    rows = census.x_test
    if setting == "mean":
        rows = rows[np.random.default_rng(0).choice(len(rows), 1_000, replace=False)]
    truth = exact_values(game, rows, name=SETTINGS[setting])
    shown = explainer.explain(rows, confidence=CONFIDENCE)
    error = metrics.l2_distance(shown.values, truth)
    inside = ((truth >= shown.lower_bounds - 1e-12) & (truth <= shown.upper_bounds + 1e-12)).all(axis=1)
    wrong = {
        by: (shown.stable(by) & (_order(shown.values, by) != _order(truth, by))).any(axis=1)
        for by in ("value", "magnitude")
    }
    scores = {
        "l2": float(error.mean()),
        "squared_l2": float((error**2).mean()),
        "rank_accuracy": float(metrics.rank_accuracy(shown.values, truth).mean()),
        "coverage of the fit's own calibration, rows": float((error <= shown.error_bound).mean()),
        "coverage of the fit's own calibration, bands": float(inside.mean()),
        "rows where a stable rank is wrong, by value": float(wrong["value"].mean()),
        "rows where a stable rank is wrong, by magnitude": float(wrong["magnitude"].mean()),
        "stable ranks, share of positions, by value": float(shown.stable_ranks.mean()),
        "stable ranks, share of the first 3 positions, by magnitude": float(shown.stable("magnitude")[:, :3].mean()),
    }
    if setting == "zero":
        outputs = game.outputs_of(game.rows(rows).table)[:, 0]
        labels = cortx.Explanation(
            truth, shown.base_values, shown.feature_names, data=rows, outputs=outputs, error_std=np.zeros_like(truth)
        )
        scores |= {f"{SPLITS} splits: {k}": v for k, v in study(pool_of(explainer, labels)).items()}
        scores |= refinement(explainer, rows, truth)
        scores |= tolerances(explainer, rows, truth, shown.error_bound)
    facts = json.loads(path.with_suffix(".json").read_text())
    return scores, {"evaluations": explainer.costs_["total_evaluations"], **facts}


def _order(values: np.ndarray, by: str) -> np.ndarray:
    from cortx.explanation import highest_first

    if by == "magnitude":
        return np.argsort(-np.abs(values), axis=1, kind="stable")
    return highest_first(values)


class Ignorant:
    """A prior that says nothing: the total spread evenly, and as uncertain as it is large."""

    def prior(self, rows: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size = np.repeat(np.abs(outputs)[:, None, :] + 1e-3, rows.shape[1], axis=1)
        return np.repeat(outputs[:, None, :] / rows.shape[1], rows.shape[1], axis=1), size


def refinement(explainer: Any, rows: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Squared errors with the prediction as a prior, and of the same regression without it."""
    import cortx

    chosen = np.random.default_rng(1).choice(len(rows), REFINED_ROWS, replace=False)
    some, known, scores = rows[chosen], truth[chosen], {}
    for budget in (26, 65, 260, 1_300):
        squared: dict[str, list[float]] = {"amortized": [], "no prior": [], "kernel": [], "unbiased": []}
        for seed in range(REFINED_SEEDS):
            for name, options in (
                ("amortized", {"method": "amortized", "explainer": explainer}),
                ("no prior", {"method": "amortized", "explainer": Ignorant()}),
                ("unbiased", {"method": "amortized", "explainer": explainer, "unbiased": True}),
                ("kernel", {"method": "kernel"}),
            ):
                if name == "kernel" and budget < 28:
                    continue  # fewer than two evaluations a feature leave the regression without an answer
                labels = cortx.shapley(
                    explainer.game, some, row_budget=budget, views=0, seed=seed, progress=False, **options
                )
                squared[name].append(float(((labels.values - known) ** 2).sum(axis=1).mean()))
        for name, values in squared.items():
            if values:
                scores[f"squared error at {budget} evaluations, {name}"] = float(np.mean(values))
        # The same draws without the prior: what the prior alone is worth.
        ratio = np.mean(squared["no prior"]) / np.mean(squared["amortized"])
        scores[f"squared error at {budget} evaluations, no prior over amortized"] = float(ratio)
    return scores


def tolerances(explainer: Any, rows: np.ndarray, truth: np.ndarray, bounds: np.ndarray) -> dict[str, float]:
    """Tolerances that half, a tenth and a hundredth of the rows exceed, and what refining every row would cost."""
    chosen = np.random.default_rng(2).choice(len(rows), 2 * REFINED_ROWS, replace=False)
    some, known, scores = rows[chosen], truth[chosen], {}
    for share in (0.5, 0.1, 0.01):
        tolerance = float(np.quantile(bounds, 1 - share))
        shown = explainer.explain(some, tolerance=tolerance)
        error = np.linalg.norm(shown.values - known, axis=1)
        name = f"tolerance that {share:.0%} of the rows exceed"
        scores[f"{name}: share of rows that meet it"] = float((error <= tolerance).mean())
        scores[f"{name}: share of rows refined"] = float(shown.refined.mean())
        scores[f"{name}: evaluations per row"] = shown.evaluations / len(some)
        scores[f"{name}: evaluations per row if every row is refined"] = _all_refined(explainer, some, tolerance)
    return scores


def _all_refined(explainer: Any, rows: np.ndarray, tolerance: float) -> float:
    """The same work on every row: bounds so wide that none is spared."""
    from cortx.explainer.refine import Refinable, refine

    game, table = explainer.game, explainer._read(rows)
    outputs, empty = game.outputs_of(game.rows(rows).table), explainer._empty(table)[0]
    answer = explainer._answer(table, outputs, empty, errors=True)
    spared = answer.bounds(np.array([1e12]), np.array([1e12]))
    calibration, spent = explainer.calibration, game.evaluations
    refine(
        Refinable(game, game.rows(rows), outputs, empty, answer, explainer.fitted.seed, explainer.fitted.student),
        spared,
        calibration.round_factors(CONFIDENCE), calibration.rounds.longest,
        tolerance=tolerance, row_budget=None, show=False,
    )  # fmt: skip
    return 1 + (game.evaluations - spent) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--fit-only", action="store_true")
    parser.add_argument("--explainers", type=Path, default=CACHE, help="the folder that keeps them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.explainers.mkdir(parents=True, exist_ok=True)
    jobs = [
        (setting, budget, seed, arguments.explainers)
        for budget in sorted(arguments.budgets, reverse=True)
        for setting in arguments.settings
        for seed in arguments.seeds
        if budget in budgets_of(setting, arguments.budgets)
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    scores: dict[tuple[str, int], list[Any]] = {}
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        pool.map(one_fit, jobs, chunksize=1)
        if arguments.fit_only:
            return
        for job, found in zip(jobs, pool.starmap(scored, jobs, chunksize=1), strict=True):
            scores.setdefault(job[:2], []).append(found)
    records = []
    for setting in arguments.settings:
        for budget in budgets_of(setting, arguments.budgets):
            found = scores[setting, budget]
            for metric in found[0][0]:
                facts: dict[str, Any] = {"fitted_on": found[0][1]["hardware"], "budget": budget}
                if metric == "l2" and setting in AT_MOST:
                    facts["expected_at_most"] = AT_MOST[setting][budget]
                records.append(
                    record(
                        "budgets", SETTINGS[setting], "cortx default", metric,
                        [values[metric] for values, _ in found], seeds=arguments.seeds,
                        evaluations=float(np.mean([fact["evaluations"] for _, fact in found])),
                        seconds=float(np.mean([fact["seconds"] for _, fact in found])), **facts,
                    )
                )  # fmt: skip
                if len(records[-1]["metric"]) < 60:
                    print(
                        f"{setting} {budget:,}: {metric} {records[-1]['value']:.5g} +- {records[-1]['spread'] or 0:.2g}"
                    )
    write("budgets", records, arguments.out)


if __name__ == "__main__":
    main()
