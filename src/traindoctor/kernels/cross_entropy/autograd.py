"""Cross-entropy as a differentiable function in eager mode, with as little Python as it takes.

For small vocabularies the host is the cost: what depends on shapes and options alone is decided once
(`Call`), and a step then allocates, launches and remembers, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from traindoctor.kernels.arguments import Settings, check_range, reduce_losses
from traindoctor.kernels.cross_entropy import chunked
from traindoctor.kernels.cross_entropy.reference import reference
from traindoctor.kernels.scale import scale_
from traindoctor.kernels.softmax_rows import accumulation_dtype

# (logits, targets) -> (loss, number of valid targets, None), or (loss, anything, the gradient for an
# upstream of 1) where that is made early
Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None, Tensor | None]]
# (upstream, number of valid targets if known, logits, targets) -> gradient in the logits' shape and dtype
Backward = Callable[[Tensor, Tensor | None, Tensor, Tensor], Tensor]


@final
class Call:
    """call(logits, targets): the loss of logits of one layout with one set of options."""

    def __init__(self, logits: Tensor, targets: Tensor, settings: Settings, early: bool) -> None:
        """`early`: the forward pass makes the gradient too, for an upstream gradient of 1."""
        self.settings = settings
        # On a GPU a check means waiting for it.
        check = settings.check_targets or not logits.is_cuda
        self.forward: Forward = partial(_forward_in_chunks, settings, early)
        self.backward: Backward = partial(_backward_in_chunks, settings)
        # (gradient for an upstream of 1, upstream) -> gradient, in place
        self.scale: Callable[[Tensor, Tensor], Tensor] = scale_
        if settings.impl == "triton":
            from traindoctor.kernels.cross_entropy.triton import LossKernel

            kernel = LossKernel(
                logits,
                targets,
                ignore_index=settings.ignore_index,
                reduction=settings.reduction,
                label_smoothing=settings.label_smoothing,
                z_loss=settings.z_loss,
                early=early,
            )
            self.forward, self.backward, self.scale = kernel.forward, kernel.backward, kernel.scale
        if check:
            self.forward = partial(_checked, settings, self.forward)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss, recorded for backward where gradients are wanted."""
        # One argument for what has no gradient: torch looks at each on both passes.
        if torch._C._are_functorch_transforms_active():
            return CrossEntropy.apply(logits, (targets, self))
        loss: Tensor = _apply(logits, (targets, self))
        return loss


def _checked(
    settings: Settings, forward: Forward, logits: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    check_range(targets, logits.shape[-1], settings.ignore_index)
    return forward(logits, targets)


def _forward_in_chunks(
    settings: Settings, early: bool, logits: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    num_valid = (targets != settings.ignore_index).sum(dtype=torch.float64)
    weights = torch.ones_like(num_valid) if early else None
    losses, gradient = _in_chunks(settings, logits, targets, num_valid, weights)
    loss = reduce_losses(losses.reshape(targets.shape), num_valid, settings.reduction)
    return loss.to(accumulation_dtype(logits.dtype)), num_valid, gradient


def _backward_in_chunks(
    settings: Settings,
    upstream: Tensor,
    num_valid: Tensor | None,
    logits: Tensor,
    targets: Tensor,
) -> Tensor:
    assert num_valid is not None
    _, gradient = _in_chunks(settings, logits, targets, num_valid, upstream.double())
    assert gradient is not None
    return gradient


def _in_chunks(
    settings: Settings,
    logits: Tensor,
    targets: Tensor,
    num_valid: Tensor,
    upstream: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Row losses and, with `upstream`, the gradient in the logits' shape."""
    if upstream is not None:
        if settings.reduction == "mean":
            upstream = upstream / num_valid
        upstream = upstream.expand(targets.shape).reshape(-1)
    losses, gradient = chunked.losses_and_gradient(
        logits.reshape(-1, logits.shape[-1]),
        targets.reshape(-1),
        upstream,
        ignore_index=settings.ignore_index,
        label_smoothing=settings.label_smoothing,
        z_loss=settings.z_loss,
    )
    return losses, None if gradient is None else gradient.reshape(logits.shape)


class CrossEntropy(torch.autograd.Function):
    """The loss; its gradient made in the forward pass where that saves a read of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, given: tuple[Tensor, Call]) -> Tensor:
        targets, call = given
        loss, num_valid, gradient = call.forward(logits, targets)
        ctx.save_for_backward(logits, targets)
        # Not a saved tensor: the first backward pass gives this buffer away.
        ctx.kept = (call, num_valid, gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, None]:
        call, num_valid, gradient = ctx.kept
        if torch.is_grad_enabled():
            logits, targets = ctx.saved_tensors
            return differentiable_gradient(upstream, logits, targets, call.settings), None
        if gradient is None:
            logits, targets = ctx.saved_tensors
            return call.backward(upstream, num_valid, logits, targets), None
        ctx.kept = (call, num_valid, None)
        return call.scale(gradient, upstream), None


# `Function.apply` without its wrapper for functorch, which takes a third of the time of a call.
_apply = super(torch.autograd.Function, CrossEntropy).apply


def differentiable_gradient(
    upstream: Tensor, logits: Tensor, targets: Tensor, settings: Settings
) -> Tensor | None:
    """The gradient as a graph of its own, for double backward (create_graph=True)."""
    if not logits.requires_grad:
        return None
    loss = reference(
        logits.to(accumulation_dtype(logits.dtype)),
        targets,
        ignore_index=settings.ignore_index,
        reduction=settings.reduction,
        label_smoothing=settings.label_smoothing,
        z_loss=settings.z_loss,
    )
    (gradient,) = torch.autograd.grad(loss, logits, upstream, create_graph=True)
    return gradient
