"""The definition of the loss: what every other implementation is tested against."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits (..., V) and targets (...), in the logits' dtype, by autograd alone."""
    valid = targets != ignore_index
    classes = torch.where(valid, targets, 0).long()
    lse = torch.logsumexp(logits, -1)  # (...)
    nll = lse - logits.gather(-1, classes.unsqueeze(-1)).squeeze(-1)
    loss = (1 - label_smoothing) * nll + z_loss * lse**2
    if label_smoothing:
        loss = loss + label_smoothing * (lse.unsqueeze(-1) - logits).mean(-1)
    loss = torch.where(valid, loss, 0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / valid.sum()
