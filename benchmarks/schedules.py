"""Does longer or gentler training help the paper's networks? A search on held-out training rows of Census.

    CORTX_DATA=... python -m benchmarks.schedules [--seeds 0] [--shares 0.05 0.25] [--workers 2]

Supervised RTX in the paper's form, and the heads of the paper's recipe on their frozen encoder: rates and numbers of
steps, scored on 1,000 training rows outside the labelled ones. docs/decisions/0007-study.md says what came of it.
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import replace
from typing import Any

from benchmarks.census import CACHE
from benchmarks.records import record, write

METHODS = ("supervised-mse", "supervised-ce", "cortx-paper")
SCHEDULES = ((5e-3, 2_000), (2e-3, 6_000), (1e-3, 6_000))
HELD_OUT = 1_000


def one_fit(job: tuple[str, float, float, int, int]) -> tuple[dict[str, float], float, float]:
    method, share, rate, steps, seed = job
    import numpy as np
    import torch

    from cortx.explainer.explainer import CoRTX
    from cortx.explanation import Explanation
    from cortx.metrics import l2_distance, rank_accuracy
    from cortx.paper.grid import AUTHORS
    from cortx.paper.study import FULL, Context, paper_recipe_of, problem_of
    from cortx.rivals.supervised import SupervisedRTX

    torch.set_num_threads(1)
    problem = problem_of("census", AUTHORS, Context(CACHE / "paper", FULL))
    order = problem.chosen(1.0, seed)
    index, held = order[: round(share * len(order))], order[-HELD_OUT:]
    labels = problem.labels("train", index)
    if method == "cortx-paper":
        recipe, heads = paper_recipe_of("census"), ("attribution", "ranking")
        explainer = CoRTX(recipe, heads=heads, unseen="ignore", seed=seed)
    else:
        explainer = SupervisedRTX("paper", loss=method.rpartition("-")[2], seed=seed).explainer  # type: ignore[arg-type]
        recipe = explainer.resolved_recipe()
    parts = ("attribution", "ranking") if method == "cortx-paper" else ("attribution",)
    parts = ("ranking",) if method == "supervised-ce" else parts
    tuned = {part: replace(getattr(recipe, part), learning_rate=rate, steps=steps) for part in parts}
    explainer.recipe = replace(recipe, **tuned)  # type: ignore[arg-type]
    explainer.fit(problem.game, problem.x_train, labels=(index, labels.values[..., 0]), progress=False)
    truth = problem.labels("train", held).values[..., 0]
    shown = explainer.explain(problem.x_train[held])
    named = Explanation(truth, np.zeros(len(truth)), shown.feature_names)
    scores = {"rank_accuracy": float(rank_accuracy(replace(shown, predicted_ranking=None), named).mean())}
    if shown.predicted_ranking is not None:
        scores["rank_accuracy_ranking_head"] = float(rank_accuracy(shown, named).mean())
    scores["l2"] = float(l2_distance(shown.values, truth).mean())
    if method == "supervised-ce":
        scores = {"rank_accuracy_ranking_head": scores["rank_accuracy_ranking_head"]}
    costs = explainer.costs_
    print(f"{method}, {share:.0%}, rate {rate:g}, {steps:,} steps, seed {seed}: {scores}", flush=True)
    return scores, costs["total_evaluations"] + labels.evaluations, costs["finetuning"]["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.05, 0.25])
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    about = [(method, share, *schedule) for share in arguments.shares for method in METHODS for schedule in SCHEDULES]
    jobs = [(*one, seed) for one in about for seed in arguments.seeds]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        done = dict(zip(jobs, pool.map(one_fit, jobs, chunksize=1), strict=True))
    records: list[dict[str, Any]] = []
    for one in about:
        method, share, rate, steps = one
        fits = [done[(*one, seed)] for seed in arguments.seeds]
        for metric in fits[0][0]:
            records.append(
                record(
                    "schedules",
                    f"sigmoid output, zero reference, {share:.0%} exact labels, {HELD_OUT:,} held-out training rows",
                    method,
                    metric,
                    [scores[metric] for scores, _, _ in fits],
                    seeds=arguments.seeds,
                    evaluations=sum(cost for _, cost, _ in fits) / len(fits),
                    seconds=sum(seconds for _, _, seconds in fits) / len(fits),
                    learning_rate=rate,
                    steps=steps,
                )
            )
    write("schedules", records)


if __name__ == "__main__":
    main()
