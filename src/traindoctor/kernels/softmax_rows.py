"""The arithmetic of one softmax row that both loss operations share, written so that nothing cancels.

Legend: V classes, n rows of a chunk, t the target's column. For each row we keep three numbers:
the target's logit x_t, the largest logit m of the OTHER classes and S = sum over the others of
exp(x_j - m). From them follow, in float64 and without a subtraction of nearly equal numbers,

    loss  = log(1 + S exp(m - x_t))        (log1p: rows the model is sure of keep every digit)
    p_t-1 = -S exp(m - x_t) / (1 + S exp(m - x_t))

whereas lse - x_t and softmax - onehot lose both once the target leads by 16 nats in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Elements that `row_sums` turns into float64 at a time: 512 kB, which stay in a core's own cache.
SLICE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RowTerms:
    """What a row's loss and gradient are made of; each (n,), float64."""

    loss: Tensor
    """negative log-likelihood of the target"""
    lse: Tensor
    """log of the sum of all exponentials"""
    factor: Tensor
    """p_j = exp(x_j - m) * factor for every class but the target"""
    target_probability: Tensor
    target_gradient: Tensor
    """p_t - 1"""


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays; everything shorter is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def row_sums(values: Tensor) -> Tensor:
    """Row sums, every term added in float64.

    torch's float32 sum of a row is off by up to 4e-7 (x86), whatever its length: four units in the last place
    of the loss. The exponentials are within 0.6 units of theirs, and the largest is 1 exactly.
    """
    if values.device.type != "cpu":
        return values.sum(1, dtype=torch.float64)
    slices = values.split(max(1, SLICE // values.shape[1]))
    return torch.cat([part.sum(1, dtype=torch.float64) for part in slices])


def row_terms(target_logit: Tensor, others_max: Tensor, others_sum: Tensor) -> RowTerms:
    """Loss and gradient factors from (x_t, m, S); NaN where torch's softmax gives NaN."""
    lead = target_logit.double() - others_max.double()
    # inf - inf is NaN in torch's softmax; here the target's inf would look like a perfect row.
    lead = lead.masked_fill(target_logit == torch.inf, torch.nan)
    S = others_sum.double()
    leads = lead >= 0
    shrink = torch.exp(-lead.abs())
    others = torch.where(leads, S * shrink, S)
    target = torch.where(leads, 1.0, shrink)
    total = others + target
    loss = torch.where(leads, torch.log1p(others), -lead + torch.log(total))
    return RowTerms(
        loss=loss,
        lse=torch.maximum(target_logit, others_max).double() + torch.log(total),
        factor=torch.where(leads, shrink, 1.0) / total,
        target_probability=target / total,
        target_gradient=-others / total,
    )


def exponentials_(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrite logits x (n, V) by exp(x_j - m), 0 at the target; give (x_t, m, S)."""
    column = targets.unsqueeze(1)
    target_logit = x.gather(1, column)  # (n, 1)
    x.scatter_(1, column, -torch.inf)
    others_max = x.amax(1, keepdim=True)
    # A row whose other classes are all masked out: x_t stands in, so that -inf - m is not NaN.
    others_max = torch.where(others_max == -torch.inf, target_logit, others_max)
    x.sub_(others_max).exp_()
    return target_logit.squeeze(1), others_max.squeeze(1), row_sums(x)


def rows_(
    x: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """Losses (n,) of logits x (n, V) for valid targets, in float64; x is overwritten.

    With `weights` (n,) x becomes the gradient of sum(weights * losses); without, it is scratch.
    """
    V = x.shape[1]
    column = targets.unsqueeze(1)
    # sum over all classes of x_j, taken about the first logit: an offset common to the row is harmless
    if label_smoothing:
        origin = x[:, :1].nan_to_num(0.0, 0.0, 0.0)
        spread = row_sums(x - origin)
    target_logit, others_max, others_sum = exponentials_(x, targets)
    terms = row_terms(target_logit, others_max, others_sum)
    loss = terms.loss
    if label_smoothing:
        uniform = (terms.lse - origin.squeeze(1).double()) - spread / V
        loss = (1 - label_smoothing) * loss + label_smoothing * uniform
    if z_loss:
        loss = loss + z_loss * terms.lse**2
    if weights is not None:
        pull = 1 + 2 * z_loss * terms.lse  # d(loss)/d(lse)
        weights = weights.double()
        x.mul_((terms.factor * pull * weights).to(x.dtype).unsqueeze(1))
        share = label_smoothing / V
        if label_smoothing:
            x.sub_((share * weights).to(x.dtype).unsqueeze(1))
        at_target = terms.target_gradient + (pull - 1) * terms.target_probability
        at_target = (at_target + label_smoothing - share) * weights
        x.scatter_(1, column, at_target.to(x.dtype).unsqueeze(1))
    return loss
