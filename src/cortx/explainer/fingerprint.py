"""Recognising a model by its outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# The same model gives the same outputs up to float rounding; another one differs by far more of their spread.
FINGERPRINT_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ModelDifference:
    """How far a model's outputs are from those it gave for the same rows before, in the output that differs most."""

    largest: float
    spread: float

    @property
    def same(self) -> bool:
        return self.largest <= FINGERPRINT_TOLERANCE * self.spread


def difference(now: Array, before: Array) -> ModelDifference:
    """Outputs of equal shape, (rows, outputs); each output is measured by its own spread."""
    spreads, differences = np.maximum(np.ptp(before, axis=0), 1e-6), np.abs(now - before).max(axis=0)
    output = int((differences / spreads).argmax())
    return ModelDifference(float(differences[output]), float(spreads[output]))
