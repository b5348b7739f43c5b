"""Peak memory above the model's own: explaining a million rows, labelling ten thousand rows of 13 players exactly.

    python -m benchmarks.memory

Each job runs in a process of its own; its peak is compared with the memory right before the job, when the model, the
table and the result's own arrays are already there.
"""

from __future__ import annotations

import multiprocessing
import resource
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.records import record, write

GIB = 2**30


def resident() -> int:
    """Bytes of memory this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(job: str) -> dict[str, Any]:
    import torch

    import cortx
    from benchmarks.speed import PLAYERS, make_model
    from cortx.training.recipe import get_recipe

    model = make_model()
    n_rows = 1_000_000 if job == "explain" else 10_000
    rows = np.random.default_rng(0).normal(size=(n_rows, PLAYERS)).astype(np.float32)
    game = cortx.Game(model, reference="zero")
    with torch.inference_mode():
        model(torch.from_numpy(rows[:10_000]))
    if job == "explain":
        recipe = get_recipe("default")
        recipe = replace(
            recipe, pretrain=replace(recipe.pretrain, steps=0), attribution=replace(recipe.attribution, steps=1)
        )
        explainer = cortx.CoRTX(recipe).fit(game, rows[:1_000], n_labels=20)
    before, started, spent = resident(), perf_counter(), game.evaluations
    assert before > 0.9 * peak(), "something before the job needed more memory than there is now"
    if job == "explain":
        result = explainer.explain(rows).values.nbytes
    else:
        result = cortx.shapley(game, rows, "exact").values.nbytes
    return {
        "job": job,
        "rows": n_rows,
        "above": peak() - before,
        "result": result,
        "seconds": perf_counter() - started,
        "evaluations": game.evaluations - spent,
    }


def main() -> None:
    records = []
    for job in ("explain", "label"):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            done = pool.apply(run, (job,))
        gib = done["above"] / GIB
        print(f"{job}: {done['rows']:,} rows, {gib:.3f} GiB above what was there ({done['seconds']:.0f} s)")
        records.append(
            record(
                "memory", f"MLP 13-128-128-1, {done['rows']:,} rows, 13 players", f"cortx {job}",
                "GiB above the model's own memory", gib, evaluations=done["evaluations"], seconds=done["seconds"],
                result_gib=done["result"] / GIB, expected_at_most=1.0,
            )
        )  # fmt: skip
    write("memory", records)


if __name__ == "__main__":
    main()
