"""The definition of the loss: what every other implementation is tested against."""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.softmax_rows import accumulation_dtype


def reference(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits (..., V) and targets (...), in float64 by autograd alone, rounded once.

    The loss is float32, or float64 for float64 logits.
    """
    valid = targets != ignore_index
    column = torch.where(valid, targets, 0).long().unsqueeze(-1)
    x = logits.double()
    lse = torch.logsumexp(x, -1)  # (...)
    target = x.gather(-1, column).squeeze(-1)
    # lse - target cancels where the target leads: by 40 nats nothing is left of the loss even in float64.
    leads = (target >= x.amax(-1)) & target.isfinite()
    ahead = torch.where(leads, target, torch.inf).unsqueeze(-1)
    others = torch.exp(x - ahead).scatter(-1, column, 0).sum(-1)  # sum of p_j / p_target
    nll = torch.where(leads, torch.log1p(others), lse - target)
    loss = (1 - label_smoothing) * nll + z_loss * lse**2
    if label_smoothing:
        loss = loss + label_smoothing * (lse.unsqueeze(-1) - x).mean(-1)
    loss = torch.where(valid, loss, 0)
    if reduction != "none":
        loss = loss.sum() if reduction == "sum" else loss.sum() / valid.sum()
    return loss.to(accumulation_dtype(logits.dtype))
