"""Cross-entropy as a differentiable function, over operators that torch.compile takes as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from traindoctor.kernels.arguments import Settings, check_range, reduce_losses
from traindoctor.kernels.cross_entropy import chunked
from traindoctor.kernels.cross_entropy.reference import reference
from traindoctor.kernels.softmax_rows import accumulation_dtype

_LIBRARY = torch.library.Library("traindoctor", "FRAGMENT")
_OPTIONS = "int ignore_index, str reduction, float label_smoothing, float z_loss"
_LIBRARY.define(
    f"cross_entropy_forward(Tensor logits, Tensor targets, {_OPTIONS}, bool check_targets, "
    "bool early, str impl) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"cross_entropy_backward(Tensor upstream, Tensor num_valid, Tensor logits, Tensor targets, "
    f"{_OPTIONS}, str impl) -> Tensor"
)


def forward(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    early: bool,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(loss, number of valid targets, gradient for an upstream of 1 if `early`)."""
    if check_targets or not logits.is_cuda:
        check_range(targets, logits.shape[-1], ignore_index)
    if impl == "triton":
        from traindoctor.kernels.cross_entropy import triton as kernel

        return kernel.forward(
            logits,
            targets,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            early=early,
        )
    V = logits.shape[-1]
    losses = chunked.forward(
        logits.reshape(-1, V),
        targets.reshape(-1),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    ).reshape(targets.shape)
    num_valid = (targets != ignore_index).sum(dtype=torch.float64)
    loss = reduce_losses(losses, num_valid, reduction).to(accumulation_dtype(logits.dtype))
    return loss, num_valid, None


def backward(
    upstream: Tensor,
    num_valid: Tensor,
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    impl: str,
) -> Tensor:
    """Gradient in the logits' shape and dtype for the gradient `upstream` of the loss."""
    options = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
    }
    if impl == "triton":
        from traindoctor.kernels.cross_entropy import triton as kernel

        return kernel.backward(upstream, num_valid, logits, targets, reduction=reduction, **options)
    weights = upstream.double()
    if reduction == "mean":
        weights = weights / num_valid
    weights = weights.expand(targets.shape).reshape(-1)
    V = logits.shape[-1]
    gradient = chunked.backward(logits.reshape(-1, V), targets.reshape(-1), weights, **options)
    return gradient.reshape(logits.shape)


def gradient_like(logits: Tensor, impl: str) -> Tensor:
    """Room for the gradient: contiguous, or for the kernel with the rows' own strides."""
    if impl == "triton":
        from traindoctor.kernels.cross_entropy.triton import gradient_like as strided

        return strided(logits)
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _forward_fake(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    early: bool,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor]:
    shape = targets.shape if reduction == "none" else ()
    loss = logits.new_empty(shape, dtype=accumulation_dtype(logits.dtype))
    gradient = gradient_like(logits, impl) if early else logits.new_empty(0)
    return loss, targets.new_empty((), dtype=torch.float64), gradient


def _backward_fake(
    upstream: Tensor,
    num_valid: Tensor,
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    impl: str,
) -> Tensor:
    return gradient_like(logits, impl)


def _forward_operator(logits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """An operator's results are tensors: an empty one for no gradient."""
    loss, num_valid, gradient = forward(logits, *arguments)
    return loss, num_valid, logits.new_empty(0) if gradient is None else gradient


_LIBRARY.impl("cross_entropy_forward", _forward_operator, "CompositeExplicitAutograd")
_LIBRARY.impl("cross_entropy_backward", backward, "CompositeExplicitAutograd")
torch.library.register_fake("traindoctor::cross_entropy_forward", _forward_fake, lib=_LIBRARY)
torch.library.register_fake("traindoctor::cross_entropy_backward", _backward_fake, lib=_LIBRARY)


class CrossEntropy(torch.autograd.Function):
    """The loss; its gradient made in the forward pass where that saves a read of the logits."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, logits: Tensor, targets: Tensor, settings: Settings, early: bool
    ) -> Tensor:
        # A traced graph holds the operator; eager calls skip the dispatcher's detour.
        compiling = torch.compiler.is_compiling()
        run = torch.ops.traindoctor.cross_entropy_forward if compiling else forward
        loss, num_valid, gradient = run(
            logits,
            targets,
            settings.ignore_index,
            settings.reduction,
            settings.label_smoothing,
            settings.z_loss,
            settings.check_targets,
            early,
            settings.impl,
        )
        ctx.settings = settings
        ctx.early = early
        if early and compiling:
            ctx.save_for_backward(logits, targets, num_valid, gradient)
        else:
            ctx.save_for_backward(logits, targets, num_valid)
            # Not a saved tensor: the first backward pass gives this buffer away.
            ctx.gradient = gradient if early else None
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        compiling = torch.compiler.is_compiling()
        if compiling and ctx.early:
            gradient = ctx.saved_tensors[3]
            return (gradient * upstream).to(gradient.dtype), None, None, None
        logits, targets, num_valid = ctx.saved_tensors[:3]
        settings = ctx.settings
        if torch.is_grad_enabled() and not compiling:
            return _differentiable_gradient(upstream, logits, targets, settings), None, None, None
        if ctx.gradient is not None:
            from traindoctor.kernels.scale import scale_

            gradient, ctx.gradient = ctx.gradient, None
            return scale_(gradient, upstream), None, None, None
        run = torch.ops.traindoctor.cross_entropy_backward if compiling else backward
        gradient = run(
            upstream,
            num_valid,
            logits,
            targets,
            settings.ignore_index,
            settings.reduction,
            settings.label_smoothing,
            settings.z_loss,
            settings.impl,
        )
        return gradient, None, None, None


def _differentiable_gradient(
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
