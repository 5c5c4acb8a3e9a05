"""Turns the arguments of a taped op into another precision."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COMPLEX = {
    torch.float64: torch.complex128,
    torch.float32: torch.complex64,
    torch.float16: torch.complex64,  # complex32 has hardly any kernel
    torch.bfloat16: torch.complex64,
}


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating values in `dtype`, complex ones in its complex partner; integers and booleans stay."""
    if torch.is_floating_point(tensor):
        return tensor if tensor.dtype == dtype else tensor.to(dtype)
    if torch.is_complex(tensor):
        return tensor if tensor.dtype == COMPLEX[dtype] else tensor.to(COMPLEX[dtype])
    return tensor


def target(found: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    if found in FLOATS:
        return dtype
    return COMPLEX[dtype] if found.is_complex else found
