"""How much faster an explainer is than a method that asks the model for every row, at the same error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from cortx.paper.grid import PEERS, SAMPLING, Record, number, select


def equal_error(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One record for each sampling method, setting and device: metric "times_faster" of experiment "equal-error".

    The speed of a sampling method at our l2 lies between those of the two budgets around it, on a line in logarithms.
    Where no such line can be drawn (it never comes so close, or is exact from some budget on) the faster of its
    nearest points counts, and the fact `bound` is "at least"; where its cheapest budget is already closer, that one
    counts, and `bound` is "at most". Our own estimators are timed as in "throughput", the peers as in "permutations".
    """
    found = []
    for data, setting, device in _places(records):
        here = [
            r for r in select(records, data=data, setting=setting) if r.get("device") == device or r["metric"] == "l2"
        ]
        ours = select(here, experiment="throughput", method="cortx", at=None)
        error = [number(record) for record in ours if record["metric"] == "l2"]
        speed = [record for record in ours if record["metric"] == "rows_per_second"]
        if not error or not speed:
            continue
        for method in (*SAMPLING, *PEERS):
            points = sorted(_points(here, method), reverse=True)
            if not points:
                continue
            rival, bound = _speed_at(error[0], points)
            facts = {
                key: speed[0][key] for key in ("seeds", "hardware", "versions", "target", "evaluations", "seconds")
            }
            found.append(
                {
                    "experiment": "equal-error", "data": data, "setting": setting, "method": method, "at": None,
                    "metric": "times_faster", "value": number(speed[0]) / rival, "spread": None, "device": device,
                    "bound": bound, "l2": error[0], "rows_per_second": rival, **facts,
                }
            )  # fmt: skip
    return found


def _places(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    timed = [record for record in records if record["metric"] == "rows_per_second"]
    return list(dict.fromkeys((record["data"], record["setting"], record["device"]) for record in timed))


def _points(records: Sequence[Record], method: str) -> Iterator[tuple[float, float]]:
    """(l2, rows per second) of each budget."""
    experiment, time = ("throughput", "rows_per_second") if method in SAMPLING else ("permutations", "seconds_per_row")
    here = select(records, experiment=experiment, method=method)
    errors = {record["at"]: number(record) for record in here if record["metric"] == "l2"}
    for record in here:
        error = errors.get(record["at"], math.nan)
        if record["metric"] == time and math.isfinite(number(record)) and math.isfinite(error):
            yield error, number(record) if time == "rows_per_second" else 1 / number(record)


def _speed_at(error: float, points: Sequence[tuple[float, float]]) -> tuple[float, str]:
    """The speed at an error, from points by falling error; and which bound of our advantage it gives, if any."""
    if points[0][0] <= error:
        return points[0][1], "at most"
    for (worse, fast), (better, slow) in pairwise(points):
        if better <= error:
            if better <= 0 or better == worse:
                return max(fast, slow), "at least"
            along = math.log(worse / error) / math.log(worse / better)
            return math.exp((1 - along) * math.log(fast) + along * math.log(slow)), ""
    return points[-1][1], "at least"
