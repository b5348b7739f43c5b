"""The models of `benchmarks.distributed`, at a place from which every worker can import them."""

from __future__ import annotations

from benchmarks.speed import make_model

model = make_model()
slow = make_model(width=512)
