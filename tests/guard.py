"""How long tests wait for what must come."""

from __future__ import annotations

HANG = 3_600.0
"""Seconds after which a test takes something for hung. No test judges by the clock: durations belong to benchmarks."""
