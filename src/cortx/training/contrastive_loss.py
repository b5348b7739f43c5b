"""The explanation contrastive loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from cortx.training.parallel import ALONE, Processes

Similarity = Literal["cosine", "dot"]


def contrastive_loss(
    anchors: Tensor,
    positives: Tensor,
    temperature: float,
    similarity: Similarity = "cosine",
    together: Processes = ALONE,
    whole: int | None = None,
) -> Tensor:
    """InfoNCE with in-batch negatives (paper Eq. 5): a row's positive against the other rows' anchors.

    `anchors` and `positives` are latent explanations, (rows, latent). The paper writes a dot product; its
    published code normalises first ("cosine"), without which the loss diverges at the paper's temperatures.

    With several processes the rows are this one's share of a batch of `whole` rows. Negatives are the anchors of all,
    and the losses of all add up to that of the batch, as do their gradients.
    """
    if similarity == "cosine":
        anchors, positives = F.normalize(anchors, dim=1), F.normalize(positives, dim=1)
    whole = len(anchors) if whole is None else whole
    logits = anchors @ together.gather(anchors, whole).t() / temperature  # (rows, whole)
    match = (anchors * positives).sum(dim=1) / temperature
    start = together.share(whole).start
    logits = torch.diagonal_scatter(logits, match, offset=start)
    own = torch.arange(start, start + len(anchors), device=anchors.device)
    if not together.several:
        return F.cross_entropy(logits, own)
    return F.cross_entropy(logits, own, reduction="sum") / whole
