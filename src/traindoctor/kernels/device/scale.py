"""A gradient times a scalar on the device; nothing is read or written when the scalar is 1."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from traindoctor.kernels.launch import launch

BLOCK = 4096
# Enough programs to fill any GPU; each walks over its share.
PROGRAMS = 2048


@triton.jit
def _scale(gradient, factor, size, BLOCK: tl.constexpr):
    value = tl.load(factor).to(tl.float32)
    if value != 1.0:
        for block in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            at = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            scaled = tl.load(gradient + at, mask=at < size).to(tl.float32) * value
            tl.store(gradient + at, scaled.to(gradient.dtype.element_ty), mask=at < size)


def scale_(gradient: Tensor, factor: Tensor) -> Tensor:
    """gradient *= factor in place. Gaps between rows of a strided gradient are scaled with it."""
    span = 1 + sum((n - 1) * step for n, step in zip(gradient.shape, gradient.stride()))
    if gradient.numel():
        programs = min(PROGRAMS, -(-span // BLOCK))
        launch(_scale, programs, (gradient, factor), (span,), (BLOCK,), num_warps=4)
    return gradient
