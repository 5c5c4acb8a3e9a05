"""The launches of the fused linear loss: rows of a chunk times the weight, and what is made of the tiles.

The kernels are in kernels/device/fused_linear.py; triton.py walks over the chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from traindoctor.kernels.cross_entropy.layout import power_of_2
from traindoctor.kernels.cross_entropy.workspace import SLICE, multiprocessors, slices
from traindoctor.kernels.device import fused_linear, totals
from traindoctor.kernels.launch import INTERPRETED, launch
from traindoctor.kernels.linear_cross_entropy.products import mm

# Logits of a row that are looked at to place c (kernels/device/fused_linear.py); half a percent of the product at V = 50257.
SAMPLES = 256
# Bytes of shared memory of three stages of operands and one tile of exponentials.
SHARED_MEMORY = 216 << 10
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
    """one program per multiprocessor walks over the tiles"""


# The fastest shape at D = 768 and, as far as the heat of the device allows to tell, at 4096.
TILES = Tiles()


@cache
def tiles_fit(device: torch.device) -> bool:
    """Whether a multiprocessor has the shared memory that `Tiles` needs: Hopper and its successors."""
    if device.type != "cuda":
        return True
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 0) >= SHARED_MEMORY


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
    programs, length = slices(N, device)
    launch(
        totals.valid_first,
        programs,
        (targets, order, num_valid, order),
        (N, length, 0, ignore_index),
        (SLICE,),
        num_warps=8,
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
    )
    launch(
        fused_linear.finish_rows,
        cdiv(n, 8),
        (
            hidden,
            weight,
            some,
            numbers.target_logits,
            numbers.reference,
            sums,
            numbers.targets,
            *of_rows,
        ),
        (first, n, V, D, columns, column_tiles, ignore_index, z_loss),
        (8, 256, 64, min(128, power_of_2(D)), store, bias is not None),
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
