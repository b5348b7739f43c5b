"""Recognising a model by its outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# The same model gives the same outputs up to float rounding; another one differs by far more of their spread.
FINGERPRINT_TOLERANCE = 1e-3
REDUCED_TOLERANCE = 2e-2
"""In reduced precision, where another choice of kernels on the same GPU already changes the third digit."""


@dataclass(frozen=True)
class ModelDifference:
    """How far a model's outputs are from those it gave for the same rows before, in the output that differs most."""

    largest: float
    spread: float
    tolerance: float = FINGERPRINT_TOLERANCE

    @property
    def same(self) -> bool:
        return self.largest <= self.tolerance * self.spread


def difference(now: Array, before: Array, precision: str | None = None) -> ModelDifference:
    """Outputs of equal shape, (rows, outputs), in the game's precision; each is measured by its own spread."""
    spreads, differences = np.maximum(np.ptp(before, axis=0), 1e-6), np.abs(now - before).max(axis=0)
    output = int((differences / spreads).argmax())
    tolerance = FINGERPRINT_TOLERANCE if precision is None else REDUCED_TOLERANCE
    return ModelDifference(float(differences[output]), float(spreads[output]), tolerance)
