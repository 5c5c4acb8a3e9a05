"""Softmax cross-entropy and its gradient, as far as float32 can give it, for any vocabulary.

    loss = traindoctor.cross_entropy(logits, targets)   # (N, V) or (B, T, V), and (N,) or (B, T)

Three implementations behind one name: `reference` (the definition), `torch` (portable, chunked),
`triton` (GPU). `auto` takes triton on a GPU and torch elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from traindoctor.kernels.arguments import (
    Settings,
    check_index_targets,
    check_range,
    checked_settings,
    choose,
)
from traindoctor.kernels.cross_entropy.reference import reference

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    check_targets: bool = False,
    impl: str = "auto",
) -> Tensor:
    """loss = cross_entropy(logits, targets): F.cross_entropy with the classes on the LAST axis.

    logits (..., V) in float64, float32, bfloat16 or float16 and integer targets (...). The loss is
    float32 (float64 for float64 logits), also where the logits are shorter. "mean" divides by the
    number of targets that are not `ignore_index`, counted on the device; when all are ignored the
    mean is NaN and the gradient 0, as in torch. An ignored row has gradient 0 whatever it holds.
    `z_loss` adds z_loss * logsumexp(logits)**2 per row. A target out of range is an IndexError on
    the CPU; on a GPU it makes the loss NaN, or with `check_targets=True` is the same IndexError at
    the price of waiting for the device.
    """
    compiling = torch.compiler.is_compiling()
    key = None
    if not compiling:
        # All that decides how the loss is computed: a training loop asks for the same at each step.
        key = (
            logits.shape,
            logits.stride(),
            logits.dtype,
            logits.device,
            logits.requires_grad and torch.is_grad_enabled(),
            targets.shape,
            targets.stride(),
            targets.dtype,
            ignore_index,
            reduction,
            label_smoothing,
            z_loss,
            check_targets,
            impl,
        )
        call = _CALLS.get(key)
        if call is not None:
            return call(logits, targets)
    settings = checked_settings(
        ignore_index,
        reduction,
        label_smoothing,
        z_loss,
        check_targets,
        choose(impl, logits, KERNEL_DTYPES),
    )
    _check_logits(logits)
    check_index_targets(targets, logits.shape[:-1], "logits")
    if settings.impl == "reference":
        check_range(targets, logits.shape[-1], ignore_index)
        return reference(
            logits,
            targets,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
    wanted = torch.is_grad_enabled() and logits.requires_grad
    early = wanted and _gradient_in_forward(logits, settings)
    if compiling:
        from traindoctor.kernels.cross_entropy.operators import TracedCrossEntropy

        return TracedCrossEntropy.apply(logits, targets, settings, early)
    from traindoctor.kernels.cross_entropy.autograd import Call

    if len(_CALLS) >= MOST_CALLS:
        _CALLS.clear()
    _CALLS[key] = call = Call(logits, targets, settings, early)
    return call(logits, targets)


# What was decided for the layouts and options seen so far. Bounded, for loops of ever new shapes.
_CALLS: dict[tuple[Any, ...], Callable[[Tensor, Tensor], Tensor]] = {}
MOST_CALLS = 1024


def _check_logits(logits: Tensor) -> None:
    if logits.dim() == 0:
        raise ValueError("Expected logits with a class axis, got a scalar")
    if not logits.is_floating_point():
        raise RuntimeError(f"logits are floating point numbers, not {logits.dtype}")
    if logits.shape[-1] == 0:
        raise ValueError("Expected at least one class on the last axis of logits, got 0")


def _gradient_in_forward(logits: Tensor, settings: Settings) -> bool:
    """Whether loss and gradient should be made at once, for an upstream gradient of 1.

    Not for float16: a loss scaler's factor must come in before the gradient is rounded. Not on a GPU
    where a second read of the logits takes less time than the launches that it saves, unless it is
    one launch in any case.
    """
    if settings.reduction == "none" or logits.dtype == torch.float16:
        return False
    if settings.impl == "torch":
        return True
    from traindoctor.kernels.cross_entropy.rows import COUNTED_BY_EACH, SMALL

    V = logits.shape[-1]
    if V <= SMALL and logits.numel() <= COUNTED_BY_EACH * V:
        return True
    return logits.numel() * logits.element_size() > QUICKLY_READ_BYTES


# An H200 reads 80 MB, most of it from its cache, in about 20 us.
QUICKLY_READ_BYTES = 80 << 20
