"""Cross-entropy on a GPU: what is allocated and launched for logits of one layout.

kernel = LossKernel(logits, targets, ...)       # once for a shape and its options
loss, num_valid, gradient = kernel.forward(logits, targets)
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy.layout import Plan, gradient_like, readable
from traindoctor.kernels.cross_entropy.rows import rows
from traindoctor.kernels.device.arithmetic import PER_ROW, SCALAR
from traindoctor.kernels.device.scale import scaling, span_of


class LossKernel:
    """The loss of logits of one layout with one set of options: made once, then only addresses change."""

    def __init__(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        z_loss: float,
        early: bool,
        cut: Plan | None = None,
    ) -> None:
        """`early`: the forward pass writes the gradient too, for an upstream gradient of 1."""
        like = readable(logits)
        self._copies = like is not logits or not targets.is_contiguous()
        self._early = early
        self._ignore_index = ignore_index
        self._mean = reduction == "mean"
        self._shape = targets.shape if reduction == "none" else None
        self._loss, self._num_valid = _scalars(logits.device)
        dtypes = (like.dtype, targets.dtype, torch.float32, torch.float32)
        place = (tuple(like.shape), tuple(like.stride()), dtypes, like.device)
        options = {
            "mean": self._mean,
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "cut": cut,
        }
        total = self._shape is None
        self._forward = rows(
            *place,
            gradient=early,
            losses=not total,
            total=total,
            count=early and self._mean,
            **options,
        )
        self._backward = rows(
            *place, gradient=True, weights=SCALAR if total else PER_ROW, **options
        )
        self._empty = bool(logits.numel() == 0)
        self._dense = logits.is_contiguous()
        self._scale = scaling(1 if self._empty else span_of(like), like.device)

    def forward(
        self, logits: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(loss in float32, number of valid targets in float64, None), or (loss, None, gradient) if `early`."""
        if self._shape is None:
            loss = torch.empty_like(self._loss)
        else:
            loss = torch.empty(self._shape, dtype=torch.float32, device=logits.device)
        if self._empty:
            loss.fill_(torch.nan if self._mean else 0)
        gradient = num_valid = None
        if self._early:
            gradient = torch.empty_like(logits) if self._dense else gradient_like(logits)
        else:
            num_valid = torch.empty_like(self._num_valid)
        if self._copies:
            logits, targets = readable(logits), targets.contiguous()
        if self._shape is None:
            self._forward(logits, targets, num_valid, gradient=gradient, total=loss)
        else:
            self._forward(logits, targets, num_valid, losses=loss)
        return loss, num_valid, gradient

    def backward(
        self, upstream: Tensor, num_valid: Tensor | None, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The gradient, from the logits again."""
        gradient = gradient_like(logits)
        if self._copies:
            logits, targets = readable(logits), targets.contiguous()
        if num_valid is None:
            num_valid = (targets != self._ignore_index).sum(dtype=torch.float64)
        if self._shape is not None:
            upstream = upstream.contiguous()
        self._backward(logits, targets, num_valid, gradient=gradient, weights=upstream)
        return gradient

    def scale(self, gradient: Tensor, upstream: Tensor) -> Tensor:
        """The gradient of an early forward pass times `upstream`, in place; the host does not look at it."""
        if not self._empty:
            self._scale(gradient, upstream)
        return gradient


@cache
def _scalars(device: torch.device) -> tuple[Tensor, Tensor]:
    """Scalars that others are made like: the quickest way to ask torch for one."""
    return (
        torch.empty((), dtype=torch.float32, device=device),
        torch.empty((), dtype=torch.float64, device=device),
    )
