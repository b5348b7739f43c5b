"""The explanation contrastive loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Similarity = Literal["cosine", "dot"]


def contrastive_loss(
    anchors: Tensor, positives: Tensor, temperature: float, similarity: Similarity = "cosine"
) -> Tensor:
    """InfoNCE with in-batch negatives (paper Eq. 5): a row's positive against the other rows' anchors.

    `anchors` and `positives` are latent explanations, (rows, latent). The paper writes a dot product; its
    published code normalises first ("cosine"), without which the loss diverges at the paper's temperatures.
    """
    if similarity == "cosine":
        anchors, positives = F.normalize(anchors, dim=1), F.normalize(positives, dim=1)
    logits = anchors @ anchors.t() / temperature
    match = (anchors * positives).sum(dim=1) / temperature
    logits = torch.diagonal_scatter(logits, match)
    return F.cross_entropy(logits, torch.arange(len(anchors), device=anchors.device))
