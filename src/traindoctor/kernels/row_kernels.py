"""Triton kernels: loss and gradient of softmax rows, each logit read from memory once.

Legend: V classes, N rows, x_t the target's logit, m the largest logit of the other classes,
S = sum of exp(x_j - m) over them; see softmax_rows.py for why the target is left out.

`small_rows` holds several short rows in registers and ends with the sum over all rows: the last
program to finish adds the others' partial sums in a fixed order, so that a loss is one launch and two
runs give the same bits. `long_row` gives a row to PARTS programs, each of which holds its part in
registers (HELD) and waits for the others' maxima and sums; or, PARTS = 1, streams the row twice.
`finish_losses` turns what `long_row` left for each row into losses and their sum.

Rows need not start on a 16-byte boundary (V = 50257): `long_row` treats the up to 7 elements before
the first boundary and behind the last one apart, and all other accesses are 16 bytes wide.
"""

from __future__ import annotations

import triton
import triton.language as tl

# What the row weights are: 1, one number for all rows, or one for each.
UNIT, SCALAR, PER_ROW = 0, 1, 2


@triton.jit
def _exp(d, ACCURATE: tl.constexpr):
    """exp(d) for d <= 0. The plain one loses |d| * 6e-8; ACCURATE puts the lost part back."""
    if ACCURATE:
        HIGH: tl.constexpr = 1.4426950216293335
        LOW: tl.constexpr = 1.9259629911e-8
        high = d * HIGH
        low = tl.fma(d, HIGH, -high) + d * LOW
        value = tl.exp2(high)
        # -inf - -inf is NaN in the low part; the value is 0 there
        return tl.where(value == 0.0, 0.0, tl.fma(value, low * 0.6931471805599453, value))
    return tl.exp(d)


@triton.jit
def _log1p(value):
    """log(1 + value) to the last digits for tiny values too, from a plain log (float64)."""
    u = 1.0 + value
    # log(u) / (u - 1) varies so slowly near 1 that the rounding of u cancels
    return value * tl.where(u == 1.0, 1.0, tl.log(u) / (u - 1.0))


@triton.jit
def _terms(x_t, m, S):
    """(loss, lse, factor, p_t, p_t - 1) in float64; see softmax_rows.row_terms."""
    lead = x_t.to(tl.float64) - m.to(tl.float64)
    lead = tl.where(x_t == float("inf"), float("nan"), lead)
    S = S.to(tl.float64)
    leads = lead >= 0
    shrink = tl.exp(-tl.abs(lead))
    others = tl.where(leads, S * shrink, S)
    at_target = tl.where(leads, 1.0, shrink)
    total = others + at_target
    loss = tl.where(leads, _log1p(others), tl.log(total) - lead)
    lse = tl.maximum(x_t, m).to(tl.float64) + tl.log(total)
    factor = tl.where(leads, shrink, 1.0) / total
    return loss, lse, factor, at_target / total, -others / total


@triton.jit
def _gradient_terms(x_t, m, S, ACCURATE: tl.constexpr):
    """(factor, p_t, p_t - 1, log of the sum) like `_terms`, without the loss's logarithms.

    float64 if ACCURATE. Else float32 with the lead in two parts: every thread of a program does this
    arithmetic while the row waits, and a gradient of 8 or 11 bits does not need more.
    """
    if ACCURATE:
        lead = x_t.to(tl.float64) - m.to(tl.float64)
        S = S.to(tl.float64)
        shrink = tl.exp(-tl.abs(lead))
    else:
        lead = x_t - m
        S = S.to(tl.float32)
        back = lead - x_t
        rest = (x_t - (lead - back)) - (m + back)  # what the subtraction lost
        rest = tl.where(tl.abs(lead) < float("inf"), rest, 0.0)
        shrink = _exp(-tl.abs(lead), True) * (1.0 - tl.where(lead >= 0, rest, -rest))
    leads = lead >= 0
    others = tl.where(leads, S * shrink, S)
    at_target = tl.where(leads, 1.0, shrink)
    # inf - inf is NaN in torch's softmax; here the target's inf would look like a perfect row
    at_target = tl.where(x_t == float("inf"), float("nan"), at_target)
    total = others + at_target
    inverse = 1.0 / total
    factor = tl.where(leads, shrink, 1.0) * inverse
    lse = tl.maximum(x_t, m) + tl.log(total.to(tl.float32))
    return factor, at_target * inverse, -others * inverse, lse


@triton.jit
def _origin(x_0):
    """A finite number near the logits, about which their mean is taken."""
    return tl.where(tl.abs(x_0) < float("inf"), x_0, 0.0)


@triton.jit
def _loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH: tl.constexpr, Z: tl.constexpr):
    """Losses in float64; `mean` is the mean of all logits of the row."""
    loss, lse, _, _, _ = _terms(x_t, m, S)
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (lse - mean)
    if Z:
        loss += z_loss * lse * lse
    return loss


@triton.jit
def _sum_over_programs(
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
):
    """ROWS rows of at most BLOCK classes."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
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
    e = tl.where(inside & (is_target == 0), _exp(others - m[:, None], ACCURATE), 0.0)
    S = tl.sum(e, 1)
    mean = x_t.to(tl.float64)
    if SMOOTH:
        x_0 = _origin(tl.load(logits + start, mask=counts, other=0.0).to(tl.float32))
        about = tl.where(inside & counts[:, None], x - x_0[:, None], 0.0)
        mean = tl.sum(about, 1).to(tl.float64) / V + x_0.to(tl.float64)
    weight = tl.full((ROWS,), 1.0, tl.float64)
    if WRITE:
        if WEIGHT == 1:
            weight *= tl.load(weights).to(tl.float64)
        if WEIGHT == 2:
            weight *= tl.load(weights + rows, mask=present, other=0.0).to(tl.float64)
        if MEAN:
            weight /= tl.load(num_valid)
    if WRITE:
        factor, p_t, gradient_t, lse = _gradient_terms(x_t, m, S, ACCURATE)
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
    loss = tl.zeros((ROWS,), tl.float64)
    if LOSSES or TOTAL:
        loss = _loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH, Z)
        loss = tl.where(counts, loss, 0.0)
    if LOSSES:
        tl.store(losses + rows, loss.to(losses.dtype.element_ty), mask=present)
    if TOTAL:
        _sum_over_programs(
            tl.sum(loss),
            tl.sum(counts.to(tl.float64)),
            partials,
            counter,
            total_loss,
            num_valid,
            MEAN,
        )


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
        rescaled = sums * _exp(maxima - top, True)
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
            x_0 = _origin(tl.load(logits + start).to(tl.float32))
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
            e = _exp(x - shift, ACCURATE)
            S = tl.sum(tl.sum(e, 1), 0)
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
                shrink = _exp(lane_max - lane_shift, ACCURATE)
                block = tl.sum(_exp(x - lane_shift[:, None], ACCURATE), 1)
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
            lane_sum = (lane_sum + lane_lost) * _exp(lane_max - shift, True)
            S = tl.sum(lane_sum, 0)
            if SMOOTH:
                about += tl.sum(lane_about, 0)
        edge_e = tl.where(in_edge, _exp(edge_others - shift, ACCURATE), 0.0)
        S += tl.sum(edge_e, 0)
        m = own
        S = S.to(tl.float64)
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
            factor, p_t, gradient_t, lse = _gradient_terms(x_t, m, S, ACCURATE)
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
                    own_factor *= _exp(to_top, True)
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
                    g = _exp(tl.minimum(x - m, 0.0), ACCURATE) * factor
                    if SMOOTH:
                        g -= from_each
                    tl.store(gradient + at, g.to(out), mask=inside)
            # The target's own element, after every thread has written its part of the row.
            at_edge = (target < head) | (target >= head + whole * VECTOR)
            owner = ((body_target >= 0) & (body_target < body)) | ((part == 0) & at_edge)
            tl.debug_barrier()
            at_target = (gradient_t * weight).to(tl.float32).to(out)
            tl.store(gradient + start + target, at_target, mask=known & owner)


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
    loss = _loss(x_t, m, S, mean, smoothing, z_loss, SMOOTH, Z)
    loss = tl.where(counts, loss, 0.0)
    if LOSSES:
        tl.store(losses + rows, loss.to(losses.dtype.element_ty), mask=present)
    if TOTAL:
        _sum_over_programs(
            tl.sum(loss),
            tl.sum(counts.to(tl.float64)),
            partials,
            counter,
            total_loss,
            num_valid,
            MEAN,
        )
