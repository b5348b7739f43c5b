"""The usual metrics at once."""

from __future__ import annotations

import numpy as np

from cortx.errors import InputError
from cortx.metrics.error import l2_distance, relative_l2, squared_l2
from cortx.metrics.inputs import Array, Attributions, as_pair
from cortx.metrics.ranking import kendall_tau, rank_accuracy, top_k_agreement


def summary(predicted: Attributions, truth: Attributions) -> dict[str, float]:
    """Means over rows (and outputs) of the distances, Rank ACC, Kendall's tau and top-3 agreement by magnitude.

    ``relative_l2`` and ``kendall_tau`` are averaged where they are defined, and NaN where they never are.
    """
    first, _ = as_pair(predicted, truth)
    if len(first) == 0:
        raise InputError("predicted and truth have no rows; give at least one")
    return {
        "l2": _mean(l2_distance(predicted, truth)),
        "squared_l2": _mean(squared_l2(predicted, truth)),
        "relative_l2": _mean(relative_l2(predicted, truth)),
        "rank_accuracy": _mean(rank_accuracy(predicted, truth)),
        "kendall_tau": _mean(kendall_tau(predicted, truth)),
        "top_3_agreement": _mean(top_k_agreement(predicted, truth, min(3, first.shape[1]))),
    }


def _mean(scores: Array) -> float:
    defined = scores[~np.isnan(scores)]
    return float(defined.mean()) if defined.size else float("nan")
