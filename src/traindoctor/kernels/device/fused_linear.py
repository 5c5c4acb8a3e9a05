"""Triton kernels of the fused loss: exponentials of logits straight out of the matrix product.

Legend: n rows of a chunk, V classes, D width. `exp_logits` multiplies hidden (n, D) by weight (V, D)
and, while a tile of logits x is still in registers in float32, writes E = exp(x - c) in bfloat16 and
the row's sum S of it. c is any number near the row's largest logit: bfloat16 has float32's range, so
c needs no more than to be within e^60 of it, and E keeps its 8 bits relative to itself, where logits
rounded to bfloat16 would be off by a few percent in probability. Everything per row is then a factor:

    gradient of the logits = F[n] * E[n, j]     with E at the target set so that this is p_t - 1

so dH = F (E @ W) and dW = E.T @ (F H): the logits are neither stored in float32 nor read again.
Once F is known `exp_logits` can also write F * E itself (SCALED), for classes that are done twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from traindoctor.kernels.device.arithmetic import terms

# A row whose sum exceeds this (a logit 60 nats above c) is done again by `repair`.
LARGEST_SUM = tl.constexpr(1e26)


@triton.jit
def references(
    hidden,
    weight,
    bias,
    targets,
    sample,
    target_logits,
    reference,
    V,
    D,
    num_samples,
    sample_step,
    ignore_index,
    BLOCK: tl.constexpr,
    SAMPLES: tl.constexpr,
    BIAS: tl.constexpr,
):
    """x_t = hidden . weight[t], and c = the larger of x_t and of a sample of the row's other logits."""
    row = tl.program_id(0).to(tl.int64)
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
    tl.store(target_logits + row, tl.where(known, x_t, float("nan")))
    tl.store(reference + row, c)


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
    WIDEN: tl.constexpr,
):
    """E and its row sums without the target, for tiles (BLOCK_N, BLOCK_V); operands by TMA descriptor."""
    row_tiles = tl.cdiv(n, BLOCK_N)
    tiles = row_tiles * tl.cdiv(columns, BLOCK_V)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=FLATTEN):
        # Rows first: neighbours share a tile of the weight, and the hidden chunk stays in the cache.
        first_row = (tile % row_tiles) * BLOCK_N
        column_tile = tile // row_tiles
        first_column = column_tile * BLOCK_V
        x = tl.zeros((BLOCK_N, BLOCK_V), tl.float32)
        for k in range(0, D, BLOCK_D):
            h = hidden.load([first_row, k])
            w = weight.load([first_column, k])
            if WIDEN:
                # Triton's interpreter multiplies the bits of bfloat16 as if they were integers.
                x = tl.dot(h.to(tl.float32), w.to(tl.float32).T, x)
            else:
                x = tl.dot(h, w.T, x)
        rows = first_row + tl.arange(0, BLOCK_N)
        cols = first_column + tl.arange(0, BLOCK_V)
        target = tl.load(targets + rows, mask=rows < n, other=ignore_index)
        c = tl.load(reference + rows, mask=rows < n, other=0.0)
        if BIAS:
            x += tl.load(bias + cols, mask=cols < V, other=0.0).to(tl.float32)[None, :]
        if first_column + BLOCK_V > V:
            x += tl.where(cols < V, 0.0, float("-inf"))[None, :]
        # exp(x - inf) = 0: an ignored row needs no test of its own
        c = tl.where(target == ignore_index, float("inf"), c)
        e = tl.where(cols[None, :] == target[:, None], 0.0, tl.exp(x - c[:, None]))
        if SCALED:
            e *= tl.load(factors + rows, mask=rows < n, other=0.0)[:, None]
        else:
            tl.store(sums + column_tile * n + rows, tl.sum(e, 1), mask=rows < n)
        if STORE:
            exponentials.store([first_row, first_column], e.to(tl.bfloat16))


@triton.jit
def _finish(x_t, c, S, weight, z_loss):
    """(loss, F, E at the target) of rows, in float64."""
    loss, lse, factor, p_t, gradient_t = terms(x_t, c, S)
    pull = 1.0 + 2.0 * z_loss * lse
    loss += z_loss * lse * lse
    gradient_t += (pull - 1.0) * p_t
    return loss, factor * pull * weight, gradient_t / (factor * pull)


@triton.jit
def finish_rows(
    target_logits,
    reference,
    sums,
    targets,
    weights,
    losses,
    factors,
    target_gradients,
    exponentials,
    broken,
    n,
    V,
    columns,
    column_tiles,
    ignore_index,
    z_loss,
    ROWS: tl.constexpr,
    STORE: tl.constexpr,
):
    """From the tiles' sums to losses, factors and target gradients; marks rows whose c was too small."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = rows < n
    S = tl.zeros((ROWS,), tl.float64)
    for tile in range(column_tiles):
        S += tl.load(sums + tile * n + rows, mask=present, other=0.0).to(tl.float64)
    target = tl.load(targets + rows, mask=present, other=ignore_index)
    counts = target != ignore_index
    x_t = tl.load(target_logits + rows, mask=present, other=0.0)
    c = tl.load(reference + rows, mask=present, other=0.0)
    weight = tl.full((ROWS,), 0.0, tl.float64)
    if STORE:
        weight = tl.load(weights + rows, mask=present, other=0.0).to(tl.float64)
    loss, factor, at_target = _finish(x_t, c, S, weight, z_loss)
    tl.store(losses + rows, tl.where(counts, loss, 0.0), mask=present)
    tl.store(broken + rows, (counts & (S > LARGEST_SUM)).to(tl.int8), mask=present)
    if STORE:
        factor = tl.where(counts, factor, 0.0)
        tl.store(factors + rows, factor.to(tl.float32), mask=present)
        known = present & counts & (target >= 0) & (target < V)
        at = rows.to(tl.int64) * columns + target
        tl.store(exponentials + at, at_target.to(tl.float32).to(tl.bfloat16), mask=known)
        tl.store(target_gradients + rows, (at_target * factor).to(tl.float32), mask=present)


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
def repair(
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
    broken,
    V,
    D,
    columns,
    z_loss,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STORE: tl.constexpr,
    BIAS: tl.constexpr,
):
    """Rows that `finish_rows` marked, from their own products and their true maximum; else nothing."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(broken + row) != 0:
        target = tl.load(targets + row)
        x_t = tl.load(target_logits + row)
        m = tl.full((), float("-inf"), tl.float32)
        S = tl.full((), 0.0, tl.float64)
        for first in range(0, V, BLOCK_V):
            cols = first + tl.arange(0, BLOCK_V)
            x = _logits_block(hidden, weight, bias, row, cols, V, D, BLOCK_D, BIAS)
            x = tl.where((cols < V) & (cols != target), x, float("-inf"))
            new = tl.maximum(m, tl.max(x, 0))
            shift = tl.where(new == float("-inf"), 0.0, new)
            S = S * tl.exp(m - shift).to(tl.float64) + tl.sum(tl.exp(x - shift), 0).to(tl.float64)
            m = new
        # As everywhere in the fused loss: c is at least x_t.
        c = tl.maximum(m, x_t)
        S = S * tl.exp(m - c).to(tl.float64)
        weight_of_row = tl.full((), 0.0, tl.float64)
        if STORE:
            weight_of_row = tl.load(weights + row).to(tl.float64)
        loss, factor, at_target = _finish(x_t, c, S, weight_of_row, z_loss)
        tl.store(losses + row, loss)
        if STORE:
            tl.store(factors + row, factor.to(tl.float32))
            tl.store(reference + row, c)
            tl.store(target_gradients + row, (at_target * factor).to(tl.float32))
            for first in range(0, columns, BLOCK_V):
                cols = first + tl.arange(0, BLOCK_V)
                x = _logits_block(hidden, weight, bias, row, cols, V, D, BLOCK_D, BIAS)
                e = tl.where(cols < V, tl.exp(x - c), 0.0)
                e = tl.where(cols == target, at_target.to(tl.float32), e)
                at = exponentials + row * columns + cols
                tl.store(at, e.to(tl.bfloat16), mask=cols < columns)
