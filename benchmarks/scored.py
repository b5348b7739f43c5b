"""The model of `benchmarks.distributed`, at a place from which every worker can import it."""

from __future__ import annotations

from benchmarks.speed import make_model

model = make_model()
