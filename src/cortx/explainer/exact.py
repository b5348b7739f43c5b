"""Exact values as explanations: what `TreeExplainer` and its portable form share. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cortx.errors import InputError
from cortx.explainer.calibration import Calibration
from cortx.explainer.reading import given_outputs
from cortx.explanation import Explanation

AGREES = 1e-3
"""How far given outputs may be from the trees' own, as a share of their spread, before they are another model's."""

Array = npt.NDArray[np.float64]


class OtherOutputs(InputError):
    """Outputs that came with rows are not those of the trees."""


@dataclass(frozen=True, eq=False)
class NoError(Calibration):
    """The bounds of exact values: zero at any confidence."""

    @staticmethod
    def of(n_outputs: int) -> NoError:
        zeros = np.zeros((1, n_outputs))
        return NoError(rows=zeros, bands=zeros, noise_risk=0.0, mean_l2=zeros[0], evaluations=0)

    @property
    def most_confident(self) -> float:
        return 0.9999

    def quantile(self, scores: Array, confidence: float) -> Array:
        self._level(confidence)
        return np.zeros(scores.shape[1])


@dataclass(frozen=True, eq=False)
class ExactTrees:
    """What turns exact values of trees into explanations."""

    players: tuple[str, ...]
    output: str
    output_names: tuple[str, ...] | None
    base_values: Array
    """v(none), (outputs,)."""
    scale: Array
    """(outputs,) how far outputs spread: what differences to given ones are judged by."""
    trees: int

    def explanation(self, values: Array, X: Any, outputs: Any, confidence: float | None, started: float) -> Explanation:
        """The explanation of rows X from their values, (rows, players, outputs).

        Given `outputs` must be the trees' own, base values plus values, or `OtherOutputs` says by how much they differ.
        `started` is the reading of `perf_counter` at which the work began.
        """
        own = self.base_values + values.sum(axis=1)
        if outputs is not None:
            self._compare(given_outputs(outputs, own.shape, self.output), own)
        one = own.shape[1] == 1
        values, own = (array[..., 0] if one else array for array in (values, own))
        bounded = confidence is not None
        return Explanation(
            values=values,
            base_values=np.broadcast_to(self.base_values[0] if one else self.base_values, own.shape).copy(),
            feature_names=self.players,
            data=X,
            output_names=self.output_names,
            error_std=np.zeros_like(values),
            outputs=own,
            row_evaluations=np.zeros(len(values), dtype=np.int64),
            seconds=perf_counter() - started,
            method="tree",
            lower_bounds=values.copy() if bounded else None,
            upper_bounds=values.copy() if bounded else None,
            error_bound=np.zeros_like(own) if bounded else None,
            confidence=confidence,
            refined=np.zeros(len(values), dtype=bool) if bounded else None,
            exact=np.ones(len(values), dtype=bool),
            tree_passes=len(values) * self.trees,
        )

    def _compare(self, given: Array, own: Array) -> None:
        off = np.abs(given - own)
        if (off > AGREES * self.scale).any():
            raise OtherOutputs(
                f"outputs= differ from the sum of this explainer's trees by up to {off.max():.4g}: they are another "
                "model's, or another output's. Leave them out, or make a TreeExplainer of that model"
            )


def spread(outputs: Array) -> Array:
    """How far outputs of typical rows, (rows, outputs), spread, (outputs,)."""
    scale: Array = np.ptp(outputs, axis=0) + 1e-3 * np.abs(outputs).max(axis=0)
    return scale
