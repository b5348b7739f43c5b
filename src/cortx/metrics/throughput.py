"""Speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cortx.errors import InputError


def throughput(explain: Callable[[Any], object], X: Any, repeats: int = 3) -> float:
    """Rows explained per second, N_test / t_total (paper Sec. 4.2): the best of `repeats` after one warm-up."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats must be a whole number of at least 1, got {repeats!r}")
    n_rows = len(X)
    if n_rows == 0:
        raise InputError("the table has no rows; give at least one")
    explain(X)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        explain(X)
        seconds.append(time.perf_counter() - start)
    return n_rows / max(min(seconds), time.get_clock_info("perf_counter").resolution)
