"""How close, how well ordered, how faithful and how fast explanations are: any metric compares any two methods."""

from cortx.metrics.error import l2_distance, relative_l2, squared_l2
from cortx.metrics.faithfulness import faithfulness, single_drops
from cortx.metrics.ranking import kendall_tau, rank_accuracy, top_k_agreement
from cortx.metrics.summary import summary
from cortx.metrics.throughput import throughput

__all__ = [
    "faithfulness",
    "kendall_tau",
    "l2_distance",
    "rank_accuracy",
    "relative_l2",
    "single_drops",
    "squared_l2",
    "summary",
    "throughput",
    "top_k_agreement",
]
