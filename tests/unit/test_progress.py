"""The bar of long work, with a clock that tests set."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from cortx.progress import make_bar


@pytest.mark.parametrize("seconds", [0.01, 20.0, 300.0, 1200.0])
def test_the_time_left_is_estimated_however_long_a_step_takes(seconds: float) -> None:
    now = 0.0
    bar = make_bar(Console(file=io.StringIO()), clock=lambda: now)
    task = bar.add_task("explaining", total=100, note="")
    for _ in range(8):
        now += seconds
        bar.update(task, advance=5, note="")
    (shown,) = bar.tasks
    assert shown.speed == pytest.approx(5 / seconds)
    assert shown.time_remaining == pytest.approx(12 * seconds, abs=1)  # rich rounds up to seconds
