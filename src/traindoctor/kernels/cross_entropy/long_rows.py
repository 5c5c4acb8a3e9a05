"""The launches for rows of many classes, which several programs share: the rows, then their losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache, partial
from math import prod
from typing import Any, final

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy.layout import REGISTERS, Plan, plan, power_of_2, row_strides
from traindoctor.kernels.cross_entropy.workspace import SLICE, multiprocessors, slices, workspace
from traindoctor.kernels.device import bfloat16_rows, long_row, totals
from traindoctor.kernels.launch import INTERPRETED, Launch

# Rows whose losses one program of `finish_losses` makes.
FINISHED_ROWS = 128


def row_to_row(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether bfloat16_rows.py runs there: it speaks to the device in its own words."""
    if dtype != torch.bfloat16 or torch.version.hip is not None:
        return False
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


class LongRows(ABC):
    """What both ways have in common: the losses are finished in a last launch."""

    def __init__(
        self,
        shape: tuple[int, ...],
        device: torch.device,
        *,
        options: tuple[int | float, ...],
        mean: bool,
        losses: bool,
        total: bool,
        count: bool,
        cut: Plan,
    ) -> None:
        self.num_rows = N = prod(shape[:-1])
        self._device = device
        self._count_first = count
        self._parts = cut.parts
        self._programs = -(-N // FINISHED_ROWS)
        self._finish: Launch | None = None
        if losses or total:
            smooth, squared = options[1] != 0, options[2] != 0
            self._finish = Launch(
                totals.finish_losses,
                self._programs,
                (N, shape[-1], *options),
                (FINISHED_ROWS, cut.parts, mean, losses, total, smooth, squared),
                device,
                num_warps=4,
            )

    @abstractmethod
    def _read(self, num_valid: Tensor, tensors: tuple[Tensor, ...]) -> None:
        """Launch what reads the logits; `tensors` as both kernels take them first."""

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
        tensors = (
            logits,
            logits if gradient is None else gradient,
            targets,
            num_valid if weights is None else weights,
            num_valid,
            numbers,
        )
        self._read(num_valid, tensors)
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


@final
class PartByPart(LongRows):
    """A program for each part of each row, or for each row."""

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        switches: tuple[Any, ...],
        options: tuple[int | float, ...],
        cut: Plan,
        **wanted: bool,
    ) -> None:
        super().__init__(shape, device, options=options, cut=cut, **wanted)
        N = self.num_rows
        parts = (cut.parts, power_of_2(cut.parts))
        self._launch = Launch(
            long_row.long_row,
            N * cut.parts,
            (N, shape[-1], *row_strides(shape, stride), *options),
            (16 // dtype.itemsize, cut.block, cut.held, *parts, *switches),
            device,
            num_warps=cut.num_warps,
        )
        self._count = Launch(
            totals.count_valid, 1, (N, int(options[0])), (4096,), device, num_warps=16
        )

    def _read(self, num_valid: Tensor, tensors: tuple[Tensor, ...]) -> None:
        N, device = self.num_rows, self._device
        pairs = torch.empty(2 * self._parts * N, dtype=torch.float32, device=device)
        if self._count_first:
            arrivals = torch.empty(N, dtype=torch.int32, device=device)
            self._count(tensors[2], arrivals, num_valid)
        else:
            arrivals = torch.zeros(N, dtype=torch.int32, device=device)
        self._launch(*tensors, pairs, arrivals)


@final
class RowToRow(LongRows):
    """As many programs as there is room for, in groups that share a row and go to the next."""

    def __init__(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device,
        *,
        switches: tuple[Any, ...],
        options: tuple[int | float, ...],
        cut: Plan,
        **wanted: bool,
    ) -> None:
        super().__init__(shape, device, options=options, cut=cut, **wanted)
        self._anywhere = cache(
            partial(
                PartByPart,
                shape,
                stride,
                torch.bfloat16,
                device,
                switches=switches,
                options=options,
                cut=plan(shape[-1], 2, multiprocessors(device)),
                **wanted,
            )
        )
        N = self.num_rows
        groups = max(1, multiprocessors(device) * cut.resident // cut.parts)
        ahead = not INTERPRETED and torch.cuda.get_device_capability(device) >= (9, 0)
        *which, _ = switches
        self._launch = Launch(
            bfloat16_rows.bfloat16_rows,
            min(groups, N) * cut.parts,
            # 16 and a mask of the upper half: see there
            (N, shape[-1], *row_strides(shape, stride), *options, 16, -(1 << 16)),
            (cut.block, cut.parts, power_of_2(cut.parts), *which, ahead, INTERPRETED),
            device,
            num_warps=cut.num_warps,
            **({} if INTERPRETED else {"maxnreg": REGISTERS}),
        )
        programs, length = slices(N, device)
        self._order = Launch(
            totals.valid_first,
            programs,
            (N, length, N * cut.parts, int(options[0])),
            (SLICE,),
            device,
            num_warps=8,
        )

    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        num_valid: Tensor | None,
        *,
        gradient: Tensor | None = None,
        **rest: Tensor | None,
    ) -> None:
        """As for all; where the addresses are no multiples of 16 (logits[:, 1:]), part by part."""
        together = logits.data_ptr() | (0 if gradient is None else gradient.data_ptr())
        call = self._anywhere() if together & 15 else super().__call__
        call(logits, targets, num_valid, gradient=gradient, **rest)

    def _read(self, num_valid: Tensor, tensors: tuple[Tensor, ...]) -> None:
        N, device = self.num_rows, self._device
        pairs = torch.empty(self._parts * N, dtype=torch.int64, device=device)
        order = torch.empty(N, dtype=torch.int32, device=device)
        # The caller's number is not written where it is known.
        counted = num_valid if self._count_first else torch.empty_like(num_valid)
        self._order(tensors[2], order, counted, pairs)
        self._launch(*tensors, pairs, order, counted)
