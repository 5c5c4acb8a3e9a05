"""Cross-entropy on a GPU: sizes, strides and launches; the kernels are kernels/row_kernels.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from traindoctor.kernels import launch as launch_kernel
from traindoctor.kernels import row_kernels
from traindoctor.kernels.row_kernels import PER_ROW, SCALAR, UNIT

# Up to this many classes several rows share a program.
SMALL = 4096
SMALL_TILE = 4096
# Rows whose losses one program of `finish_losses` makes.
FINISHED_ROWS = 128


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


# Programs that share a row wait for one another, so all of them must find room on the GPU at once:
# at most one for each multiprocessor, of which each takes several.
MOST_PARTS = 64


@cache
def plan(V: int, element_size: int, multiprocessors: int) -> Plan:
    """Parts of 4096 elements, 8192 in float32, by 4 warps: see benchmarks/cross_entropy.py --sweep."""
    block, num_warps = (8192, 4) if element_size == 4 else (4096, 4)
    most = min(MOST_PARTS, multiprocessors)
    while -(-V // block) > most and block < 32768:
        block, num_warps = 2 * block, 2 * num_warps
    parts = -(-V // block)
    if parts > most:
        return Plan(parts=1, block=4096, num_warps=4, held=False)
    return Plan(parts=parts, block=power_of_2(-(-V // parts)), num_warps=num_warps)


@cache
def multiprocessors(device: torch.device) -> int:
    """1 in the interpreter, which runs programs one after the other: no two may wait for each other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def rows_view(logits: Tensor) -> tuple[Tensor, int, int, int]:
    """(logits with unit last stride, rows of the inner axis, outer stride, inner stride).

    Row r starts at (r // inner) * outer + (r % inner) * inner_stride: this covers (N, V), (B, T, V)
    and the slices of them that training code makes (logits[:, :-1]) without a copy.
    """
    if logits.dim() > 3 or logits.stride(-1) != 1 or not _rows_apart(logits):
        logits = logits.contiguous()
    if logits.is_contiguous():
        V = logits.shape[-1]
        return logits, max(logits.numel() // max(V, 1), 1), 0, V
    if logits.dim() == 2:
        return logits, max(logits.shape[0], 1), 0, logits.stride(0)
    return logits, logits.shape[1], logits.stride(0), logits.stride(1)


def _rows_apart(logits: Tensor) -> bool:
    """No two rows share memory (an expanded or overlapping view), so a gradient can lie likewise."""
    V = logits.shape[-1]
    if logits.dim() == 1:
        return True
    if logits.dim() == 2:
        return logits.stride(0) >= V or logits.shape[0] == 1
    B, T, _ = logits.shape
    inner = logits.stride(1) >= V or T == 1
    return inner and (logits.stride(0) >= (T - 1) * logits.stride(1) + V or B == 1)


def gradient_like(logits: Tensor) -> Tensor:
    """An empty gradient whose rows lie as the logits' do, so that both are aligned alike."""
    if logits.dim() > 3 or logits.stride(-1) != 1 or not _rows_apart(logits):
        return torch.empty_like(logits, memory_format=torch.contiguous_format)
    return torch.empty_strided(
        logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device
    )


def power_of_2(n: int) -> int:
    """The next one from n on."""
    return 1 << (n - 1).bit_length()


def _stream(device: torch.device) -> int:
    """The current stream's handle; torch.cuda.current_stream builds an object for it on each call."""
    if device.type != "cuda":
        return 0
    return int(torch._C._cuda_getCurrentRawStream(device.index or 0))


@cache
def _counter(device: torch.device, stream: int) -> Tensor:
    """The count of finished programs, one per stream; every launch leaves it at 0."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def launch(
    logits: Tensor,
    targets: Tensor,
    *,
    gradient: Tensor | None,
    weights: Tensor | None,
    num_valid: Tensor,
    losses: Tensor | None,
    total_loss: Tensor | None,
    mean: bool,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    cut: Plan | None = None,
) -> None:
    """What is not None is written, by one launch for small V, else two. `weights`: None for 1, a scalar, or one per row."""
    N, V = targets.numel(), logits.shape[-1]
    if N == 0:
        return
    device = logits.device
    total = total_loss is not None
    kind = UNIT
    if weights is not None:
        kind = SCALAR if weights.dim() == 0 else PER_ROW
        weights = weights.contiguous()
    logits, inner, stride_outer, stride_inner = rows_view(logits)
    targets = targets.contiguous()
    small = V <= SMALL and cut is None
    rows = max(1, min(64, SMALL_TILE // power_of_2(V))) if small else FINISHED_ROWS
    programs = -(-N // rows)
    # A pointer that is not used must still be one.
    anything = num_valid
    partials = counter = anything
    if total:
        partials = torch.empty(2 * programs, dtype=torch.float64, device=device)
        counter = _counter(device, _stream(device))
    read = (
        logits,
        logits if gradient is None else gradient,
        targets,
        anything if weights is None else weights,
        num_valid,
    )
    row_losses = anything if losses is None else losses
    summed = (partials, counter, anything if total_loss is None else total_loss)
    sizes = (N, V, inner, stride_outer, stride_inner, ignore_index, label_smoothing, z_loss)
    switches = (
        gradient is not None,
        kind,
        mean,
        label_smoothing != 0,
        z_loss != 0,
        logits.dtype == torch.float32,
    )
    if small:
        constants = (rows, power_of_2(V), *switches, losses is not None, total)
        launch_kernel.launch(
            row_kernels.small_rows,
            programs,
            (*read, row_losses, *summed),
            sizes,
            constants,
            num_warps=4,
        )
        return
    cut = cut or plan(V, logits.element_size(), multiprocessors(device))
    shared = cut.parts > 1
    numbers = torch.empty(3 + cut.parts, N, dtype=torch.float64, device=device)
    pairs = torch.empty(2 * cut.parts * N, device=device) if shared else anything
    arrivals = torch.zeros(N, dtype=torch.int32, device=device) if shared else anything
    vector = 16 // logits.element_size()
    launch_kernel.launch(
        row_kernels.long_row,
        N * cut.parts,
        (*read, numbers, pairs, arrivals),
        sizes,
        (vector, cut.block, cut.held, cut.parts, power_of_2(cut.parts), *switches),
        num_warps=cut.num_warps,
    )
    if losses is None and not total:
        return
    launch_kernel.launch(
        row_kernels.finish_losses,
        programs,
        (targets, numbers, row_losses, *summed, num_valid),
        (N, V, ignore_index, label_smoothing, z_loss),
        (rows, cut.parts, mean, losses is not None, total, label_smoothing != 0, z_loss != 0),
        num_warps=4,
    )


def forward(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    early: bool,
    cut: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(loss in float32, number of valid targets in float64, gradient if `early`)."""
    device = logits.device
    if early or reduction == "none":
        num_valid = (targets != ignore_index).sum(dtype=torch.float64)
    else:
        num_valid = torch.empty((), dtype=torch.float64, device=device)
    loss = torch.empty(
        targets.shape if reduction == "none" else (), dtype=torch.float32, device=device
    )
    if targets.numel() == 0:
        loss.fill_(torch.nan if reduction == "mean" else 0)
        num_valid.fill_(0)
    gradient = gradient_like(logits) if early else None
    launch(
        logits,
        targets,
        gradient=gradient,
        weights=None,
        num_valid=num_valid,
        losses=loss if reduction == "none" else None,
        total_loss=None if reduction == "none" else loss,
        mean=reduction == "mean",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        cut=cut,
    )
    return loss, num_valid, gradient


def backward(
    upstream: Tensor,
    num_valid: Tensor,
    logits: Tensor,
    targets: Tensor,
    *,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """The gradient, from the logits again."""
    gradient = gradient_like(logits)
    launch(
        logits,
        targets,
        gradient=gradient,
        weights=upstream,
        num_valid=num_valid,
        losses=None,
        total_loss=None,
        mean=reduction == "mean",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    return gradient
