"""Heads read a latent explanation. A new head is one file and one line here."""

from __future__ import annotations

from cortx.registry import Registry
from cortx.training.heads.head import Head

HEADS: Registry[Head] = Registry(
    "head",
    {
        "attribution": "cortx.training.heads.attribution:AttributionHead",
        "ranking": "cortx.training.heads.ranking:RankingHead",
    },
)

__all__ = ["HEADS", "Head"]
