"""The last linear layer and the loss in one, so that the (N, V) logits never exist at once.

    loss = traindoctor.linear_cross_entropy(hidden, lm_head.weight, targets)

Exact gradients of hidden, weight and bias in a fraction of the memory: no gradient is dropped or
approximated, and everything is accumulated in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.arguments import (
    check_index_targets,
    check_range,
    checked_settings,
    choose,
)
from traindoctor.kernels.linear_cross_entropy.reference import reference

KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    check_targets: bool = False,
    impl: str = "auto",
) -> Tensor:
    """loss = linear_cross_entropy(hidden, weight, targets): cross_entropy(hidden @ weight.T + bias, targets).

    hidden (..., D), weight (V, D) as in torch.nn.Linear, targets (...), bias (V,). The options are
    those of `cross_entropy`. Under autocast the products take the autocast dtype, the loss stays
    float32 and the gradient of a float32 weight is accumulated and returned in float32.
    """
    settings = checked_settings(
        ignore_index,
        reduction,
        label_smoothing,
        z_loss,
        check_targets,
        choose(impl, hidden, KERNEL_DTYPES),
    )
    _check_shapes(hidden, weight, bias)
    check_index_targets(targets, hidden.shape[:-1], "hidden")
    if settings.impl == "reference":
        check_range(targets, weight.shape[0], ignore_index)
        return reference(
            hidden,
            weight,
            targets,
            bias,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
    from traindoctor.kernels.linear_cross_entropy.autograd import LinearCrossEntropy

    device = hidden.device.type
    operands = hidden.dtype
    if torch.is_autocast_enabled(device) and operands != torch.float64:
        operands = torch.get_autocast_dtype(device)
    elif weight.dtype != operands or (bias is not None and bias.dtype != operands):
        raise RuntimeError(
            f"hidden is {hidden.dtype} and weight is {weight.dtype}: outside autocast hidden, weight "
            "and bias have one dtype"
        )
    enabled = torch.is_grad_enabled()
    wants = tuple(enabled and x is not None and x.requires_grad for x in (hidden, weight, bias))
    return LinearCrossEntropy.apply(hidden, weight, bias, targets, operands, settings, wants)


def _check_shapes(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if hidden.dim() == 0 or weight.dim() != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            "Expected hidden (..., D) and weight (V, D), "
            f"got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if weight.shape[0] == 0:
        raise ValueError("Expected a weight with at least one row (class), got 0")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"Expected bias ({weight.shape[0]},), got {tuple(bias.shape)}")
