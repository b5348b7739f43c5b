"""How close, how well ordered, how faithful and how fast explanations are: any metric compares any two methods."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cortx.metrics.error import l2_distance, relative_l2, squared_l2
from cortx.metrics.faithfulness import faithfulness, single_drops
from cortx.metrics.ranking import kendall_tau, rank_accuracy, top_k_agreement
from cortx.metrics.summary import summary
from cortx.metrics.throughput import throughput

if TYPE_CHECKING:
    from cortx.metrics.inclusion import bootstrap, importance_order, masking_curves, reference_fill
    from cortx.metrics.road import road_fill

# Imported on first use: metrics of images need torch, the others only numpy.
_LAZY = {
    "bootstrap": "inclusion",
    "importance_order": "inclusion",
    "masking_curves": "inclusion",
    "reference_fill": "inclusion",
    "road_fill": "road",
}

__all__ = [
    "bootstrap",
    "faithfulness",
    "importance_order",
    "kendall_tau",
    "l2_distance",
    "masking_curves",
    "rank_accuracy",
    "reference_fill",
    "relative_l2",
    "road_fill",
    "single_drops",
    "squared_l2",
    "summary",
    "throughput",
    "top_k_agreement",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
