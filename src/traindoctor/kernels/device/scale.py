"""A gradient times a scalar on the device; nothing is read or written when the scalar is 1."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from traindoctor.kernels.launch import Launch, launch

BLOCK = 4096
# Enough programs to fill any GPU; each walks over its share.
PROGRAMS = 2048


@triton.jit
def _scale(gradient, factor, size, BLOCK: tl.constexpr):
    value = tl.load(factor).to(tl.float32)
    size_of_block = tl.full((1,), BLOCK, tl.int64)
    if value != 1.0:
        for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            at = block * size_of_block + tl.arange(0, BLOCK)
            scaled = tl.load(gradient + at, mask=at < size).to(tl.float32) * value
            tl.store(gradient + at, scaled.to(gradient.dtype.element_ty), mask=at < size)


def scaling(span: int, device: torch.device) -> Launch:
    """scaling(span, device)(gradient, factor): gradient *= factor over `span` elements, in place."""
    return Launch(_scale, _programs(span), (span,), (BLOCK,), device, num_warps=4)


def scale_(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient *= factor in place."""
    if gradient.numel():
        span = span_of(gradient)
        launch(_scale, _programs(span), (gradient, factor), (span,), (BLOCK,), num_warps=4)
    return gradient


def span_of(gradient: Tensor) -> int:
    """Elements from the first to the last; gaps between rows of a strided gradient are scaled with it."""
    return 1 + sum((n - 1) * step for n, step in zip(gradient.shape, gradient.stride()))


def _programs(span: int) -> int:
    return max(1, min(PROGRAMS, -(-span // BLOCK)))
