"""Cross-entropy for torch.compile: two operators that a traced graph holds as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, library

from traindoctor.kernels.arguments import Settings, checked_settings
from traindoctor.kernels.cross_entropy.autograd import Call
from traindoctor.kernels.softmax_rows import accumulation_dtype

_LIBRARY = library.Library("traindoctor", "FRAGMENT")
_OPTIONS = (
    "int ignore_index, str reduction, float label_smoothing, float z_loss, bool check_targets, "
    "str impl"
)
_LIBRARY.define(
    f"cross_entropy_forward(Tensor logits, Tensor targets, bool early, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "cross_entropy_backward(Tensor upstream, Tensor num_valid, Tensor logits, Tensor targets, "
    f"{_OPTIONS}) -> Tensor"
)


def _options(settings: Settings) -> tuple[int, str, float, float, bool, str]:
    return (
        settings.ignore_index,
        settings.reduction,
        settings.label_smoothing,
        settings.z_loss,
        settings.check_targets,
        settings.impl,
    )


def _forward(
    logits: Tensor, targets: Tensor, early: bool, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, number of valid targets, nothing), or (loss, nothing, gradient for an upstream of 1) if `early`."""
    call = Call(logits, targets, checked_settings(*options), early)
    loss, num_valid, gradient = call.forward(logits, targets)
    nothing = _nothing(logits)
    if gradient is not None:
        return loss, nothing, gradient
    assert num_valid is not None
    return loss, num_valid, nothing


def _nothing(logits: Tensor) -> Tensor:
    return logits.new_empty(0)


def _backward(
    upstream: Tensor, num_valid: Tensor, logits: Tensor, targets: Tensor, *options: Any
) -> Tensor:
    call = Call(logits, targets, checked_settings(*options), early=False)
    return call.backward(upstream, num_valid, logits, targets)


def _gradient_like(logits: Tensor, impl: str) -> Tensor:
    """Room for the gradient: contiguous, or for the kernel with the rows' own strides."""
    if impl == "triton":
        from traindoctor.kernels.cross_entropy.layout import gradient_like

        return gradient_like(logits)
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _forward_fake(
    logits: Tensor, targets: Tensor, early: bool, *options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    settings = checked_settings(*options)
    shape = targets.shape if settings.reduction == "none" else ()
    loss = logits.new_empty(shape, dtype=accumulation_dtype(logits.dtype))
    if early:
        return loss, _nothing(logits), _gradient_like(logits, settings.impl)
    return loss, targets.new_empty((), dtype=torch.float64), _nothing(logits)


def _backward_fake(
    upstream: Tensor, num_valid: Tensor, logits: Tensor, targets: Tensor, *options: Any
) -> Tensor:
    return _gradient_like(logits, checked_settings(*options).impl)


_LIBRARY.impl("cross_entropy_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("cross_entropy_backward", _backward, "CompositeExplicitAutograd")
library.register_fake("traindoctor::cross_entropy_forward", _forward_fake, lib=_LIBRARY)
library.register_fake("traindoctor::cross_entropy_backward", _backward_fake, lib=_LIBRARY)


class TracedCrossEntropy(torch.autograd.Function):
    """The loss as a graph holds it. Buffers are the compiler's: nothing is written in place."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, settings: Settings, early: bool
    ) -> Tensor:
        loss, num_valid, gradient = torch.ops.traindoctor.cross_entropy_forward(
            logits, targets, early, *_options(settings)
        )
        ctx.settings = settings
        ctx.early = early
        if early:
            ctx.save_for_backward(gradient)
        else:
            ctx.save_for_backward(logits, targets, num_valid)
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.early:
            (gradient,) = ctx.saved_tensors
            return (gradient * upstream).to(gradient.dtype), None, None, None
        logits, targets, num_valid = ctx.saved_tensors
        gradient = torch.ops.traindoctor.cross_entropy_backward(
            upstream, num_valid, logits, targets, *_options(ctx.settings)
        )
        return gradient, None, None, None
