"""Multiply a gradient made in the forward pass by the gradient that arrives in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.arguments import triton_usable


def scale_(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient *= factor (a scalar tensor), in place; on a GPU a factor of 1 costs one empty launch.

    The host never reads the factor: the kernel looks at it and returns at once when it is 1.
    """
    if gradient.is_cuda and triton_usable(gradient):
        from traindoctor.kernels.device.scale import scale_ as scale_on_device

        return scale_on_device(gradient, factor)
    if gradient.device.type == "cpu" and float(factor) == 1.0:
        return gradient
    return gradient.mul_(factor.to(gradient.dtype) if factor.dtype == torch.float64 else factor)
