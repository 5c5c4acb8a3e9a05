"""Triton kernels of the fused loss: exponentials of logits straight out of the matrix product.

Legend: n rows of a chunk, V classes, D width. `exp_logits` multiplies hidden (n, D) by weight (V, D)
and, while a tile of logits x is still in registers in float32, writes E = exp(x - c) in bfloat16 and
the row's sum S of it. c is any number near the row's largest logit: bfloat16 has float32's range, so
c needs no more than to be within e^60 of it, and E keeps its 8 bits relative to itself, where logits
rounded to bfloat16 would be off by a few percent in probability. Everything per row is then a factor:

    gradient of the logits = F[n] * E[n, j]     with E at the target set so that this is p_t - 1

so dH = F (E @ W) and dW = E.T @ (F H): the logits are neither stored in float32 nor read again.
Once F is known `exp_logits` can also write F * E itself (SCALED), for classes that are done twice.

Exponents are kept in powers of 2: E = 2^(x * LOG2_E - c2), one multiply-add and one instruction of the
device for each logit. c is then c2 / LOG2_E by definition, with the same rounded constant.
Rows lie in an order in which the ignored ones come last (`totals.valid_first`), so that whole tiles of them
are zeros and cost no product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import terms

# A row whose sum exceeds this (a logit 60 nats above c) is done again by `_repair`.
LARGEST_SUM = tl.constexpr(1e26)
LOG2_E = tl.constexpr(1.4426950216293335)  # as float32 has it


@triton.jit
def _exp2(x, INTERPRETED: tl.constexpr):
    """2^x by the device's own instruction; results below 1e-38, which it would take pains with, become 0."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def references(
    hidden,
    weight,
    bias,
    targets,
    sample,
    order,
    target_logits,
    reference,
    targets_in_order,
    V,
    D,
    num_samples,
    sample_step,
    ignore_index,
    BLOCK: tl.constexpr,
    SAMPLES: tl.constexpr,
    BIAS: tl.constexpr,
):
    """x_t = hidden . weight[t], and c = the larger of x_t and of a sample of the row's other logits.

    hidden, targets and sample as they were given; what is written lies in `order`.
    """
    place = tl.program_id(0)
    row = tl.load(order + place)
    target = tl.load(targets + row)
    known = (target >= 0) & (target < V) & (target != ignore_index)
    column = tl.where(known, target, 0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, D, BLOCK):
        at = first + tl.arange(0, BLOCK)
        h = tl.load(hidden + row * D + at, mask=at < D, other=0.0).to(tl.float32)
        w = tl.load(weight + column * D + at, mask=at < D, other=0.0).to(tl.float32)
        total += h * w
    x_t = tl.sum(total, 0)
    index = tl.arange(0, SAMPLES)
    other = (index < num_samples) & (index * sample_step != target)
    sampled = tl.load(sample + row * num_samples + index, mask=other, other=float("-inf"))
    if BIAS:
        x_t += tl.load(bias + column).to(tl.float32)
        sampled += tl.load(bias + index * sample_step, mask=other, other=0.0).to(tl.float32)
    c = tl.maximum(tl.max(sampled, 0), x_t)
    tl.store(target_logits + place, tl.where(known, x_t, float("nan")))
    tl.store(reference + place, c * LOG2_E)
    tl.store(targets_in_order + place, target)


@triton.jit
def exp_logits(
    hidden,
    weight,
    exponentials,
    bias,
    targets,
    reference,
    sums,
    factors,
    num_valid,
    first,
    n,
    V,
    D,
    columns,
    ignore_index,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STORE: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    FLATTEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """E and its row sums without the target, for tiles (BLOCK_N, BLOCK_V); operands by TMA descriptor.

    `hidden` and `exponentials` are those of the n rows from `first` on; what is known of rows is of all of them, and
    the first `num_valid` of all count.
    """
    valid = tl.minimum(tl.maximum(tl.load(num_valid) - first, 0), n)
    row_tiles = tl.cdiv(valid, BLOCK_N)
    column_tiles = tl.cdiv(columns, BLOCK_V)
    tiles = row_tiles * column_tiles
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        # Rows first: neighbours share a tile of the weight, and the hidden chunk stays in the cache.
        first_row = (tile % row_tiles) * BLOCK_N
        column_tile = tile // row_tiles
        first_column = column_tile * BLOCK_V
        x = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
        for k in range(0, D, BLOCK_D):
            h = hidden.load([first_row, k])
            w = weight.load([first_column, k])
            if INTERPRETED:
                # Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
                x = tl.dot(h.to(tl.float32), w.to(tl.float32).T, x)
            else:
                x = tl.dot(h, w.T, x)
        rows = first_row + tl.arange(0, BLOCK_N)
        cols = first_column + tl.arange(0, BLOCK_V)
        target = tl.load(targets + first + rows, mask=rows < n, other=ignore_index)
        c2 = tl.load(reference + first + rows, mask=rows < n, other=0.0)
        if BIAS:
            x += tl.load(bias + cols, mask=cols < V, other=0.0).to(tl.float32)[None, :]
        if first_column + BLOCK_V > V:
            x += tl.where(cols < V, 0.0, float("-inf"))[None, :]
        # 2^(x - inf) = 0: an ignored row needs no test of its own
        c2 = tl.where(rows < valid, c2, float("inf"))
        e = _exp2(tl.fma(x, LOG2_E, -c2[:, None]), INTERPRETED)
        e = tl.where(cols[None, :] == target[:, None], 0.0, e)
        if SCALED:
            e *= tl.load(factors + first + rows, mask=rows < n, other=0.0)[:, None]
        else:
            tl.store(sums + column_tile * n + rows, tl.sum(e, 1), mask=rows < n)
        if STORE:
            exponentials.store([first_row, first_column], e.to(tl.bfloat16))
    if STORE:
        # The products that follow read these tiles too.
        empty_tiles = (tl.cdiv(n, BLOCK_N) - row_tiles) * column_tiles
        nothing = tl.zeros((BLOCK_N, BLOCK_V), tl.bfloat16)
        for tile in range(tl.program_id(0), empty_tiles, tl.num_programs(0)):
            first_row = (row_tiles + tile // column_tiles) * BLOCK_N
            exponentials.store([first_row, (tile % column_tiles) * BLOCK_V], nothing)


@triton.jit
def _finish(x_t, c2, S, weight, z_loss):
    """(loss, F, E at the target) of rows, in float64."""
    c = c2.to(tl.float64) / LOG2_E
    loss, lse, factor, p_t, gradient_t = terms(x_t, c, S)
    pull = 1.0 + 2.0 * z_loss * lse
    loss += z_loss * lse * lse
    gradient_t += (pull - 1.0) * p_t
    return loss, factor * pull * weight, gradient_t / (factor * pull)


@triton.jit
def _logits_block(hidden, weight, bias, row, cols, V, D, BLOCK_D: tl.constexpr, BIAS: tl.constexpr):
    x = tl.zeros(cols.shape, tl.float32)
    for first in range(0, D, BLOCK_D):
        at = first + tl.arange(0, BLOCK_D)
        h = tl.load(hidden + row * D + at, mask=at < D, other=0.0).to(tl.float32)
        where = cols.to(tl.int64)[:, None] * D + at[None, :]
        inside = (cols < V)[:, None] & (at < D)[None, :]
        w = tl.load(weight + where, mask=inside, other=0.0).to(tl.float32)
        x += tl.sum(w * h[None, :], 1)
    if BIAS:
        x += tl.load(bias + cols, mask=cols < V, other=0.0).to(tl.float32)
    return x


@triton.jit
def _repair(
    row,
    hidden,
    weight,
    bias,
    targets,
    target_logits,
    reference,
    weights,
    losses,
    factors,
    target_gradients,
    exponentials,
    first,
    V,
    D,
    columns,
    z_loss,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STORE: tl.constexpr,
    BIAS: tl.constexpr,
):
    """A row whose c was too small, from its own product and its true maximum."""
    row = row.to(tl.int64)
    place = first + row
    target = tl.load(targets + place)
    x_t = tl.load(target_logits + place)
    m = tl.full((), float("-inf"), tl.float32)
    S = tl.full((), 0.0, tl.float64)
    for start in range(0, V, BLOCK_V):
        cols = start + tl.arange(0, BLOCK_V)
        x = _logits_block(hidden, weight, bias, row, cols, V, D, BLOCK_D, BIAS)
        x = tl.where((cols < V) & (cols != target), x, float("-inf"))
        new = tl.maximum(m, tl.max(x, 0))
        shift = tl.where(new == float("-inf"), 0.0, new)
        S = S * tl.exp(m - shift).to(tl.float64) + tl.sum(tl.exp(x - shift), 0).to(tl.float64)
        m = new
    c2 = tl.maximum(m, x_t) * LOG2_E
    S = S * tl.exp(m.to(tl.float64) - c2.to(tl.float64) / LOG2_E)
    weight_of_row = tl.full((), 0.0, tl.float64)
    if STORE:
        weight_of_row = tl.load(weights + place).to(tl.float64)
    loss, factor, at_target = _finish(x_t, c2, S, weight_of_row, z_loss)
    tl.store(losses + place, loss)
    if STORE:
        tl.store(factors + place, factor.to(tl.float32))
        tl.store(reference + place, c2)
        tl.store(target_gradients + place, (at_target * factor).to(tl.float32))
        for start in range(0, columns, BLOCK_V):
            cols = start + tl.arange(0, BLOCK_V)
            x = _logits_block(hidden, weight, bias, row, cols, V, D, BLOCK_D, BIAS)
            e = tl.where(cols < V, tl.exp2(tl.fma(x, LOG2_E, -c2)), 0.0)
            e = tl.where(cols == target, at_target.to(tl.float32), e)
            at = exponentials + row * columns + cols
            tl.store(at, e.to(tl.bfloat16), mask=cols < columns)


@triton.jit
def finish_rows(
    hidden,
    weight,
    bias,
    target_logits,
    reference,
    sums,
    targets,
    weights,
    losses,
    factors,
    target_gradients,
    exponentials,
    first,
    n,
    V,
    D,
    columns,
    column_tiles,
    ignore_index,
    z_loss,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STORE: tl.constexpr,
    BIAS: tl.constexpr,
):
    """From the tiles' sums to losses, factors and target gradients; rows whose c was too small are made again."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = rows < n
    S = tl.zeros((ROWS,), tl.float64)
    for start in range(0, column_tiles, TILES):
        tiles = start + tl.arange(0, TILES)
        at = sums + tiles[:, None] * n + rows[None, :]
        inside = (tiles < column_tiles)[:, None] & present[None, :]
        S += tl.sum(tl.load(at, mask=inside, other=0.0).to(tl.float64), 0)
    places = first + rows
    target = tl.load(targets + places, mask=present, other=ignore_index)
    counts = target != ignore_index
    x_t = tl.load(target_logits + places, mask=present, other=0.0)
    c2 = tl.load(reference + places, mask=present, other=0.0)
    of_rows = tl.full((ROWS,), 0.0, tl.float64)
    if STORE:
        of_rows = tl.load(weights + places, mask=present, other=0.0).to(tl.float64)
    loss, factor, at_target = _finish(x_t, c2, S, of_rows, z_loss)
    tl.store(losses + places, tl.where(counts, loss, 0.0), mask=present)
    if STORE:
        factor = tl.where(counts, factor, 0.0)
        tl.store(factors + places, factor.to(tl.float32), mask=present)
        known = present & counts & (target >= 0) & (target < V)
        at = rows.to(tl.int64) * columns + target
        tl.store(exponentials + at, at_target.to(tl.float32).to(tl.bfloat16), mask=known)
        tl.store(target_gradients + places, (at_target * factor).to(tl.float32), mask=present)
    broken = (counts & (S > LARGEST_SUM)).to(tl.int32)
    if tl.max(broken, 0) != 0:
        # what every thread has written of these rows is written over
        tl.debug_barrier()
        for index in range(ROWS):
            if tl.max(tl.where(tl.arange(0, ROWS) == index, broken, 0), 0) != 0:
                _repair(
                    tl.program_id(0) * ROWS + index,
                    hidden,
                    weight,
                    bias,
                    targets,
                    target_logits,
                    reference,
                    weights,
                    losses,
                    factors,
                    target_gradients,
                    exponentials,
                    first,
                    V,
                    D,
                    columns,
                    z_loss,
                    BLOCK_V,
                    BLOCK_D,
                    STORE,
                    BIAS,
                )


@triton.jit
def place_targets(targets, target_gradients, gradient, n, first, columns, ROWS: tl.constexpr):
    """gradient (n, columns) of the classes from `first` on, at the rows' targets among them."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = rows < n
    column = tl.load(targets + rows, mask=present, other=-1) - first
    value = tl.load(target_gradients + rows, mask=present, other=0.0)
    at = rows.to(tl.int64) * columns + column
    here = present & (column >= 0) & (column < columns)
    tl.store(gradient + at, value.to(tl.bfloat16), mask=here)


@triton.jit
def scale_rows(
    product,
    hidden,
    factors,
    order,
    gradient,
    exponentials,
    weight,
    all_hidden,
    next_hidden,
    first,
    n,
    next_n,
    D,
    columns,
    multiplied,
    BLOCK: tl.constexpr,
    SCATTER: tl.constexpr,
    SCALE: tl.constexpr,
    TAIL: tl.constexpr,
    GATHER: tl.constexpr,
):
    """With the factors of the n rows from `first` on: gradient[order] = factor * product, and hidden *= factor.

    The first `multiplied` classes are in the product, the last TAIL are added to it here. And
    next_hidden is made of the rows that follow.
    """
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factors + first + row)
    for start in range(0, D, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < D
        if SCATTER:
            value = tl.load(product + row * D + at, mask=inside, other=0.0)
            for j in tl.static_range(TAIL):
                e = tl.load(exponentials + row * columns + multiplied + j).to(tl.float32)
                of_class = weight + (multiplied + j).to(tl.int64) * D
                value += e * tl.load(of_class + at, mask=inside, other=0.0).to(tl.float32)
            to = gradient + tl.load(order + first + row) * D + at
            tl.store(to, (value * factor).to(gradient.dtype.element_ty), mask=inside)
        if SCALE:
            h = tl.load(hidden + row * D + at, mask=inside, other=0.0).to(tl.float32) * factor
            tl.store(hidden + row * D + at, h.to(hidden.dtype.element_ty), mask=inside)
        if GATHER:
            if row < next_n:
                of_row = all_hidden + tl.load(order + first + n + row) * D
                tl.store(next_hidden + row * D + at, tl.load(of_row + at, mask=inside), mask=inside)
