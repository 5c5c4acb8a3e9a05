"""Linear cross-entropy on a GPU: chunks of rows, two products by cuBLAS, one by our own kernel.

bfloat16 goes through kernels/device/fused_linear.py; other dtypes and label smoothing take the chunked loop with
the row kernel in place of torch's row functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from traindoctor.kernels.cross_entropy.layout import power_of_2
from traindoctor.kernels.cross_entropy.triton import multiprocessors
from traindoctor.kernels.cross_entropy.triton import rows as row_launches
from traindoctor.kernels.device import fused_linear
from traindoctor.kernels.device.arithmetic import PER_ROW, UNIT
from traindoctor.kernels.launch import INTERPRETED, launch
from traindoctor.kernels.linear_cross_entropy.chunked import Gradients, Wanted, over_chunks
from traindoctor.kernels.linear_cross_entropy.products import ALIGNMENT, PaddedWeight, mm
from traindoctor.kernels.linear_cross_entropy.weight_gradient import (
    Float32Sum,
    HalfInPlace,
    WeightGradient,
)

# Logits of a row that are looked at to place c (kernels/device/fused_linear.py); half a percent of the product at V = 50257.
SAMPLES = 256
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
# Bytes of shared memory of three stages of operands and one tile of exponentials.
SHARED_MEMORY = 216 << 10
# Rows of a chunk are a multiple of the kernel's tile.
ROW_TILE = 128
# Hidden states of so many rows (16 MB at D = 4096) stay in the GPU's cache while a product reads them.
CACHED_ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """The shape of the product's tiles; measured on an H200, see benchmarks/linear_cross_entropy.py --sweep."""

    rows: int = 128
    classes: int = 256
    width: int = 64
    num_warps: int = 8
    num_stages: int = 3
    persistent: bool = False
    """one program per multiprocessor walks over the tiles: pays where D is small and tiles are short"""


def tiles_for(D: int) -> Tiles:
    """The fastest shape for a width."""
    return Tiles(persistent=D <= 1024)


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
    if vectors and not label_smoothing and _tiles_fit(hidden.device):
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


@cache
def _tiles_fit(device: torch.device) -> bool:
    """Whether a multiprocessor has the shared memory that `Tiles` needs: Hopper and its successors."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= SHARED_MEMORY


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
    tiles = tiles or tiles_for(hidden.shape[1])
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
    H = torch.empty(step, D, dtype=hidden.dtype, device=device)
    room = E.numel()
    described = Described()
    for start in range(0, N, step):
        n = min(step, N - start)
        h, e = (H, E) if n == step else (H[:n], E[:n] if store else E)
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
        product = None if dhidden is None else padded.hidden_gradient(e)
        launch(
            fused_linear.scale_rows,
            n,
            (
                h if product is None else product,
                h,
                numbers.factors,
                order,
                h if dhidden is None else dhidden,
            ),
            (start, D),
            (min(1024, power_of_2(D)), dhidden is not None, dweight is not None),
            num_warps=4,
        )
        # Its memory is wanted for the next chunk.
        product = None
        if dweight is not None:
            dweight.add(e, h)
        if dbias is not None:
            dbias += _column_sums(e, numbers.factors[start : start + n])[:V]
    # Their memory is wanted for what follows.
    E = e = H = h = torch.empty(0)
    described.clear()

    def again(first: int, out: Tensor, in_order: Tensor) -> None:
        scaled_exponentials(in_order, weight, bias, numbers, first, out, tiles)

    return torch.empty_like(numbers.losses).index_copy_(0, order, numbers.losses), Gradients(
        hidden=dhidden,
        weight=None if dweight is None else dweight.finish(hidden, order, again, room)[:V],
        bias=None if dbias is None else dbias.to(wanted.bias),
    )


@dataclass(frozen=True, kw_only=True)
class RowNumbers:
    """What is known of each row, those that count first; each (n,), float32 where nothing else is said."""

    order: Tensor
    """which of the rows as they were given this is (int64)"""
    num_valid: Tensor
    """(1,): how many of all rows count (int32)"""
    targets: Tensor
    """int64"""
    target_logits: Tensor
    reference: Tensor
    """c2, near the largest logit in powers of 2"""
    losses: Tensor
    """float64"""
    factors: Tensor
    """F: the gradient of the logits is F * E"""
    target_gradients: Tensor
    """the gradient of the target's logit"""


class Described(dict[tuple[int, ...], TensorDescriptor]):
    """The descriptors by which TMA reads and writes tiles, made once for a place in memory."""

    def of(self, tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
        """Tiles of (rows, columns)."""
        key = (tensor.data_ptr(), *tensor.shape, rows, columns)
        found = self.get(key)
        if found is None:
            found = self[key] = TensorDescriptor.from_tensor(tensor, [rows, columns])
        return found


def _column_sums(e: Tensor, factors: Tensor) -> Tensor:
    """factors @ e; the factors as a sum of two bfloat16, in 8 columns to please cuBLAS."""
    high = factors.bfloat16()
    both = torch.zeros(len(factors), 8, dtype=torch.bfloat16, device=e.device)
    both[:, 0] = high
    both[:, 1] = factors - high.float()
    return mm(e.t(), both).sum(1)


def references(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int
) -> RowNumbers:
    """The order of the rows, the target's logit x_t and a number near the largest one; room for the rest."""
    (N, D), V = hidden.shape, weight.shape[0]
    device = hidden.device
    order, in_order = (torch.empty(N, dtype=torch.int64, device=device) for _ in range(2))
    num_valid = torch.empty(1, dtype=torch.int32, device=device)
    target_logits, reference, factors, target_gradients = (
        torch.empty(N, dtype=torch.float32, device=device) for _ in range(4)
    )
    numbers = RowNumbers(
        order=order,
        num_valid=num_valid,
        targets=in_order,
        target_logits=target_logits,
        reference=reference,
        losses=torch.empty(N, dtype=torch.float64, device=device),
        factors=factors,
        target_gradients=target_gradients,
    )
    if N == 0:
        return numbers
    launch(
        fused_linear.valid_first,
        1,
        (targets, order, num_valid),
        (N, ignore_index),
        (4096,),
        num_warps=16,
    )
    sample_step = cdiv(V, SAMPLES)
    sample = mm(hidden, weight[::sample_step].t())  # (N, about SAMPLES)
    num_samples = sample.shape[1]
    launch(
        fused_linear.references,
        N,
        (
            hidden,
            weight,
            bias if bias is not None else sample,
            targets,
            sample,
            order,
            target_logits,
            reference,
            in_order,
        ),
        (V, D, num_samples, sample_step, ignore_index),
        (min(1024, power_of_2(D)), power_of_2(num_samples), bias is not None),
        num_warps=4,
    )
    return numbers


def exponentials(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    numbers: RowNumbers,
    first: int,
    weights: Tensor | None,
    E: Tensor,
    *,
    ignore_index: int,
    z_loss: float,
    tiles: Tiles,
    described: Described,
) -> None:
    """Fill the rows' losses and, with `weights`, E (n, columns), factors and target gradients.

    `hidden` and `E` are of the n rows that are `first` and following in the order of all.
    """
    (n, D), V = hidden.shape, weight.shape[0]
    device = hidden.device
    columns = E.shape[1]
    store = weights is not None
    column_tiles = cdiv(columns, tiles.classes)
    sums = torch.empty(column_tiles, n, dtype=torch.float32, device=device)
    broken = torch.empty(n, dtype=torch.int8, device=device)
    some = bias if bias is not None else sums
    _multiply(
        hidden,
        weight,
        E,
        (some, numbers.targets, numbers.reference, sums, numbers.factors, numbers.num_valid),
        (first, n, V, D, columns, ignore_index),
        (store, False, bias is not None),
        tiles,
        described,
    )
    of_rows = (
        weights if weights is not None else sums,
        numbers.losses,
        numbers.factors,
        numbers.target_gradients,
        E,
        broken,
    )
    launch(
        fused_linear.finish_rows,
        cdiv(n, 8),
        (numbers.target_logits, numbers.reference, sums, numbers.targets, *of_rows),
        (first, n, V, columns, column_tiles, ignore_index, z_loss),
        (8, 256, store),
        num_warps=4,
    )
    launch(
        fused_linear.repair,
        n,
        (
            hidden,
            weight,
            some,
            numbers.targets,
            numbers.target_logits,
            numbers.reference,
            *of_rows,
        ),
        (first, V, D, columns, z_loss),
        (64, min(128, power_of_2(D)), store, bias is not None),
        num_warps=4,
    )


def scaled_exponentials(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    numbers: RowNumbers,
    first: int,
    out: Tensor,
    tiles: Tiles,
) -> None:
    """Fill `out` (N, width) with the gradient of the logits of classes from `first` on, their rows being done.

    `hidden` in the order of `numbers`.
    """
    (N, D), V = hidden.shape, weight.shape[0]
    width = out.shape[1]
    described = Described()
    # Classes by their place in `out`; no row is ignored here, an ignored one has factor 0.
    places, no_index = numbers.targets - first, -(1 << 30)
    reference = numbers.reference
    some = reference if bias is None else bias[first:]
    for start in range(0, N, CACHED_ROWS):
        part = slice(start, min(start + CACHED_ROWS, N))
        _multiply(
            hidden[part],
            weight[first:],
            out[part],
            (some, places, reference, reference, numbers.factors, numbers.num_valid),
            (start, part.stop - start, V - first, D, width, no_index),
            (True, True, bias is not None),
            tiles,
            described,
        )
    launch(
        fused_linear.place_targets,
        cdiv(N, 128),
        (numbers.targets, numbers.target_gradients, out),
        (N, first, width),
        (128,),
        num_warps=4,
    )


def _multiply(
    hidden: Tensor,
    weight: Tensor,
    E: Tensor,
    of_rows: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    switches: tuple[bool, bool, bool],
    tiles: Tiles,
    described: Described,
) -> None:
    """The product and what is done to its tiles; `switches`: store E, scale it by the factors, add a bias."""
    grid = cdiv(hidden.shape[0], tiles.rows) * cdiv(E.shape[1], tiles.classes)
    if tiles.persistent and hidden.is_cuda:
        grid = min(grid, multiprocessors(hidden.device))
    launch(
        fused_linear.exp_logits,
        grid,
        of_rows,
        sizes,
        (tiles.rows, tiles.classes, tiles.width, *switches, tiles.persistent, INTERPRETED),
        descriptors=(
            described.of(hidden, tiles.rows, tiles.width),
            described.of(weight, tiles.classes, tiles.width),
            described.of(E, tiles.rows, tiles.classes),
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )


def cdiv(n: int, by: int) -> int:
    """Rounded up; Triton's own takes a few microseconds a call."""
    return -(-n // by)
