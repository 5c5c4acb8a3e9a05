"""The launches that turn rows of logits into losses, their sum and a gradient, as asked.

compute = rows(shape, stride, dtypes, device, gradient=True, ...)    # once for a layout and its options
compute(logits, targets, num_valid, gradient=gradient, losses=losses)
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy import layout
from traindoctor.kernels.cross_entropy.layout import Plan, power_of_2, row_strides
from traindoctor.kernels.cross_entropy.long_rows import LongRows, PartByPart, RowToRow, row_to_row
from traindoctor.kernels.cross_entropy.workspace import multiprocessors, workspace
from traindoctor.kernels.device import small_rows
from traindoctor.kernels.device.arithmetic import UNIT
from traindoctor.kernels.launch import Launch

# Up to this many classes several rows share a program.
SMALL = 4096
SMALL_TILE = 4096
# Up to this many rows each program of a small loss counts the valid targets itself: one launch less.
COUNTED_BY_EACH = 32768
# So many programs for each multiprocessor then: few, as all of them count, and enough to keep it busy.
COUNTING_PROGRAMS = 4
# Targets that are counted at a time.
COUNTED = 2048


class SmallRows:
    """Rows of at most SMALL classes: one launch."""

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device,
        *,
        switches: tuple[Any, ...],
        options: tuple[int | float, ...],
        losses: bool,
        total: bool,
        count: bool,
    ) -> None:
        V = shape[-1]
        self.num_rows = N = prod(shape[:-1])
        self._device = device
        self._ignore_index = int(options[0])
        each = count and N <= COUNTED_BY_EACH
        # Torch counts before the launch where the programs do not.
        self._count_first = count and not each
        # so that only what is asked for costs an address
        self._at_once = total and not losses and not self._count_first
        rows = max(1, min(64, SMALL_TILE // power_of_2(V)))
        self._programs = -(-N // rows)
        if each:
            self._programs = min(self._programs, COUNTING_PROGRAMS * multiprocessors(device))
        self._launch = Launch(
            small_rows.small_rows,
            self._programs,
            (N, V, *row_strides(shape, stride), *options),
            (rows, power_of_2(V), *switches, losses, total, COUNTED if each else 0),
            device,
            num_warps=4,
        )

    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        num_valid: Tensor | None,
        *,
        gradient: Tensor | None = None,
        weights: Tensor | None = None,
        losses: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Write what is not None; without `num_valid` the programs count for themselves."""
        if not self.num_rows:
            return
        room = None
        if total is not None:
            room = workspace(self._device, self._programs)
            if num_valid is None:
                num_valid = room.valid
            if self._at_once:
                # A pointer that is not used must still be one.
                here, there, unused = logits.data_ptr(), targets.data_ptr(), room.valid_at
                addresses = (
                    here,
                    here if gradient is None else gradient.data_ptr(),
                    there,
                    unused,
                    unused if num_valid is room.valid else num_valid.data_ptr(),
                    unused,
                    room.partials_at,
                    room.counter_at,
                    total.data_ptr(),
                )
                # What is not the caller's is fresh memory, and aligned.
                if self._launch.at(addresses, here | there):
                    return
        assert num_valid is not None
        if self._count_first:
            valid = (targets != self._ignore_index).view(-1)
            torch.sum(valid, 0, dtype=torch.float64, out=num_valid)
        self._launch(
            logits,
            logits if gradient is None else gradient,
            targets,
            num_valid if weights is None else weights,
            num_valid,
            num_valid if losses is None else losses,
            num_valid if room is None else room.partials,
            num_valid if room is None else room.counter,
            num_valid if total is None else total,
        )


@lru_cache(maxsize=1024)
def rows(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
    *,
    gradient: bool,
    weights: int = UNIT,
    losses: bool = False,
    total: bool = False,
    mean: bool = False,
    count: bool = False,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    cut: Plan | None = None,
) -> SmallRows | LongRows:
    """By everything that goes into them: a loss asks for the same ones at each step.

    `stride` as `layout.readable` leaves it; `dtypes` of logits, targets, weights and losses.
    `weights`: UNIT, SCALAR or PER_ROW. `count`: the gradient needs the number of valid targets, and
    it is not known yet.
    """
    small = shape[-1] <= SMALL and cut is None
    # The plain exponential's errors average out over a long row of bfloat16, whose gradient needs
    # no more; they do not over few classes, nor over the many equal logits of a float16 row.
    accurate = small or dtypes[0] != torch.bfloat16
    options = (ignore_index, label_smoothing, z_loss)
    switches = (gradient, weights, mean, label_smoothing != 0, z_loss != 0, accurate)
    if small:
        return SmallRows(
            shape,
            stride,
            device,
            switches=switches,
            options=options,
            losses=losses,
            total=total,
            count=count,
        )
    wanted = {"mean": mean, "losses": losses, "total": total, "count": count}
    dtype = dtypes[0]
    packed = row_to_row(dtype, device)
    if cut is None:
        cut = layout.plan(shape[-1], dtype.itemsize, multiprocessors(device), row_to_row=packed)
    if packed and cut.resident:
        return RowToRow(
            shape, stride, device, switches=switches, options=options, cut=cut, **wanted
        )
    return PartByPart(
        shape, stride, dtype, device, switches=switches, options=options, cut=cut, **wanted
    )
