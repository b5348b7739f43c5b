"""Where the results of benchmarks lie; their form is that of `cortx.paper.records`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cortx.paper.records import hardware, record, versions, write_json

RESULTS = Path(__file__).parent / "results"

__all__ = ["RESULTS", "hardware", "over_seeds", "record", "versions", "write"]


def over_seeds(
    experiment: str, setting: str, method: str, found: Sequence[dict[str, float]], **facts: Any
) -> list[dict[str, Any]]:
    """A record of each metric; `found` has its value for each seed."""
    return [
        record(experiment, setting, method, metric, [scores[metric] for scores in found], **facts)
        for metric in found[0]
    ]


def write(name: str, records: Sequence[dict[str, Any]], folder: Path = RESULTS) -> Path:
    path = write_json(folder / f"{name}.json", list(records))
    print(f"wrote {path} ({len(records)} records)")
    return path
