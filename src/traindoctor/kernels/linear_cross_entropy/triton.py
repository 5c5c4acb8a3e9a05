"""Linear cross-entropy on a GPU: chunks of rows, two products by cuBLAS, one by our own kernel.

bfloat16 goes through kernels/device/fused_linear.py; other dtypes and label smoothing take the chunked loop with
the row kernel in place of torch's row functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy.layout import power_of_2
from traindoctor.kernels.cross_entropy.rows import rows as row_launches
from traindoctor.kernels.device import fused_linear
from traindoctor.kernels.device.arithmetic import PER_ROW, UNIT
from traindoctor.kernels.launch import launch
from traindoctor.kernels.linear_cross_entropy.chunked import Gradients, Wanted, over_chunks
from traindoctor.kernels.linear_cross_entropy.exponentials import (
    TILES,
    Described,
    Tiles,
    cdiv,
    exponentials,
    references,
    scaled_exponentials,
    tiles_fit,
)
from traindoctor.kernels.linear_cross_entropy.products import ALIGNMENT, PaddedWeight, mm
from traindoctor.kernels.linear_cross_entropy.weight_gradient import (
    Float32Sum,
    HalfInPlace,
    WeightGradient,
)

# The weight's gradient is added up in a float32 buffer up to this size; beyond it the buffer would
# outweigh everything the fusion saves: see weight_gradient.py.
LARGEST_FLOAT32_GRADIENT = 450 << 20
# Bytes of a chunk of exponentials: near the weight's own size, smaller beside a float32 buffer for
# the weight's gradient. Large chunks mean that the sums are read and written less often.
CHUNK_PER_WEIGHT = 1.35
SMALLEST_CHUNK = 64 << 20
LARGEST_CHUNK_BESIDE_FLOAT32 = 230 << 20
LARGEST_CHUNK = 502 << 20
# With many rows a chunk may take this part of what all logits would take in bfloat16.
PART_OF_LOGITS = 16
# Elements that the product for the gradient of the hidden states must have a multiple of, or it is slow.
VECTOR = 8
# Bytes of hidden states up to which a chunk's are put in order while the one before is worked on: a launch less.
GATHERED_AHEAD = 4 << 20
# Rows of a chunk are a multiple of the kernel's tile.
ROW_TILE = 128


def losses_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    weights: Tensor | None,
    wanted: Wanted,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Gradients]:
    """Row losses (N,) in float64 and the gradients of sum(weights * losses); see chunked.py."""
    hidden, weight, targets = hidden.contiguous(), weight.contiguous(), targets.contiguous()
    # TMA wants rows of whole 16-byte vectors.
    vectors = hidden.dtype == torch.bfloat16 and hidden.shape[1] % 8 == 0
    if vectors and not label_smoothing and tiles_fit(hidden.device):
        return fused(
            hidden,
            weight,
            bias,
            targets,
            weights=weights,
            wanted=wanted,
            ignore_index=ignore_index,
            z_loss=z_loss,
        )

    def rows(x: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        losses = torch.empty(len(x), dtype=torch.float64, device=x.device)
        compute = row_launches(
            tuple(x.shape),
            tuple(x.stride()),
            (x.dtype, targets.dtype, losses.dtype, losses.dtype),
            x.device,
            gradient=weights is not None,
            weights=UNIT if weights is None else PER_ROW,
            losses=True,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
        in_place = None if weights is None else x
        compute(x, targets, losses, gradient=in_place, weights=weights, losses=losses)
        return losses

    return over_chunks(hidden, weight, bias, targets, weights, wanted, rows)


def rows_per_chunk(N: int, V: int, D: int) -> int:
    """Rows whose exponentials make a chunk of the wanted size: whole tiles."""
    beside = 4 * V * D <= LARGEST_FLOAT32_GRADIENT
    most = LARGEST_CHUNK_BESIDE_FLOAT32 if beside else LARGEST_CHUNK
    size = min(max(SMALLEST_CHUNK, int(CHUNK_PER_WEIGHT * V * D * 2)), most)
    size = max(size, min(2 * N * V // PART_OF_LOGITS, LARGEST_CHUNK))
    return max(ROW_TILE, size // (2 * V) // ROW_TILE * ROW_TILE)


def fused(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    weights: Tensor | None,
    wanted: Wanted,
    ignore_index: int,
    z_loss: float,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Gradients]:
    """The bfloat16 path."""
    tiles = tiles or TILES
    (N, D), V = hidden.shape, weight.shape[0]
    device = hidden.device
    store = bool(wanted)
    padded = PaddedWeight(weight)
    columns = cdiv(V, ALIGNMENT) * ALIGNMENT
    numbers = references(hidden, weight, bias, targets, ignore_index)
    order = numbers.order
    weights = None if weights is None else weights[order]
    dhidden = torch.empty(N, D, dtype=wanted.hidden, device=device) if wanted.hidden else None
    dweight: WeightGradient | None = None
    if wanted.weight == torch.bfloat16 and 4 * V * D > LARGEST_FLOAT32_GRADIENT:
        dweight = HalfInPlace(padded, tiles.classes)
    elif wanted.weight:
        dweight = Float32Sum(padded, wanted.weight)
    dbias = torch.zeros(V, dtype=torch.float32, device=device) if wanted.bias else None
    step = min(rows_per_chunk(N, V, D), max(N, 1))
    E = torch.empty(step if store else 1, columns, dtype=torch.bfloat16, device=device)
    # of one chunk and, if there is room, of the next
    gather = store and 2 * step * D <= GATHERED_AHEAD
    rooms = torch.empty(1 + gather, step, D, dtype=hidden.dtype, device=device).unbind()
    room = E.numel()
    described = Described()
    # cuBLAS wants whole vectors here too; `scale_rows` adds the few classes behind the last.
    multiplied = V - V % VECTOR if hidden.is_cuda and V >= VECTOR else V
    for start in range(0, N, step):
        n = min(step, N - start)
        h, following = rooms[0], rooms[-1]
        rooms = rooms[::-1]
        h, e = (h, E) if n == step else (h[:n], E[:n] if store else E)
        if start == 0 or not gather:
            torch.index_select(hidden, 0, order[start : start + n], out=h)
        exponentials(
            h,
            weight,
            bias,
            numbers,
            start,
            weights if store else None,
            e,
            ignore_index=ignore_index,
            z_loss=z_loss,
            tiles=tiles,
            described=described,
        )
        if not store:
            continue
        # the same columns on a GPU; without padding (the interpreter's CPU products) the first V
        if padded.columns != columns:
            e = e[:, : padded.columns]
        product = None if dhidden is None else mm(e[:, :multiplied], weight[:multiplied])
        launch(
            fused_linear.scale_rows,
            n,
            (
                h if product is None else product,
                h,
                numbers.factors,
                order,
                h if dhidden is None else dhidden,
                e,
                weight,
                hidden,
                following,
            ),
            (start, n, max(min(step, N - start - n), 0), D, columns, multiplied),
            (
                min(1024, power_of_2(D)),
                dhidden is not None,
                dweight is not None,
                V - multiplied,
                gather and start + n < N,
            ),
            num_warps=4,
        )
        # Its memory is wanted for the next chunk.
        product = None
        if dweight is not None:
            dweight.add(e, h)
        if dbias is not None:
            dbias += _column_sums(e, numbers.factors[start : start + n])[:V]
    # Their memory is wanted for what follows.
    E = e = h = following = torch.empty(0)
    rooms = (h, h)
    described.clear()

    def again(first: int, out: Tensor, in_order: Tensor) -> None:
        scaled_exponentials(in_order, weight, bias, numbers, first, out, tiles)

    return torch.empty_like(numbers.losses).index_copy_(0, order, numbers.losses), Gradients(
        hidden=dhidden,
        weight=None if dweight is None else dweight.finish(hidden, order, again, room)[:V],
        bias=None if dbias is None else dbias.to(wanted.bias),
    )


def _column_sums(e: Tensor, factors: Tensor) -> Tensor:
    """factors @ e; the factors as a sum of two bfloat16, in 8 columns to please cuBLAS."""
    high = factors.bfloat16()
    both = torch.zeros(len(factors), 8, dtype=torch.bfloat16, device=e.device)
    both[:, 0] = high
    both[:, 1] = factors - high.float()
    return mm(e.t(), both).sum(1)
