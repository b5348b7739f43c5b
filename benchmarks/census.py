"""Explainers on the published Census target, in its authors' setting (sigmoid output, zero reference).

    CORTX_DATA=... python -m benchmarks.census [--shares 0.01 0.05 0.25] [--seeds 0 1 2] [--workers 1]

Labels are exact and drawn at random from the training rows; a part of them chooses the epoch. Every explainer is
scored on 2,000 training rows outside the labelled ones, which is how settings were chosen, and on all test rows,
which is what we report. Exact values of the rows that are scored are computed here, not read.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.records import RESULTS, record, write

METHODS = (
    "default",
    "default, labels only",
    "default, no pre-training",
    "default, no rough labels",
    "default, no contrastive loss",
    "default, rough labels only in pre-training",
    "paper",
)
HELD_OUT = 2_000
CACHE = Path(__file__).parent / ".cache"


def recipe_of(method: str) -> Any:
    from cortx.training.recipe import get_recipe

    default = get_recipe("default")
    tune = default.pretrain
    return {
        "default": default,
        "default, labels only": default,
        "default, no pre-training": replace(default, pretrain=replace(tune, steps=0)),
        "default, no rough labels": replace(default, pretrain=replace(tune, rough_pairs=0)),
        "default, no contrastive loss": replace(default, pretrain=replace(tune, contrastive_weight=0.0)),
        "default, rough labels only in pre-training": replace(
            default, attribution=replace(default.attribution, rough_share=0.0, view_share=0.75)
        ),
        "paper": get_recipe("paper"),
    }[method]


def one_fit(job: tuple[str, float, int, int, str]) -> dict[str, Any]:
    method, share, seed, threads, device = job
    import torch

    import cortx
    from cortx.paper.census import load_census

    torch.set_num_threads(threads)
    census = load_census()
    order = np.random.default_rng(seed).permutation(len(census.x_train))
    chosen, held = order[: round(share * len(order))], order[-HELD_OUT:]
    game = cortx.Game(census.model.to(device), reference="zero", output="probability", categorical=census.categorical)
    labels: Any = cortx.shapley(game, census.x_train[chosen], "exact", seed=seed, progress=False)
    label_cost = labels.evaluations
    if method in ("default, labels only", "paper"):
        labels = (chosen, labels.values)
    started = perf_counter()
    heads = ("attribution", "ranking") if method == "paper" else ("attribution",)
    explainer = cortx.CoRTX(recipe_of(method), heads=heads, unseen="ignore", seed=seed)
    explainer.fit(game, census.x_train, labels=labels, progress=False)
    seconds = perf_counter() - started
    scores = {
        "held-out training rows": scored(explainer, game, census.x_train[held]),
        "all test rows": scored(explainer, game, census.x_test),
    }
    costs = explainer.costs_
    spent = label_cost + costs["outputs"]["evaluations"] + costs["pretraining"]["evaluations"]
    print(f"{method}, {share:.0%}, seed {seed}: {scores}, {spent:,} evaluations, {seconds:.0f} s", flush=True)
    return {"job": job, "scores": scores, "evaluations": spent, "seconds": seconds}


def scored(explainer: Any, game: Any, rows: np.ndarray) -> dict[str, float]:
    from cortx import metrics

    truth = exact_values(game, rows)
    explanation = explainer.explain(rows)
    values = explanation.values
    result = {
        "l2": float(metrics.l2_distance(values, truth).mean()),
        "squared_l2": float(metrics.squared_l2(values, truth).mean()),
        "rank_accuracy": float(metrics.rank_accuracy(values, truth).mean()),
        "rank_accuracy_from_lowest": float(metrics.rank_accuracy(values, truth, first="lowest").mean()),
    }
    if explanation.predicted_ranking is not None:
        result["rank_accuracy_ranking_head"] = float(metrics.rank_accuracy(explanation, truth).mean())
        valid = np.sort(explanation.ranking, axis=1) == np.arange(values.shape[1])
        result["valid_permutations_ranking_head"] = float(valid.all(axis=1).mean())
    return result


def exact_values(game: Any, rows: np.ndarray, name: str = "sigmoid output, zero reference") -> np.ndarray:
    """Exact Shapley values, without counting them as anybody's cost; kept in a cache that is never committed."""
    import cortx

    key = hashlib.sha256(name.encode() + np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]
    path = CACHE / f"{key}.npy"
    if path.exists():
        return np.load(path)
    before = game.evaluations
    values = cortx.shapley(game, rows, "exact", views=0, progress=False).values
    game.evaluations = before
    CACHE.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.npy")
    np.save(temporary, values)
    temporary.replace(path)
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["default", "default, labels only", "paper"], choices=METHODS)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.01, 0.05, 0.25])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--device", default="cpu", help="where the model is evaluated; training stays on the CPU")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--name", default="census")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    threads = max(1, len(os.sched_getaffinity(0)) // arguments.workers)
    jobs = [
        (method, share, seed, threads, arguments.device)
        for share in sorted(arguments.shares, reverse=True)
        for method in arguments.methods
        for seed in arguments.seeds
        if method != "paper" or share == 0.25
    ]
    if arguments.workers == 1:
        done = [one_fit(job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
            done = pool.map(one_fit, jobs, chunksize=1)
    records = []
    for method in arguments.methods:
        for share in arguments.shares:
            fits = [fit for fit in done if fit["job"][:2] == (method, share)]
            for rows, metric in [(r, m) for r in fits[0]["scores"] for m in fits[0]["scores"][r]] if fits else []:
                records.append(
                    record(
                        "census",
                        f"sigmoid output, zero reference, {share:.0%} exact labels, {rows}",
                        method,
                        metric,
                        [fit["scores"][rows][metric] for fit in fits],
                        seeds=[fit["job"][2] for fit in fits],
                        evaluations=float(np.mean([fit["evaluations"] for fit in fits])),
                        seconds=float(np.mean([fit["seconds"] for fit in fits])),
                        threads=threads,
                    )
                )
    write(arguments.name, records, arguments.out)


if __name__ == "__main__":
    main()
