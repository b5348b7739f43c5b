"""Codes of categories given as plain numbers: what an explainer loses on the published Census target.

    CORTX_DATA=... python -m benchmarks.codes [--labels 1000] [--seeds 0 1] [--threads 1]

Eight of the thirteen columns are codes. They are declared (`categorical=`), or not; and not, with one-hot inputs for
columns of few whole numbers left out. The reference is zero, so the three explain the same game, from the same labels:
exact values of the raw output for random training rows. Scored on 2,000 test rows against exact values.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.records import record, write

METHODS = ("declared", "not declared", "not declared, numbers alone")
TRAIN_ROWS, TEST_ROWS = 6_000, 2_000


def one_fit(method: str, n_labels: int, seed: int, threads: int) -> dict[str, Any]:
    import torch

    import cortx
    from cortx.metrics import l2_distance
    from cortx.paper.census import data_folder, load_census
    from cortx.training.recipe import get_recipe

    torch.set_num_threads(threads)
    census = load_census()
    exact = np.load(data_folder() / "census-autoint" / "exact_labels.npz", allow_pickle=False)
    declared = list(census.categorical) if method == "declared" else ()
    game = cortx.Game(census.model, reference="zero", output="raw", categorical=declared)
    recipe = get_recipe("quick")
    recipe = replace(recipe, features=replace(recipe.features, codes=method != METHODS[2]))
    rows = np.random.default_rng(seed).permutation(len(census.x_train))[:TRAIN_ROWS]
    labels = (np.arange(n_labels), exact["zero_train"][rows[:n_labels]].astype(np.float64))
    explainer = cortx.CoRTX(recipe, unseen="ignore", seed=seed)
    started = perf_counter()
    explainer.fit(game, census.x_train[rows], labels=labels, progress=False)
    seconds = perf_counter() - started
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cortx.errors.StrangeRows)
        values = explainer.explain(census.x_test[:TEST_ROWS]).values
    error = float(l2_distance(values, exact["zero_test"][:TEST_ROWS]).mean())
    print(f"{method}, seed {seed}: l2 {error:.4f} ({seconds:.0f} s)", flush=True)
    return {"error": error, "seconds": seconds, "evaluations": explainer.costs_["total_evaluations"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    records = []
    for method in METHODS:
        fits = [one_fit(method, given.labels, seed, given.threads) for seed in given.seeds]
        records.append(
            record(
                "codes",
                f"Census, raw output, zero reference, {given.labels:,} exact labels, quick recipe, "
                f"{TEST_ROWS:,} test rows",
                method,
                "l2",
                [fit["error"] for fit in fits],
                seeds=given.seeds,
                evaluations=float(np.mean([fit["evaluations"] for fit in fits])),
                seconds=float(np.mean([fit["seconds"] for fit in fits])),
                threads=given.threads,
            )
        )
    write("codes", records)


if __name__ == "__main__":
    main()
