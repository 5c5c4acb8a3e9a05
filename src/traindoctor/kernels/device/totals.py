"""Sums over all rows: one launch, the same bits in every run.

Every program leaves its partial sum, and the last one to finish adds them up in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import row_loss


@triton.jit
def sum_over_programs(
    loss, num_valid, partials, counter, total_loss, total_valid, MEAN: tl.constexpr
):
    """The last program adds all partial sums, in order, and leaves the counter at 0 again."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    tl.store(partials + program, loss)
    tl.store(partials + programs + program, num_valid)
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel")
    if before == programs - 1:
        offsets = tl.arange(0, 1024)
        losses = tl.zeros((1024,), tl.float64)
        valid = tl.zeros((1024,), tl.float64)
        for start in range(0, programs, 1024):
            inside = start + offsets < programs
            at = partials + start + offsets
            losses += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
            valid += tl.load(at + programs, mask=inside, other=0.0, cache_modifier=".cg")
        total = tl.sum(losses)
        count = tl.sum(valid)
        if MEAN:
            total = total / count
        tl.store(total_loss, total.to(total_loss.dtype.element_ty))
        tl.store(total_valid, count)
        tl.store(counter, 0)


@triton.jit
def finish_losses(
    targets,
    numbers,
    losses,
    partials,
    counter,
    total_loss,
    num_valid,
    N,
    V,
    ignore_index,
    smoothing,
    z_loss,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    MEAN: tl.constexpr,
    LOSSES: tl.constexpr,
    TOTAL: tl.constexpr,
    SMOOTH: tl.constexpr,
    Z: tl.constexpr,
):
    """Losses in float64 from (x_t, m, S, mean), and their sum."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = rows < N
    target = tl.load(targets + rows, mask=present, other=ignore_index)
    counts = target != ignore_index
    x_t = tl.load(numbers + rows, mask=counts, other=0.0)
    m = tl.load(numbers + N + rows, mask=counts, other=0.0)
    S = tl.load(numbers + 2 * N + rows, mask=counts, other=1.0)
    mean = tl.zeros((ROWS,), tl.float64)
    if SMOOTH:
        for part in range(PARTS):
            mean += tl.load(numbers + 3 * N + rows * PARTS + part, mask=counts, other=0.0)
    loss = row_loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH, Z)
    loss = tl.where(counts, loss, 0.0)
    if LOSSES:
        tl.store(losses + rows, loss.to(losses.dtype.element_ty), mask=present)
    if TOTAL:
        sum_over_programs(
            tl.sum(loss),
            tl.sum(counts.to(tl.float64)),
            partials,
            counter,
            total_loss,
            num_valid,
            MEAN,
        )


@triton.jit
def count_valid(targets, arrivals, num_valid, N, ignore_index, BLOCK: tl.constexpr):
    """One program counts the targets that are not ignored and sets the rows' arrivals to 0.

    A gradient of the mean is divided by the count before the first row of it is written.
    """
    found = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, N, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        target = tl.load(targets + rows, mask=rows < N, other=ignore_index)
        found += (target != ignore_index).to(tl.int32)
        tl.store(arrivals + rows, 0, mask=rows < N)
    tl.store(num_valid, tl.sum(found, 0).to(tl.float64))


@triton.jit
def valid_first(
    targets,
    order,
    num_valid,
    words,
    N,
    slice_length,
    num_words,
    ignore_index,
    BLOCK: tl.constexpr,
):
    """order (N,): the rows that count, then the ignored ones, each in their own order. Sets `words` to 0.

    Each program counts all targets for itself, and places those of its slice.
    """
    first = tl.program_id(0) * slice_length
    found = tl.zeros((BLOCK,), tl.int32)
    found_before = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, N, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        target = tl.load(targets + rows, mask=rows < N, other=ignore_index)
        counts = (target != ignore_index).to(tl.int32)
        found += counts
        found_before += tl.where(rows < first, counts, 0)
    total = tl.sum(found, 0)
    valid_before = tl.sum(found_before, 0)
    if first == 0:
        tl.store(num_valid, total)
    end = tl.minimum(first + slice_length, N)
    for start in range(first, end, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        target = tl.load(targets + rows, mask=rows < end, other=ignore_index)
        counts = (target != ignore_index).to(tl.int32)
        rank = valid_before + tl.cumsum(counts, 0)
        place = tl.where(counts != 0, rank - 1, total + rows - rank)
        tl.store(order + place, rows.to(order.dtype.element_ty), mask=rows < end)
        valid_before += tl.sum(counts, 0)
    nothing = tl.zeros((BLOCK,), tl.int64)
    for start in range(tl.program_id(0) * BLOCK, num_words, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(words + at, nothing, mask=at < num_words)
