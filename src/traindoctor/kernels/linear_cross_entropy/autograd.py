"""Linear cross-entropy as a differentiable function, over one operator that torch.compile takes whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library
from torch.autograd.function import FunctionCtx

from traindoctor.kernels.arguments import Settings, check_range, reduce_losses
from traindoctor.kernels.linear_cross_entropy.chunked import Wanted, losses_and_gradients
from traindoctor.kernels.linear_cross_entropy.reference import reference
from traindoctor.kernels.scale import scale_
from traindoctor.kernels.softmax_rows import accumulation_dtype

_LIBRARY = library.Library("traindoctor", "FRAGMENT")
# operands: the dtype of the products; wants: gradients of (hidden, weight, bias); upstream: gradient
# of the loss, absent for 1. Gradients that are not wanted come back empty.
_LIBRARY.define(
    "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor? bias, Tensor targets, "
    "Tensor? upstream, ScalarType operands, bool[] wants, int ignore_index, str reduction, "
    "float label_smoothing, float z_loss, bool check_targets, str impl) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def run(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    upstream: Tensor | None,
    operands: torch.dtype,
    wants: list[bool],
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, gradient of hidden, of weight, of bias)."""
    if check_targets or not hidden.is_cuda:
        check_range(targets, weight.shape[0], ignore_index)
    rows = hidden.reshape(-1, hidden.shape[-1])
    flat = targets.reshape(-1)
    num_valid = (flat != ignore_index).sum()
    weights = None
    if any(wants):
        weights = torch.ones((), dtype=torch.float64, device=hidden.device)
        if upstream is not None:
            weights = upstream.double()
        if reduction == "mean":
            weights = weights / num_valid
        weights = weights.expand(targets.shape).reshape(-1).contiguous()
    if impl == "triton":
        from traindoctor.kernels.linear_cross_entropy.triton import (
            losses_and_gradients as compute,
        )
    else:
        compute = losses_and_gradients
    with torch.autocast(hidden.device.type, enabled=False):
        losses, gradients = compute(
            rows.to(operands),
            weight.to(operands),
            bias,
            flat,
            weights=weights,
            wanted=Wanted(
                hidden=hidden.dtype if wants[0] else None,
                weight=weight.dtype if wants[1] else None,
                bias=bias.dtype if bias is not None and wants[2] else None,
            ),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
    loss = reduce_losses(losses.reshape(targets.shape), num_valid, reduction)
    nothing = hidden.new_empty(0)
    return (
        loss.to(accumulation_dtype(hidden.dtype)),
        nothing if gradients.hidden is None else gradients.hidden.reshape(hidden.shape),
        weight.new_empty(0) if gradients.weight is None else gradients.weight,
        weight.new_empty(0) if gradients.bias is None else gradients.bias,
    )


def _run_fake(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    upstream: Tensor | None,
    operands: torch.dtype,
    wants: list[bool],
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    check_targets: bool,
    impl: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = targets.shape if reduction == "none" else ()
    return (
        hidden.new_empty(shape, dtype=accumulation_dtype(hidden.dtype)),
        hidden.new_empty(hidden.shape if wants[0] else 0),
        weight.new_empty(weight.shape if wants[1] else 0),
        bias.new_empty(bias.shape) if bias is not None and wants[2] else weight.new_empty(0),
    )


_LIBRARY.impl("linear_cross_entropy", run, "CompositeExplicitAutograd")
library.register_fake("traindoctor::linear_cross_entropy", _run_fake, lib=_LIBRARY)


class LinearCrossEntropy(torch.autograd.Function):
    """The fused loss. A scalar loss makes its gradients in the forward pass: 6NDV operations, not 8."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        operands: torch.dtype,
        settings: Settings,
        wants: tuple[bool, bool, bool],
    ) -> Tensor:
        early = settings.reduction != "none" and operands != torch.float16 and any(wants)
        loss, *gradients = _call(
            hidden,
            weight,
            bias,
            targets,
            None,
            operands,
            wants if early else (False, False, False),
            settings,
        )
        ctx.settings, ctx.operands, ctx.wants, ctx.early = settings, operands, wants, early
        if early and torch.compiler.is_compiling():
            ctx.save_for_backward(*gradients)
        else:
            ctx.save_for_backward(hidden, weight, bias, targets)
            # Not saved tensors: the first backward pass gives these buffers away.
            ctx.gradients = gradients if early else None
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        compiling = torch.compiler.is_compiling()
        if ctx.early and compiling:
            gradients = [(g * upstream).to(g.dtype) for g in ctx.saved_tensors]
        elif torch.is_grad_enabled() and not compiling:
            return (*_differentiable_gradients(ctx, upstream), None, None, None, None)
        elif ctx.early and ctx.gradients is not None:
            gradients = [scale_(g, upstream) if g.numel() else g for g in ctx.gradients]
            ctx.gradients = None
        else:
            hidden, weight, bias, targets = ctx.saved_tensors
            _, *gradients = _call(
                hidden, weight, bias, targets, upstream, ctx.operands, ctx.wants, ctx.settings
            )
        given = (g if want else None for g, want in zip(gradients, ctx.wants))
        return (*given, None, None, None, None)


def _call(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    upstream: Tensor | None,
    operands: torch.dtype,
    wants: tuple[bool, bool, bool],
    settings: Settings,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    compiling = torch.compiler.is_compiling()
    function = torch.ops.traindoctor.linear_cross_entropy if compiling else run
    result: tuple[Tensor, Tensor, Tensor, Tensor] = function(
        hidden,
        weight,
        bias,
        targets,
        upstream,
        operands,
        list(wants),
        settings.ignore_index,
        settings.reduction,
        settings.label_smoothing,
        settings.z_loss,
        settings.check_targets,
        settings.impl,
    )
    return result


def _differentiable_gradients(ctx: FunctionCtx, upstream: Tensor) -> list[Tensor | None]:
    """The gradients as a graph of their own, for double backward (create_graph=True)."""
    hidden, weight, bias, targets = ctx.saved_tensors  # type: ignore[attr-defined]
    settings: Settings = ctx.settings  # type: ignore[attr-defined]
    loss = reference(
        hidden,
        weight,
        targets,
        bias,
        ignore_index=settings.ignore_index,
        reduction=settings.reduction,
        label_smoothing=settings.label_smoothing,
        z_loss=settings.z_loss,
    )
    wants = ctx.wants  # type: ignore[attr-defined]
    wanted = [x for x, want in zip((hidden, weight, bias), wants) if want]
    found = iter(torch.autograd.grad(loss, wanted, upstream.to(loss.dtype), create_graph=True))
    return [next(found) if want else None for want in wants]
