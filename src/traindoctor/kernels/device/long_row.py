"""Loss and gradient of a long row, each logit read from memory once.

A row is given to PARTS programs, each of which holds its part in registers (HELD) and waits for the
others' maxima and sums; or, PARTS = 1, streams the row twice. What it leaves for each row becomes
losses in totals.py.

Rows need not start on a 16-byte boundary (V = 50257): the up to 7 elements before the first boundary
and behind the last one are treated apart, and all other accesses are 16 bytes wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import exp_below_0, gradient_terms, origin


@triton.jit
def _exchange(
    m,
    S,
    part,
    row,
    pairs,
    arrivals,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    ACCURATE: tl.constexpr,
):
    """Maximum and sum of a whole row from its parts' own; every part waits for all of them.

    Parts of a row are neighbours in the grid and programs start in the order of the grid, so only the
    last row that has started can lack a part: the rows before it finish and make room.
    """
    mine = pairs + (row * PARTS + part) * 2
    tl.store(mine, m)
    tl.store(mine + 1, S.to(tl.float32))
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals + row, 1, sem="acq_rel") + 1
    while arrived < PARTS:
        arrived = tl.atomic_add(arrivals + row, 0, sem="acq_rel")
    index = tl.arange(0, PARTS_BLOCK)
    others = pairs + (row * PARTS + index) * 2
    maxima = tl.load(others, mask=index < PARTS, other=float("-inf"), cache_modifier=".cg")
    sums = tl.load(others + 1, mask=index < PARTS, other=0.0, cache_modifier=".cg")
    top = tl.max(maxima, 0)
    if ACCURATE:
        # at most 64 terms, and each carries a whole part of the row
        rescaled = sums.to(tl.float64) * tl.exp((maxima - top).to(tl.float64))
    else:
        rescaled = sums * exp_below_0(maxima - top, True)
    return top, tl.sum(tl.where(sums == 0.0, 0.0, rescaled), 0).to(tl.float64)


@triton.jit
def long_row(
    logits,
    gradient,
    targets,
    weights,
    num_valid,
    numbers,
    pairs,
    arrivals,
    N,
    V,
    inner,
    stride_outer,
    stride_inner,
    ignore_index,
    smoothing,
    z_loss,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
    HELD: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    SMOOTH: tl.constexpr,
    Z: tl.constexpr,
    ACCURATE: tl.constexpr,
):
    """A part of one row; VECTOR elements are 16 bytes. Leaves (x_t, m, S, mean) of the row in `numbers`."""
    row = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    target = tl.load(targets + row)
    row64 = row.to(tl.int64)
    start = (row64 // inner) * stride_outer + (row64 % inner) * stride_inner
    # head: elements before the first 16-byte boundary; body: whole vectors; tail: the rest.
    # The first part takes head and tail.
    head = (VECTOR - (start % VECTOR).to(tl.int32)) % VECTOR
    whole = (V - head) // VECTOR
    # The hints sit on the operations themselves: a sum with 0 would be folded and lose its hint.
    if PARTS == 1:
        share = whole
        body = tl.multiple_of(whole * VECTOR, VECTOR)
        begin = tl.multiple_of(start + head, VECTOR)
    else:
        share = tl.cdiv(whole, PARTS)
        own_vectors = tl.maximum(tl.minimum(whole - part * share, share), 0)
        body = tl.multiple_of(own_vectors * VECTOR, VECTOR)
        begin = tl.multiple_of(start + head + part * share * VECTOR, VECTOR)
    edge = tl.arange(0, 2 * VECTOR)
    edge_column = tl.where(edge < VECTOR, edge, head + (whole - 1) * VECTOR + edge)
    edge_end = tl.where(part == 0, tl.where(edge < VECTOR, head, V), 0)
    in_edge = edge_column < edge_end
    # (BLOCK / VECTOR, VECTOR): the second axis lies in one thread, so reducing it costs no exchange
    lanes = tl.arange(0, BLOCK // VECTOR)
    columns = lanes[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    body_target = (target - head - part * share * VECTOR).to(tl.int32)
    out = gradient.dtype.element_ty
    if target == ignore_index:
        if WRITE:
            tl.store(gradient + start + edge_column, tl.zeros((2 * VECTOR,), out), mask=in_edge)
            for first in range(0, body, BLOCK):
                tl.store(
                    gradient + begin + first + columns,
                    tl.zeros((BLOCK // VECTOR, VECTOR), out),
                    mask=first + columns < body,
                )
    else:
        weight = tl.full((), 1.0, tl.float64)
        if WRITE:
            if WEIGHT == 1:
                weight *= tl.load(weights).to(tl.float64)
            if WEIGHT == 2:
                weight *= tl.load(weights + row).to(tl.float64)
            if MEAN:
                weight /= tl.load(num_valid)
        known = (target >= 0) & (target < V)
        x_t = tl.load(logits + start + target, mask=known, other=float("nan")).to(tl.float32)
        edge_x = tl.load(logits + start + edge_column, mask=in_edge, other=float("-inf"))
        edge_x = edge_x.to(tl.float32)
        edge_others = tl.where(edge_column == target, float("-inf"), edge_x)
        edge_max = tl.max(edge_others, 0)
        about = tl.full((), 0.0, tl.float64)
        x_0 = tl.full((), 0.0, tl.float32)
        if SMOOTH:
            x_0 = origin(tl.load(logits + start).to(tl.float32))
            about += tl.sum(tl.where(in_edge, edge_x - x_0, 0.0).to(tl.float64), 0)
        if HELD:
            inside = columns < body
            x = tl.load(logits + begin + columns, mask=inside, other=float("-inf"))
            x = x.to(tl.float32)
            if SMOOTH:
                about += tl.sum(tl.where(inside, x - x_0, 0.0)).to(tl.float64)
            x = tl.where(columns == body_target, float("-inf"), x)
            own = tl.maximum(tl.max(tl.max(x, 1), 0), edge_max)
            # everything so far may be -inf (masked vocabulary)
            shift = tl.where(own == float("-inf"), 0.0, own)
            e = exp_below_0(x - shift, ACCURATE)
            # float32 within a vector, float64 across: the loss of a sure row is as good as this sum
            S = tl.sum(tl.sum(e, 1).to(tl.float64), 0)
        else:
            lane_max = tl.full((BLOCK // VECTOR,), float("-inf"), tl.float32)
            lane_sum = tl.zeros((BLOCK // VECTOR,), tl.float32)
            lane_lost = tl.zeros((BLOCK // VECTOR,), tl.float32)
            lane_about = tl.zeros((BLOCK // VECTOR,), tl.float64)
            for first in range(0, body, BLOCK):
                inside = first + columns < body
                x = tl.load(logits + begin + first + columns, mask=inside, other=float("-inf"))
                x = x.to(tl.float32)
                if SMOOTH:
                    lane_about += tl.sum(tl.where(inside, x - x_0, 0.0), 1).to(tl.float64)
                x = tl.where(first + columns == body_target, float("-inf"), x)
                new_max = tl.maximum(lane_max, tl.max(x, 1))
                lane_shift = tl.where(new_max == float("-inf"), 0.0, new_max)
                shrink = exp_below_0(lane_max - lane_shift, ACCURATE)
                block = tl.sum(exp_below_0(x - lane_shift[:, None], ACCURATE), 1)
                # Neumaier's sum across blocks, all terms non-negative
                lane_sum *= shrink
                lane_lost *= shrink
                both = lane_sum + block
                larger = tl.maximum(lane_sum, block)
                lane_lost += (larger - both) + tl.minimum(lane_sum, block)
                lane_sum = both
                lane_max = new_max
            own = tl.maximum(tl.max(lane_max, 0), edge_max)
            shift = tl.where(own == float("-inf"), 0.0, own)
            lane_sum = (lane_sum + lane_lost) * exp_below_0(lane_max - shift, True)
            S = tl.sum(lane_sum.to(tl.float64), 0)
            if SMOOTH:
                about += tl.sum(lane_about, 0)
        edge_e = tl.where(in_edge, exp_below_0(edge_others - shift, ACCURATE), 0.0)
        S += tl.sum(edge_e.to(tl.float64), 0)
        m = own
        if PARTS > 1:
            m, S = _exchange(own, S, part, row, pairs, arrivals, PARTS, PARTS_BLOCK, ACCURATE)
        m = tl.where(m == float("-inf"), x_t, m)
        mean = about / V
        if part == 0:
            tl.store(numbers + row, x_t.to(tl.float64))
            tl.store(numbers + N + row, m.to(tl.float64))
            tl.store(numbers + 2 * N + row, S)
        if SMOOTH:
            # each part's share of the mean; x_0 is added once
            mean += tl.where(part == 0, x_0.to(tl.float64), 0.0)
            tl.store(numbers + 3 * N + row * PARTS + part, mean)
        if WRITE:
            factor, p_t, gradient_t, lse = gradient_terms(x_t, m, S, ACCURATE)
            if Z:
                pull = 1.0 + 2.0 * z_loss * lse
                gradient_t += (pull - 1.0) * p_t
                factor *= pull
            from_each = tl.full((), 0.0, tl.float32)
            if SMOOTH:
                from_each = (smoothing / V * weight).to(tl.float32)
                gradient_t += smoothing - smoothing / V
            factor *= weight
            own_factor = factor
            if PARTS > 1:
                # the part's own exponentials are about its own maximum
                to_top = tl.where(own == float("-inf"), 0.0, own - m)
                if ACCURATE:
                    own_factor *= tl.exp(to_top.to(tl.float64))
                else:
                    own_factor *= exp_below_0(to_top, True)
            own_factor = own_factor.to(tl.float32)
            factor = factor.to(tl.float32)
            edge_g = edge_e * own_factor - from_each
            tl.store(gradient + start + edge_column, edge_g.to(out), mask=in_edge)
            if HELD:
                g = e * own_factor
                if SMOOTH:
                    g -= from_each
                tl.store(gradient + begin + columns, g.to(out), mask=inside)
            else:
                for first in range(0, body, BLOCK):
                    inside = first + columns < body
                    at = begin + first + columns
                    x = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)
                    # above m stands the target alone, and it is overwritten below
                    g = exp_below_0(tl.minimum(x - m, 0.0), ACCURATE) * factor
                    if SMOOTH:
                        g -= from_each
                    tl.store(gradient + at, g.to(out), mask=inside)
            # The target's own element, after every thread has written its part of the row.
            at_edge = (target < head) | (target >= head + whole * VECTOR)
            owner = ((body_target >= 0) & (body_target < body)) | ((part == 0) & at_edge)
            tl.debug_barrier()
            at_target = (gradient_t * weight).to(tl.float32).to(out)
            tl.store(gradient + start + target, at_target, mask=known & owner)
