"""The axioms that hold by construction, as visible steps on predicted attributions."""

from __future__ import annotations

import torch
from torch import Tensor


def missingness(values: Tensor, active: Tensor) -> Tensor:
    """Players that equal their reference get exactly zero: (rows, players, outputs), (rows, players)."""
    return values * active[..., None]


def efficiency(values: Tensor, total: Tensor, active: Tensor) -> Tensor:
    """Additive efficient normalization (Ruiz et al. 1998): the gap total - sum(values) is spread evenly.

    `values` (rows, players, outputs), `total` (rows, outputs), `active` (rows, players): who shares the gap.
    """
    share = active.to(values.dtype)
    gap = total - (values * share[..., None]).sum(dim=1)
    return values + (gap / share.sum(dim=1, keepdim=True).clamp(min=1))[:, None, :] * share[..., None]


def exact_total(values: Tensor, total: Tensor, active: Tensor) -> Tensor:
    """`efficiency` once more in float64, so that sums agree to the last digits: float64 in, float64 out."""
    return efficiency(values.to(torch.float64), total.to(torch.float64), active)
