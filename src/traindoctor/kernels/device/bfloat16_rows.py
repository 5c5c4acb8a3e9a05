"""Loss and gradient of long rows of bfloat16, each logit read from memory once.

As in long_row.py, a row is given to PARTS programs that wait for each other's maxima and sums. Two
things differ, because a logit has half the bytes here and so must cost half the time:
- What a program holds in registers are the logits themselves, two to a register; their exponentials
  are made twice, for the sum and for the gradient.
- A program goes from row to row. The gradient of one is written while the next is on its way from
  memory, and the other parts' sums have had that time to arrive.

Exponents are kept in powers of 2: e = 2^(x LOG2_E - c2), one multiply-add for each logit. Whatever c2
was rounded to, c = c2 / LOG2_E is by definition what has been subtracted, and is kept in float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import gradient_terms, origin
from traindoctor.kernels.device.exchange import leave, of_all_parts

LOG2_E = tl.constexpr(1.4426950216293335)  # as float32 has it
ONE_OVER_LOG2_E = tl.constexpr(1 / 1.4426950216293335)
# elements of a line of the cache (128 bytes) and of a 16-byte vector, and the 32-bit words that hold the latter
LINE = tl.constexpr(64)
VECTOR = tl.constexpr(8)
WORDS = tl.constexpr(4)


@triton.jit
def _larger(a, b):
    """The larger of both halves."""
    return tl.inline_asm_elementwise(
        "max.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def _exp2(x, INTERPRETED: tl.constexpr):
    """2^x by the device's own instruction; results below 1e-38 become 0."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _words(even, odd, INTERPRETED: tl.constexpr):
    """Rounded to bfloat16."""
    if INTERPRETED:
        low = even.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return low | (odd.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) << 16)
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;",
        "=r,f,f",
        [even, odd],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _into_cache(address, size):
    """Have `size` bytes brought from memory to the L2 cache; nobody waits for them."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred first;
        .reg .u32 thread;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.u32 $0, 0;
        }""",
        "=r,l,r",
        [address, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _row_start(row, inner, stride_outer, stride_inner):
    outer = (row // inner).to(tl.int64)
    return outer * stride_outer + (row % inner).to(tl.int64) * stride_inner


@triton.jit
def _part(start, part, V, PARTS: tl.constexpr):
    """(elements before the row's first line of the cache, whole vectors behind it, where this part's own begin,
    the column of that, how many)."""
    behind = (start % LINE).to(tl.int32)
    head = tl.minimum(tl.where(behind > 0, -behind + LINE, 0), V)
    whole = (V - head) // VECTOR
    # The hints sit on the operations themselves: a sum with 0 would be folded and lose its hint.
    if PARTS == 1:
        return head, whole, tl.multiple_of(start + head, VECTOR), head, whole
    share = tl.cdiv(whole, PARTS * (LINE // VECTOR)) * (LINE // VECTOR)
    column = head + part * share * VECTOR
    own = tl.maximum(tl.minimum(whole - part * share, share), 0)
    return head, whole, tl.multiple_of(start + column, VECTOR), column, own


@triton.jit
def _edges(head, whole, part, V):
    """Columns before the first vector and behind the last, which the first part takes."""
    edge = tl.arange(0, 2 * LINE)
    column = tl.where(edge < LINE, edge, head + whole * VECTOR + edge - LINE)
    end = tl.where(edge < LINE, head, V)
    return column, column < tl.where(part == 0, end, 0)


@triton.jit
def _exponentials(words, c2, shift, mask, INTERPRETED: tl.constexpr):
    even = (words << shift).to(tl.float32, bitcast=True)
    odd = (words & mask).to(tl.float32, bitcast=True)
    even = _exp2(tl.fma(even, LOG2_E, -c2), INTERPRETED)
    return even, _exp2(tl.fma(odd, LOG2_E, -c2), INTERPRETED)


@triton.jit
def bfloat16_rows(
    logits,
    gradient,
    targets,
    weights,
    num_valid,
    numbers,
    pairs,
    order,
    counted,
    N,
    V,
    inner,
    stride_outer,
    stride_inner,
    ignore_index,
    smoothing,
    z_loss,
    shift,
    mask,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    WEIGHT: tl.constexpr,
    MEAN: tl.constexpr,
    SMOOTH: tl.constexpr,
    Z: tl.constexpr,
    AHEAD: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A part of every row that is so many groups of PARTS programs on. Leaves (x_t, c, S, mean) in `numbers`.

    `order`: the rows, those that count first; `counted`: how many do. The gradient is not the logits' own memory.
    `shift` = 16 and `mask` = 0xFFFF0000 are arguments lest the compiler see that the exponentials are
    made twice, and keep them.
    """
    group = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    groups = tl.num_programs(0) // PARTS
    valid = tl.load(counted).to(tl.int32)
    # The second axis lies in one thread, so reducing it costs no exchange.
    lanes = tl.arange(0, BLOCK // VECTOR)
    places = lanes[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    # of every loss, whatever its row
    share = tl.full((), 1.0, tl.float64)
    if WRITE:
        if WEIGHT == 1:
            share *= tl.load(weights).to(tl.float64)
        if MEAN:
            share /= tl.load(num_valid)
    words = tl.zeros((BLOCK // VECTOR, WORDS), tl.int32)
    row = tl.full((), 0, tl.int32)
    start = tl.full((), 0, tl.int64)
    target = tl.full((), 0, tl.int64)
    x_t = tl.full((), 0.0, tl.float32)
    edge_x = tl.full((2 * LINE,), 0.0, tl.float32)
    top = tl.full((), 0.0, tl.float32)
    S = tl.full((), 0.0, tl.float64)
    # What must be known of a row before its logits can be asked for is asked for one and two rows earlier.
    next_row = tl.load(order + group, mask=group < valid, other=0)
    next_start = _row_start(next_row, inner, stride_outer, stride_inner)
    next_target = tl.load(targets + next_row).to(tl.int64)
    row_after = tl.load(order + group + groups, mask=group + groups < valid, other=0)
    for i in range(group, valid + groups, groups):
        # The last time round there is only a row to finish.
        live = i < valid
        last_words, last_row, last_start, last_target = words, row, start, target
        last_x_t, last_edge_x, last_top, last_S = x_t, edge_x, top, S
        row, start, target = next_row, next_start, next_target
        head, whole, begin, first, vectors = _part(start, part, V, PARTS)
        there = tl.where(live, vectors, 0)
        # two times -inf
        words = tl.load(
            (logits + begin).to(tl.pointer_type(tl.int32)) + places,
            mask=tl.broadcast_to((lanes < there)[:, None], (BLOCK // VECTOR, WORDS)),
            other=-8323200,
            eviction_policy="evict_first",
        )
        known = (target >= 0) & (target < V)
        x_t = tl.load(logits + start + target, mask=known, other=float("nan")).to(tl.float32)
        edge_column, in_edge = _edges(head, whole, part, V)
        edge_x = tl.load(logits + start + edge_column, mask=in_edge, other=float("-inf"))
        edge_x = edge_x.to(tl.float32)
        has_edges = (part == 0) & ((head > 0) | (head + whole * VECTOR < V))
        next_row = row_after
        next_start = _row_start(next_row, inner, stride_outer, stride_inner)
        next_target = tl.load(targets + next_row).to(tl.int64)
        row_after = tl.load(order + i + 2 * groups, mask=i + 2 * groups < valid, other=0)
        if AHEAD:
            if i + groups < valid:
                next_head, next_whole, next_begin, _, next_vectors = _part(
                    next_start, part, V, PARTS
                )
                # with what lies before and behind the row's vectors
                before = tl.where(part == 0, tl.cdiv(next_head, VECTOR), 0)
                behind = (part == PARTS - 1) & (next_head + next_whole * VECTOR < V)
                size = next_vectors + before + behind.to(tl.int32)
                if size > 0:
                    _into_cache(logits + next_begin - before * VECTOR, size * 16)
        if i >= groups:
            _finish(
                logits,
                gradient,
                weights,
                share,
                numbers,
                pairs,
                last_words,
                last_row,
                last_start,
                last_target,
                last_x_t,
                last_edge_x,
                last_top,
                last_S,
                places,
                part,
                N,
                V,
                smoothing,
                z_loss,
                shift,
                mask,
                BLOCK,
                PARTS,
                PARTS_BLOCK,
                WRITE,
                WEIGHT,
                SMOOTH,
                Z,
                INTERPRETED,
            )
        if live:
            if SMOOTH:
                x_0 = origin(tl.load(logits + start).to(tl.float32))
                about = tl.full((), 0.0, tl.float64)
                if has_edges:
                    about += tl.sum(tl.where(in_edge, edge_x - x_0, 0.0).to(tl.float64), 0)
                even = (words << 16).to(tl.float32, bitcast=True) - x_0
                odd = (words & -65536).to(tl.float32, bitcast=True) - x_0
                inside = tl.broadcast_to((lanes < vectors)[:, None], (BLOCK // VECTOR, WORDS))
                about += tl.sum(tl.where(inside, even + odd, 0.0)).to(tl.float64)
                # each part's share of the mean; x_0 is added once
                mean = about / V + tl.where(part == 0, x_0.to(tl.float64), 0.0)
                tl.store(numbers + 3 * N + row * PARTS + part, mean)
            own_target = (target - first).to(tl.int32)
            if (own_target >= 0) & (own_target < vectors * VECTOR):
                # its half of its word becomes -inf
                low = own_target % 2 == 0
                keep = tl.where(low, -65536, 65535)
                infinite = tl.where(low, 65408, -8388608)
                words = tl.where(places == own_target // 2, (words & keep) | infinite, words)
            if INTERPRETED:
                even = (words << 16).to(tl.float32, bitcast=True)
                odd = (words & -65536).to(tl.float32, bitcast=True)
                own = tl.max(tl.max(tl.maximum(even, odd), 1), 0)
            else:
                largest = tl.reduce(tl.reduce(words, 1, _larger), 0, _larger)
                even = (largest << 16).to(tl.float32, bitcast=True)
                own = tl.maximum(even, (largest & -65536).to(tl.float32, bitcast=True))
            others = tl.where(edge_column == target, float("-inf"), edge_x)
            if has_edges:
                own = tl.maximum(own, tl.max(others, 0))
            # everything so far may be -inf (masked vocabulary)
            top = own * LOG2_E
            c2 = tl.where(own == float("-inf"), 0.0, top)
            even, odd = _exponentials(words, c2, 16, -65536, INTERPRETED)
            # float32 within a vector, float64 across: the loss of a sure row is as good as this sum
            S = tl.sum(tl.sum(even + odd, 1).to(tl.float64), 0)
            if has_edges:
                edge_e = _exp2(tl.fma(others, LOG2_E, -c2), INTERPRETED)
                S += tl.sum(edge_e.to(tl.float64), 0)
            if PARTS > 1:
                leave(top, S, part, row, pairs, PARTS)
    if WRITE:
        out = gradient.dtype.element_ty
        for i in range(valid + group, N, groups):
            row = tl.load(order + i)
            start = _row_start(row, inner, stride_outer, stride_inner)
            head, whole, begin, first, vectors = _part(start, part, V, PARTS)
            if part == 0:
                column, in_edge = _edges(head, whole, part, V)
                tl.store(gradient + start + column, tl.zeros((2 * LINE,), out), mask=in_edge)
            tl.store(
                (gradient + begin).to(tl.pointer_type(tl.int32)) + places,
                tl.zeros((BLOCK // VECTOR, WORDS), tl.int32),
                mask=tl.broadcast_to((lanes < vectors)[:, None], (BLOCK // VECTOR, WORDS)),
                cache_modifier=".cs",
            )


@triton.jit
def _finish(
    logits,
    gradient,
    weights,
    share,
    numbers,
    pairs,
    words,
    row,
    start,
    target,
    x_t,
    edge_x,
    top,
    S,
    places,
    part,
    N,
    V,
    smoothing,
    z_loss,
    shift,
    mask,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    WRITE: tl.constexpr,
    WEIGHT: tl.constexpr,
    SMOOTH: tl.constexpr,
    Z: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """The row's sum, and this part's gradient; `top` and S are the part's own."""
    c2 = tl.where(top == float("-inf"), 0.0, top)
    all_top = top
    if PARTS > 1:
        tops, sums = of_all_parts(row, pairs, PARTS, PARTS_BLOCK)
        all_top = tl.max(tops, 0)
        rescaled = tl.where(sums == 0.0, 0.0, sums * tl.exp2(tops - all_top))
        S = tl.sum(rescaled.to(tl.float64), 0)
    nothing = all_top == float("-inf")
    c = tl.where(nothing, x_t.to(tl.float64), all_top.to(tl.float64) * ONE_OVER_LOG2_E)
    if part == 0:
        tl.store(numbers + row, x_t.to(tl.float64))
        tl.store(numbers + N + row, c)
        tl.store(numbers + 2 * N + row, S)
    if WRITE:
        weight = share
        if WEIGHT == 2:
            weight *= tl.load(weights + row).to(tl.float64)
        factor, p_t, gradient_t, lse = gradient_terms(x_t, c, S, False)
        if Z:
            pull = 1.0 + 2.0 * z_loss * lse
            gradient_t += (pull - 1.0) * p_t
            factor *= pull
        from_each = tl.full((), 0.0, tl.float32)
        if SMOOTH:
            from_each = (smoothing / V * weight).to(tl.float32)
            gradient_t += smoothing - smoothing / V
        factor *= weight
        if PARTS > 1:
            # the part's own exponentials are about its own maximum
            factor *= tl.where(top == float("-inf"), 0.0, tl.exp2(c2 - all_top))
        factor = factor.to(tl.float32)
        head, whole, begin, first, vectors = _part(start, part, V, PARTS)
        out = gradient.dtype.element_ty
        if (part == 0) & ((head > 0) | (head + whole * VECTOR < V)):
            column, in_edge = _edges(head, whole, part, V)
            # above the maximum stands the target alone, and it is overwritten below
            edge_e = _exp2(tl.minimum(tl.fma(edge_x, LOG2_E, -c2), 0.0), INTERPRETED)
            edge_g = tl.fma(edge_e, factor, -from_each)
            tl.store(gradient + start + column, edge_g.to(out), mask=in_edge)
        even, odd = _exponentials(words, c2, shift, mask, INTERPRETED)
        even = tl.fma(even, factor, -from_each)
        odd = tl.fma(odd, factor, -from_each)
        lanes = tl.arange(0, BLOCK // VECTOR)
        tl.store(
            (gradient + begin).to(tl.pointer_type(tl.int32)) + places,
            _words(even, odd, INTERPRETED),
            mask=tl.broadcast_to((lanes < vectors)[:, None], (BLOCK // VECTOR, WORDS)),
            cache_modifier=".cs",
        )
        # The target's own element, after every thread has written its part of the row.
        own_target = target - first
        in_body = (own_target >= 0) & (own_target < vectors * VECTOR)
        at_edge = (target < head) | (target >= head + whole * VECTOR)
        known = (target >= 0) & (target < V)
        tl.debug_barrier()
        at_target = (gradient_t * weight).to(tl.float32).to(out)
        tl.store(
            gradient + start + target, at_target, mask=known & (in_body | ((part == 0) & at_edge))
        )
