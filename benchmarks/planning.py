"""What a large installation costs, from the constants that `benchmarks.distributed` measured; into docs/scaling.md.

python -m benchmarks.planning
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS
from cortx.paper.tables import update

DOCS = Path(__file__).parents[1] / "docs"
ROWS = (10**6, 10**9, 10**11)
LABEL_EVALUATIONS = 11_000_000
CORES = 1_000
STORE = 10e9
"""Bytes a second that a store gives to all workers together."""
SLICE = 2**20
FOOTERS = 16 / 0.05
"""Footers a second: 16 at a time, 50 ms each, as an object store answers."""


def load(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return records


def value(records: list[dict[str, Any]], method: str, metric: str, setting: str = "") -> float:
    (found,) = [r for r in records if (r["method"], r["metric"]) == (method, metric) and setting in r["setting"]]
    return float(found.get("median", found["value"]))


def render() -> str:
    labels, explained, streamed = (load(f"distributed-{name}") for name in ("labels", "explain", "stream"))
    rate, ratio = "rows per second after start-up", "rate / rate of the local pool"
    fast, slow = "13-128-128-1", "13-512-512-1"
    evaluations = {net: value(labels, "local, 2 workers", rate, net) / 2 * 2**13 for net in (fast, slow)}
    core = value(explained, "local, 2 workers", rate) / 2
    read, written = (value(explained, name, "bytes per row") for name in ("source", "explained"))
    chosen = value(load("distributed-choose"), "driver", "rows per second")
    lines = ["Measured on two cores (`benchmarks/distributed.py`, 13 features; medians of rounds taken in turns):", ""]
    lines += ["| | measured |", "|---|---|"]
    for net in (fast, slow):
        two, ray, spark = (
            value(labels, f"{name}, 2 workers", "rate / rate of one worker" if name == "local" else ratio, net)
            for name in ("local", "ray", "spark")
        )
        lines.append(
            f"| exact labels, a network of {net} | {evaluations[net]:,.0f} evaluations a second and core; two workers "
            f"{two:.2f} x one; Ray {ray:.2f}, Spark {spark:.2f} of the local pool's rate |"
        )
    two, ray, spark = (
        value(explained, f"{name}, 2 workers", "rate / rate of one worker" if name == "local" else ratio)
        for name in ("local", "ray", "spark")
    )
    lines.append(
        f"| explaining 10^6 rows, Parquet to Parquet, outputs given | {core:,.0f} rows a second and core; two workers "
        f"{two:.2f} x one; Ray {ray:.2f}, Spark {spark:.2f} of the local pool's rate |"
    )
    frame = "rows per second, start of workers included"
    lines.append(
        f"| the same as frames, start of workers included, two cores | `cortx.ray.explain` "
        f"{value(explained, 'ray.data, 2 workers', frame):,.0f} rows a second, `cortx.spark.explain` "
        f"{value(explained, 'spark frame, 2 workers', frame):,.0f} |"
    )
    starts = [
        next(r["start_up_seconds"] for r in explained if (r["method"], r["metric"]) == (f"{name}, 2 workers", rate))
        for name in ("local", "ray", "spark")
    ]
    texts = (f"{name} {seconds:.1f} s" for name, seconds in zip(("local", "Ray", "Spark"), starts, strict=True))
    lines.append(f"| start-up, until the first task is done | {', '.join(texts)} |")
    stream = {metric: value(streamed, "local", metric) for metric in (
        "rows per second", "GiB of the largest worker", "rate of the second half / first half")}  # fmt: skip
    lines.append(
        f"| 20 million rows, two workers | {stream['rows per second']:,.0f} rows a second, "
        f"{stream['GiB of the largest worker']:.2f} GiB for the largest worker; the second half at "
        f"{stream['rate of the second half / first half']:.2f} of the first half's rate |"
    )
    lines.append(
        f"| bytes | {read:.0f} a row read, {written:.0f} written (all columns again, 13 attributions, base, output); "
        f"{value(labels, 'label folder', 'bytes per label', fast):,.0f} a label, free copies included |"
    )
    lines += [f"| choosing rows to label, one process | {chosen:,.0f} rows a second |", ""]
    lines += ["So a table of 13 features costs:", ""]
    lines += ["| rows | " + " | ".join(power(n) for n in ROWS) + " |", "|---|" + "---|" * len(ROWS)]
    hours = [n / core / 3600 for n in ROWS]
    bytes_in, bytes_out = ([n * each for n in ROWS] for each in (read, written))
    table = {
        f"labels of {LABEL_EVALUATIONS / 1e6:.0f} million evaluations, core-hours ({slow})": [
            number(LABEL_EVALUATIONS / evaluations[slow] / 3600) for _ in ROWS
        ],
        "choosing their rows: one process reads the features once": [duration(n / chosen) for n in ROWS],
        "explaining, core-hours": [number(hour) for hour in hours],
        "the model's own outputs, evaluations (none if a column has them)": [power(n) for n in ROWS],
        "bytes read, written": [f"{size(a)}, {size(b)}" for a, b in zip(bytes_in, bytes_out, strict=True)],
        f"files of {SLICE:,} rows; reading their footers first": [
            f"{-(-n // SLICE):,}; {duration(-(-n // SLICE) / FOOTERS)}" for n in ROWS
        ],
        f"explaining on {CORES:,} cores": [duration(max(hour * 3600 / CORES, 1)) for hour in hours],
        f"a store of {size(STORE)}/s, busy with {STORE / (core * (read + written)):,.0f} cores, needs": [
            duration((a + b) / STORE) for a, b in zip(bytes_in, bytes_out, strict=True)
        ],
    }
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in table.items()]
    return "\n".join(lines)


def power(n: int) -> str:
    return f"10^{len(str(n)) - 1}"


def number(x: float) -> str:
    return f"{x:,.0f}" if x >= 10 else f"{x:.2g}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.0f} PB"


def duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{number(seconds / length)} {unit}"
    return f"{max(1, round(seconds))} s"


def main() -> None:
    print(update(DOCS / "scaling.md", "measured", render()))


if __name__ == "__main__":
    main()
