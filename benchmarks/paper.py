"""The paper's tabular experiments: the whole study, its results, and the tables and figures of docs/results.md.

    CORTX_DATA=... python -m benchmarks.paper [--data census bankruptcy] [--device cuda] [--workers 16]
    CORTX_DATA=... python -m benchmarks.paper --collect      # no new tasks: from the results that lie in --folder

The same as ``cortx paper census`` and ``cortx paper bankruptcy``, with the results put where they are committed.
Results of single tasks lie in benchmarks/.cache/paper, so a study can be made in several runs, and on several
machines: trainings on a GPU, times on each machine whose times are wanted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.census import CACHE
from benchmarks.records import write
from cortx.paper import figures, tables
from cortx.paper.grid import GRID, missing_cells
from cortx.paper.run import kept_results, records_of, run_study
from cortx.paper.study import KINDS
from cortx.threads import available_cpus

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(GRID), choices=list(GRID))
    parser.add_argument("--folder", type=Path, default=CACHE / "paper")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--collect", action="store_true")
    arguments = parser.parse_args()
    everything = []
    for data in arguments.data:
        if not arguments.collect:
            run_study(data, arguments.folder, device=arguments.device, workers=arguments.workers, kinds=arguments.kinds)
        records = records_of(kept_results(data, arguments.folder))
        write(f"paper-{data}", records)
        tables.update(DOCS / "results.md", data, tables.render(records, data))
        print(f"{data}: {len(missing_cells(records, data))} cells are missing")
        everything += records
    if set(arguments.data) == set(GRID):
        for path in figures.draw_all(everything, DOCS / "images" / "results"):
            print(path)


if __name__ == "__main__":
    main()
