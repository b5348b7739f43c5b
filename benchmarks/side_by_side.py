"""Two fits at the same time on one machine, against one alone.

    python -m benchmarks.side_by_side [--repeats 3] [--budget 200000] [--fits 2]

Every fit is a process of its own with default settings: the quick recipe, a table of 12 columns, a small torch model.
The variables that limit threads are removed from the environment. Alone and side by side take turns; the ratio of a
turn is the mean seconds of the fits side by side over the seconds of the one alone, and the median ratio counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

from benchmarks.records import record, write

LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CORTX_THREADS", "OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")
FIT = """
import sys
from time import perf_counter

import numpy as np
import torch

import cortx

rows = np.random.default_rng(0).normal(size=(5_000, 12)).astype(np.float32)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
game = cortx.Game(model, reference=rows, output="probability")
print("ready", flush=True)
sys.stdin.readline()
started = perf_counter()
explainer = cortx.CoRTX("quick", seed=0).fit(game, rows, budget=int(sys.argv[1]), progress=False)
print(perf_counter() - started, explainer.costs_["total_evaluations"], flush=True)
"""


def fits(count: int, budget: int) -> tuple[list[float], int]:
    """Seconds of so many fits that start at the same moment, and the evaluations of one."""
    environment = {name: value for name, value in os.environ.items() if name not in LIMITS}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FIT, str(budget)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for _ in range(count)
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # it has loaded everything
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate()[0].split() for process in running]
    for process in running:
        if process.returncode:
            raise SystemExit(f"a fit ended with exit code {process.returncode}")
    return [float(seconds) for seconds, _ in told], int(told[0][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=int, default=200_000)
    parser.add_argument("--fits", type=int, default=2)
    arguments = parser.parse_args()
    alone: list[float] = []
    together: list[float] = []
    ratios: list[float] = []
    evaluations = 0
    for turn in range(arguments.repeats):
        (seconds,), evaluations = fits(1, arguments.budget)
        several, _ = fits(arguments.fits, arguments.budget)
        alone.append(seconds)
        together.append(statistics.fmean(several))
        ratios.append(together[-1] / seconds)
        print(f"turn {turn}: alone {seconds:.1f} s, side by side {together[-1]:.1f} s each, ratio {ratios[-1]:.2f}")
    setting = f"quick recipe, 5,000 rows of 12 columns, budget {arguments.budget:,}, default threads"
    name = f"{arguments.fits} fits side by side"
    write(
        "side_by_side",
        [
            record("side_by_side", setting, method, metric, values, evaluations=evaluations, seconds=sum(seconds))
            for method, metric, values, seconds in (
                ("one fit alone", "seconds", alone, alone),
                (name, "seconds", together, together),
                (name, "ratio to one alone, median", [statistics.median(ratios)], together),
            )
        ],
    )


if __name__ == "__main__":
    main()
