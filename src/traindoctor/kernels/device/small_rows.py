"""Loss and gradient of short rows: several share a program, which holds them in registers.

The launch ends with the sum over all rows (totals.py), so a small loss is one launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import (
    exp_below_0,
    gradient_terms,
    origin,
    row_loss,
)
from traindoctor.kernels.device.totals import sum_over_programs


@triton.jit
def small_rows(
    logits,
    gradient,
    targets,
    weights,
    num_valid,
    losses,
    partials,
    counter,
    total_loss,
    N,
    V,
    inner,
    stride_outer,
    stride_inner,
    ignore_index,
    smoothing,
    z_loss,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    SMOOTH: tl.constexpr,
    Z: tl.constexpr,
    ACCURATE: tl.constexpr,
    LOSSES: tl.constexpr,
    TOTAL: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Groups of ROWS rows of at most BLOCK classes, each program every so many of them.

    COUNTED: how many targets at a time a program counts for the mean; 0 if `num_valid` is known.
    """
    divisor = tl.full((ROWS,), 1.0, tl.float64)
    if WRITE and MEAN:
        if COUNTED:
            found = tl.zeros((COUNTED,), tl.int32)
            for first in range(0, N, COUNTED):
                at = first + tl.arange(0, COUNTED)
                found += (
                    tl.load(targets + at, mask=at < N, other=ignore_index) != ignore_index
                ).to(tl.int32)
            divisor *= tl.sum(found).to(tl.float64)
        else:
            divisor *= tl.load(num_valid)
    all_losses = tl.zeros((ROWS,), tl.float64)
    all_counts = tl.zeros((ROWS,), tl.float64)
    for group in range(tl.program_id(0), tl.cdiv(N, ROWS), tl.num_programs(0)):
        rows = group * ROWS + tl.arange(0, ROWS)
        present = rows < N
        target = tl.load(targets + rows, mask=present, other=ignore_index)
        counts = present & (target != ignore_index)
        known = counts & (target >= 0) & (target < V)
        rows64 = rows.to(tl.int64)
        start = (rows64 // inner) * stride_outer + (rows64 % inner) * stride_inner
        columns = tl.arange(0, BLOCK)
        inside = present[:, None] & (columns < V)[None, :]
        at = start[:, None] + columns[None, :]
        x = tl.load(logits + at, mask=counts[:, None] & inside, other=float("-inf")).to(tl.float32)
        x_t = tl.load(logits + start + target, mask=known, other=float("nan")).to(tl.float32)
        is_target = columns[None, :] == target[:, None]
        others = tl.where(is_target, float("-inf"), x)
        m = tl.max(others, 1)
        m = tl.where(m == float("-inf"), x_t, m)
        e = tl.where(inside & (is_target == 0), exp_below_0(others - m[:, None], ACCURATE), 0.0)
        # float64: the loss of a sure row is as good as this sum
        S = tl.sum(e.to(tl.float64), 1)
        mean = x_t.to(tl.float64)
        if SMOOTH:
            x_0 = origin(tl.load(logits + start, mask=counts, other=0.0).to(tl.float32))
            about = tl.where(inside & counts[:, None], x - x_0[:, None], 0.0)
            mean = tl.sum(about, 1).to(tl.float64) / V + x_0.to(tl.float64)
        if WRITE:
            weight = 1.0 / divisor
            if WEIGHT == 1:
                weight = tl.load(weights).to(tl.float64) / divisor
            if WEIGHT == 2:
                weight = tl.load(weights + rows, mask=present, other=0.0).to(tl.float64) / divisor
            factor, p_t, gradient_t, lse = gradient_terms(x_t, m, S, ACCURATE)
            if Z:
                pull = 1.0 + 2.0 * z_loss * lse
                gradient_t += (pull - 1.0) * p_t
                factor *= pull
            g = e * (factor * weight).to(tl.float32)[:, None]
            if SMOOTH:
                g -= (smoothing / V * weight).to(tl.float32)[:, None]
                gradient_t += smoothing - smoothing / V
            g = tl.where(is_target, (gradient_t * weight).to(tl.float32)[:, None], g)
            g = tl.where(counts[:, None], g, 0.0)
            tl.store(gradient + at, g.to(gradient.dtype.element_ty), mask=inside)
        if LOSSES or TOTAL:
            loss = row_loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH, Z)
            loss = tl.where(counts, loss, 0.0)
            if LOSSES:
                tl.store(losses + rows, loss.to(losses.dtype.element_ty), mask=present)
            all_losses += loss
            all_counts += counts.to(tl.float64)
    if TOTAL:
        sum_over_programs(
            tl.sum(all_losses),
            tl.sum(all_counts),
            partials,
            counter,
            total_loss,
            num_valid,
            MEAN,
        )
