"""Every benchmark, one after another: `make bench`. Those that need data are left out where there are none."""

from __future__ import annotations

import sys

from benchmarks import audit, memory, side_by_side, speed
from cortx.errors import InputError
from cortx.paper.census import data_folder


def main() -> None:
    speed.main()
    memory.main()
    audit.main()
    side_by_side.main()
    try:
        data_folder()
    except InputError as error:
        print(f"left out the Census benchmarks: {error}")
        return
    from benchmarks import budgets, census, codes, coverage, estimators, paper, refined, runtime, serving

    estimators.main()
    sys.argv = sys.argv[:1]
    census.main()
    codes.main()
    budgets.main()
    coverage.main()
    refined.main()
    runtime.main()
    serving.main()
    paper.main()


if __name__ == "__main__":
    main()
