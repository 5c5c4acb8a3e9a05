"""How rows of logits lie in memory, and how a long one is cut for the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a long row is cut."""

    parts: int
    """programs that share a row"""
    block: int
    """elements a program works on together; all of its part if `held`"""
    num_warps: int
    held: bool = True
    """the part stays in registers between the sum and the gradient"""
    resident: int = 0
    """programs on a multiprocessor that go from row to row; 0: each has one part of one row"""


# Programs that share a row wait for one another, so all of them must find room on the GPU at once:
# at most one for each multiprocessor, of which each takes several.
MOST_PARTS = 64
# What a multiprocessor has room for: so many warps that go from row to row, with so many registers a thread.
RESIDENT_WARPS = 20
REGISTERS = 96


@cache
def plan(V: int, element_size: int, multiprocessors: int, *, row_to_row: bool = False) -> Plan:
    """Parts of 16 or 32 kB for 4 warps: see benchmarks/cross_entropy.py --sweep."""
    block, num_warps = (8192, 4) if element_size == 4 or row_to_row else (4096, 4)
    most = min(MOST_PARTS, multiprocessors)
    while -(-V // block) > most and block < 32768:
        block, num_warps = 2 * block, 2 * num_warps
    parts = -(-V // block)
    if parts > most:
        return Plan(parts=1, block=4096, num_warps=4, held=False)
    block = power_of_2(-(-V // parts))
    resident = RESIDENT_WARPS // num_warps if row_to_row else 0
    return Plan(parts=parts, block=block, num_warps=num_warps, resident=resident)


def power_of_2(n: int) -> int:
    """The next one from n on."""
    return 1 << (n - 1).bit_length()


def readable(logits: Tensor) -> Tensor:
    """The logits, copied only if the kernels cannot read their rows where they lie."""
    if logits.is_contiguous() or _rows_in_place(logits):
        return logits
    return logits.contiguous()


def _rows_in_place(logits: Tensor) -> bool:
    """Unit last stride, and no two rows share memory, so that a gradient can lie likewise.

    This covers (N, V), (B, T, V) and the slices of them that training code makes (logits[:, :-1]).
    """
    V = logits.shape[-1]
    if logits.dim() > 3 or logits.stride(-1) != 1:
        return False
    if logits.dim() == 1:
        return True
    if logits.dim() == 2:
        return logits.stride(0) >= V or logits.shape[0] == 1
    B, T, _ = logits.shape
    inner = logits.stride(1) >= V or T == 1
    return inner and (logits.stride(0) >= (T - 1) * logits.stride(1) + V or B == 1)


def row_strides(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int, int]:
    """(inner, outer stride, inner stride) of readable logits.

    Row r starts at (r // inner) * outer stride + (r % inner) * inner stride.
    """
    num_rows, V = prod(shape[:-1]), shape[-1]
    if len(shape) == 2 and num_rows > 1:
        return num_rows, 0, stride[0]
    if len(shape) == 3 and (stride[1], stride[0]) != (V, shape[1] * V):
        return max(shape[1], 1), stride[0], stride[1]
    return max(num_rows, 1), 0, V


def gradient_like(logits: Tensor) -> Tensor:
    """An empty gradient whose rows lie as the logits' do, so that both are aligned alike."""
    if logits.is_contiguous():
        return torch.empty_like(logits)
    if not _rows_in_place(logits):
        return torch.empty_like(logits, memory_format=torch.contiguous_format)
    return torch.empty_strided(
        logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device
    )
