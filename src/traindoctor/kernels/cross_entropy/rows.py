"""The launches that turn rows of logits into losses, their sum and a gradient, as asked.

compute = rows(shape, stride, dtypes, device, gradient=True, ...)    # once for a layout and its options
compute(logits, targets, num_valid, gradient=gradient, losses=losses)
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy import layout
from traindoctor.kernels.cross_entropy.layout import Plan, power_of_2, row_strides
from traindoctor.kernels.device import long_row, small_rows, totals
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
# Rows whose losses one program of `finish_losses` makes.
FINISHED_ROWS = 128


@cache
def multiprocessors(device: torch.device) -> int:
    """1 in the interpreter, which runs programs one after the other: no two may wait for each other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class Workspace:
    """What programs that add up a sum leave to each other: kept for each stream, by its addresses."""

    __slots__ = ("counter", "counter_at", "partials", "partials_at", "room", "valid", "valid_at")

    def __init__(self, device: torch.device, programs: int) -> None:
        self.room = programs
        # the count of finished programs, which every launch leaves at 0
        self.counter = torch.zeros(1, dtype=torch.int32, device=device)
        self.partials = torch.empty(2 * programs, dtype=torch.float64, device=device)
        # for a number of valid targets that nobody asked for
        self.valid = torch.empty((), dtype=torch.float64, device=device)
        self.counter_at = self.counter.data_ptr()
        self.partials_at = self.partials.data_ptr()
        self.valid_at = self.valid.data_ptr()


_WORKSPACES: dict[tuple[torch.device, int], Workspace] = {}


def workspace(device: torch.device, programs: int) -> Workspace:
    """Room for two partial sums of each program."""
    stream = 0
    if device.type == "cuda":
        # What a CUDA graph is to set to 0 at each replay must be its own.
        if torch._C._cuda_isCurrentStreamCapturing():
            return Workspace(device, programs)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = (device, stream)
    found = _WORKSPACES.get(key)
    if found is None or found.room < programs:
        found = _WORKSPACES[key] = Workspace(device, programs)
    return found


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


class LongRows:
    """Rows of more classes: several programs share one, and the losses are finished in a second launch."""

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        switches: tuple[Any, ...],
        options: tuple[int | float, ...],
        mean: bool,
        losses: bool,
        total: bool,
        count: bool,
        cut: Plan | None,
    ) -> None:
        V = shape[-1]
        self.num_rows = N = prod(shape[:-1])
        self._device = device
        self._count_first = count
        self._programs = -(-N // FINISHED_ROWS)
        cut = cut or layout.plan(V, dtype.itemsize, multiprocessors(device))
        self._parts = cut.parts
        self._launch = Launch(
            long_row.long_row,
            N * cut.parts,
            (N, V, *row_strides(shape, stride), *options),
            (
                16 // dtype.itemsize,
                cut.block,
                cut.held,
                cut.parts,
                power_of_2(cut.parts),
                *switches,
            ),
            device,
            num_warps=cut.num_warps,
        )
        self._count = Launch(
            totals.count_valid, 1, (N, int(options[0])), (4096,), device, num_warps=16
        )
        self._finish: Launch | None = None
        if losses or total:
            smooth, squared = options[1] != 0, options[2] != 0
            self._finish = Launch(
                totals.finish_losses,
                self._programs,
                (N, V, *options),
                (FINISHED_ROWS, cut.parts, mean, losses, total, smooth, squared),
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
        """Write what is not None; `num_valid` (float64) is read for a gradient of the mean, written with `total`."""
        if not self.num_rows:
            return
        N, device = self.num_rows, self._device
        if num_valid is None:
            num_valid = torch.empty((), dtype=torch.float64, device=device)
        # A pointer that is not used must still be one.
        partials = counter = num_valid
        if total is not None:
            room = workspace(device, self._programs)
            counter, partials = room.counter, room.partials
        numbers = torch.empty((3 + self._parts) * N, dtype=torch.float64, device=device)
        pairs = torch.empty(2 * self._parts * N, dtype=torch.float32, device=device)
        if self._count_first:
            arrivals = torch.empty(N, dtype=torch.int32, device=device)
            self._count(targets, arrivals, num_valid)
        else:
            arrivals = torch.zeros(N, dtype=torch.int32, device=device)
        self._launch(
            logits,
            logits if gradient is None else gradient,
            targets,
            num_valid if weights is None else weights,
            num_valid,
            numbers,
            pairs,
            arrivals,
        )
        if self._finish is not None:
            self._finish(
                targets,
                numbers,
                num_valid if losses is None else losses,
                partials,
                counter,
                num_valid if total is None else total,
                num_valid,
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
    return LongRows(
        shape,
        stride,
        dtypes[0],
        device,
        switches=switches,
        options=options,
        mean=mean,
        losses=losses,
        total=total,
        count=count,
        cut=cut,
    )
