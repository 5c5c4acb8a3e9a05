"""Linear cross-entropy on a GPU: chunks of rows, two products by cuBLAS, one by our own kernel.

bfloat16 goes through fused_kernels.py; other dtypes and label smoothing take the chunked loop with
the row kernel in place of torch's row functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from traindoctor.kernels.cross_entropy.triton import launch as launch_rows
from traindoctor.kernels.cross_entropy.triton import multiprocessors, power_of_2
from traindoctor.kernels.launch import launch
from traindoctor.kernels.linear_cross_entropy import fused_kernels
from traindoctor.kernels.linear_cross_entropy.chunked import Gradients, Wanted, over_chunks
from traindoctor.kernels.linear_cross_entropy.products import ALIGNMENT, PaddedWeight, mm

# Logits of a row that are looked at to place c (fused_kernels.py); half a percent of the product at V = 50257.
SAMPLES = 256
# The weight's gradient is added up in float32 up to this size; beyond it, in the weight's dtype over
# few and large chunks (each product still accumulates in float32), because the buffer would outweigh
# everything the fusion saves.
LARGEST_FLOAT32_GRADIENT = 450 << 20
# Bytes of a chunk of exponentials: near the weight's own size. Beside a float32 buffer for the
# weight's gradient it stays smaller; without one, large chunks mean few roundings of the gradient.
CHUNK_PER_WEIGHT = 1.35
SMALLEST_CHUNK = 64 << 20
LARGEST_CHUNK_BESIDE_FLOAT32 = 230 << 20
LARGEST_CHUNK = 502 << 20
# Bytes of shared memory of three stages of operands and one tile of exponentials.
SHARED_MEMORY = 216 << 10
# Rows of a chunk are a multiple of the kernel's tile.
ROW_TILE = 128


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
        launch_rows(
            x,
            targets,
            gradient=None if weights is None else x,
            weights=weights,
            num_valid=losses,
            losses=losses,
            total_loss=None,
            mean=False,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
        )
        return losses

    return over_chunks(hidden, weight, bias, targets, weights, wanted, rows)


@cache
def _tiles_fit(device: torch.device) -> bool:
    """Whether a multiprocessor has the shared memory that `Tiles` needs: Hopper and its successors."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= SHARED_MEMORY


def rows_per_chunk(V: int, D: int) -> int:
    """Rows whose exponentials make a chunk of the wanted size: whole tiles."""
    beside = 4 * V * D <= LARGEST_FLOAT32_GRADIENT
    most = LARGEST_CHUNK_BESIDE_FLOAT32 if beside else LARGEST_CHUNK
    size = min(max(SMALLEST_CHUNK, int(CHUNK_PER_WEIGHT * V * D * 2)), most)
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
    columns = triton.cdiv(V, ALIGNMENT) * ALIGNMENT
    losses = torch.empty(N, dtype=torch.float64, device=device)
    dhidden = torch.empty(N, D, dtype=wanted.hidden, device=device) if wanted.hidden else None
    dweight = None
    if wanted.weight:
        exact = wanted.weight != torch.bfloat16 or 4 * V * D <= LARGEST_FLOAT32_GRADIENT
        dtype = torch.float32 if exact else torch.bfloat16
        dweight = torch.empty(padded.columns, D, dtype=dtype, device=device)
        if N == 0:
            dweight.zero_()
    dbias = torch.zeros(V, dtype=torch.float32, device=device) if wanted.bias else None
    target_logits, reference = references(hidden, weight, bias, targets, ignore_index)
    step = min(rows_per_chunk(V, D), max(N, 1))
    E = torch.empty(step if store else 1, columns, dtype=torch.bfloat16, device=device)
    weight_tiles = TensorDescriptor.from_tensor(weight, [tiles.classes, tiles.width])
    for start in range(0, N, step):
        part = slice(start, min(start + step, N))
        h = hidden[part]
        e = E[: len(h)] if store else E
        factors = exponentials(
            h,
            weight,
            bias,
            targets[part],
            target_logits[part],
            reference[part],
            weights[part] if weights is not None and store else None,
            losses[part],
            e,
            ignore_index=ignore_index,
            z_loss=z_loss,
            tiles=tiles,
            weight_tiles=weight_tiles,
        )
        if not store:
            continue
        # the same columns on a GPU; without padding (the interpreter's CPU products) the first V
        e = e[:, : padded.columns]
        if dhidden is not None:
            torch.mul(padded.hidden_gradient(e), factors.unsqueeze(1), out=dhidden[part])
        if dweight is not None:
            scaled = torch.empty_like(h)
            torch.mul(h, factors.unsqueeze(1), out=scaled)
            padded.add_weight_gradient(dweight, e, scaled, first=start == 0)
        if dbias is not None:
            dbias += _column_sums(e, factors)[:V]
    # Their memory is wanted for the gradient in the weight's own dtype.
    E = e = torch.empty(0)
    return losses, Gradients(
        hidden=dhidden,
        weight=None if dweight is None else dweight[:V].to(wanted.weight),
        bias=None if dbias is None else dbias.to(wanted.bias),
    )


def _column_sums(e: Tensor, factors: Tensor) -> Tensor:
    """factors @ e; the factors as a sum of two bfloat16, in 8 columns to please cuBLAS."""
    high = factors.bfloat16()
    both = torch.zeros(len(factors), 8, dtype=torch.bfloat16, device=e.device)
    both[:, 0] = high
    both[:, 1] = factors - high.float()
    return mm(e.t(), both).sum(1)


def references(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The target's logit x_t and a number c near the largest logit, for every row, in float32."""
    (N, D), V = hidden.shape, weight.shape[0]
    numbers = torch.empty(2, N, dtype=torch.float32, device=hidden.device)
    if N == 0:
        return numbers[0], numbers[1]
    sample_step = triton.cdiv(V, SAMPLES)
    sample = mm(hidden, weight[::sample_step].t())  # (N, about SAMPLES)
    num_samples = sample.shape[1]
    launch(
        fused_kernels.references,
        N,
        (
            hidden,
            weight,
            bias if bias is not None else sample,
            targets,
            sample,
            numbers[0],
            numbers[1],
        ),
        (V, D, num_samples, sample_step, ignore_index),
        (min(1024, power_of_2(D)), power_of_2(num_samples), bias is not None),
        num_warps=4,
    )
    return numbers[0], numbers[1]


def exponentials(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    target_logits: Tensor,
    reference: Tensor,
    weights: Tensor | None,
    losses: Tensor,
    E: Tensor,
    *,
    ignore_index: int,
    z_loss: float,
    tiles: Tiles,
    weight_tiles: TensorDescriptor | None = None,
) -> Tensor:
    """Fill `losses` (n,) and, with `weights`, E (n, columns); give the rows' factors F (n,)."""
    (n, D), V = hidden.shape, weight.shape[0]
    device = hidden.device
    columns = E.shape[1]
    store = weights is not None
    column_tiles = triton.cdiv(columns, tiles.classes)
    factors = torch.empty(n, dtype=torch.float32, device=device)
    sums = torch.empty(column_tiles, n, dtype=torch.float32, device=device)
    broken = torch.empty(n, dtype=torch.int8, device=device)
    some = bias if bias is not None else sums
    row_weights = weights if weights is not None else sums
    grid = triton.cdiv(n, tiles.rows) * column_tiles
    if tiles.persistent and hidden.is_cuda:
        grid = min(grid, multiprocessors(device))
    launch(
        fused_kernels.exp_logits,
        grid,
        (some, targets, reference, sums),
        (n, V, D, columns, ignore_index),
        (tiles.rows, tiles.classes, tiles.width, store, bias is not None, tiles.persistent),
        descriptors=(
            TensorDescriptor.from_tensor(hidden, [tiles.rows, tiles.width]),
            weight_tiles or TensorDescriptor.from_tensor(weight, [tiles.classes, tiles.width]),
            TensorDescriptor.from_tensor(E, [tiles.rows, tiles.classes]),
        ),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    of_rows = (row_weights, losses, factors, E, broken)
    launch(
        fused_kernels.finish_rows,
        triton.cdiv(n, 32),
        (target_logits, reference, sums, targets, *of_rows),
        (n, V, columns, column_tiles, ignore_index, z_loss),
        (32, store),
        num_warps=1,
    )
    launch(
        fused_kernels.repair,
        n,
        (hidden, weight, some, targets, target_logits, *of_rows),
        (V, D, columns, z_loss),
        (64, min(128, power_of_2(D)), store, bias is not None),
        num_warps=4,
    )
    return factors
