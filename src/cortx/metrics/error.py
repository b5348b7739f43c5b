"""Distances between attributions."""

from __future__ import annotations

import numpy as np

from cortx.metrics.inputs import Array, Attributions, as_pair, finite_values, ratio


def squared_l2(predicted: Attributions, truth: Attributions) -> Array:
    """The squared distance of each row, sum_j (phi_j - phi_hat_j)^2: (rows,), or (rows, outputs).

    The authors' published code reports its mean over rows under the name of l2-error.
    """
    first, second = as_pair(predicted, truth)
    difference = finite_values(first, "predicted") - finite_values(second, "truth")
    return np.asarray(np.square(difference).sum(axis=1))


def l2_distance(predicted: Attributions, truth: Attributions) -> Array:
    """The l2-error of each row (paper Sec. 4.2), sqrt(sum_j (phi_j - phi_hat_j)^2): (rows,), or (rows, outputs)."""
    return np.sqrt(squared_l2(predicted, truth))


def relative_l2(predicted: Attributions, truth: Attributions) -> Array:
    """The distance over the norm of the truth, (rows,) or (rows, outputs); NaN where that norm is zero."""
    _, second = as_pair(predicted, truth)
    distance = l2_distance(predicted, truth)
    norm = np.sqrt(np.square(finite_values(second, "truth")).sum(axis=1))
    return ratio(distance, norm, undefined=np.nan)
