"""Where the results of benchmarks lie; their form is that of `cortx.paper.records`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cortx.paper.records import hardware, record, versions, write_json

RESULTS = Path(__file__).parent / "results"

__all__ = ["RESULTS", "hardware", "record", "versions", "write"]


def write(name: str, records: Sequence[dict[str, Any]], folder: Path = RESULTS) -> Path:
    path = write_json(folder / f"{name}.json", list(records))
    print(f"wrote {path} ({len(records)} records)")
    return path
