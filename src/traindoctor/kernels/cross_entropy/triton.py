"""Cross-entropy on a GPU: sizes, strides and launches; the kernels are in kernels/device/.

kernel = LossKernel(logits, targets, ...)       # once for a shape and its options
loss, num_valid, gradient = kernel.forward(logits, targets)
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import torch
from torch import Tensor

from traindoctor.kernels.cross_entropy import layout
from traindoctor.kernels.cross_entropy.layout import (
    Plan,
    gradient_like,
    power_of_2,
    readable,
    row_strides,
)
from traindoctor.kernels.device import long_row, small_rows, totals
from traindoctor.kernels.device.arithmetic import PER_ROW, SCALAR, UNIT
from traindoctor.kernels.launch import Launch

# Up to this many classes several rows share a program.
SMALL = 4096
SMALL_TILE = 4096
# Rows whose losses one program of `finish_losses` makes.
FINISHED_ROWS = 128


@cache
def multiprocessors(device: torch.device) -> int:
    """1 in the interpreter, which runs programs one after the other: no two may wait for each other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


# (device, stream) -> (the count of finished programs, which every launch leaves at 0; partial sums)
_WORKSPACES: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}


def workspace(device: torch.device, programs: int) -> tuple[Tensor, Tensor]:
    """(counter, room for two partial sums of each program), kept for each stream."""
    stream = 0
    if device.type == "cuda":
        # What a CUDA graph is to set to 0 at each replay must be its own.
        if torch._C._cuda_isCurrentStreamCapturing():
            return _new_workspace(device, programs)
        stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = (device, stream)
    found = _WORKSPACES.get(key)
    if found is None or len(found[1]) < 2 * programs:
        found = _WORKSPACES[key] = _new_workspace(device, programs)
    return found


def _new_workspace(device: torch.device, programs: int) -> tuple[Tensor, Tensor]:
    counter = torch.zeros(1, dtype=torch.int32, device=device)
    return counter, torch.empty(2 * programs, dtype=torch.float64, device=device)


class Rows:
    """The launches that turn logits of one layout into losses, their sum and a gradient, as asked."""

    def __init__(
        self,
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
    ) -> None:
        """`stride` as `readable` leaves it; `dtypes` of logits, targets, weights and losses.

        `weights`: UNIT, SCALAR or PER_ROW. `count`: the gradient needs the number of valid targets,
        and it is not known yet.
        """
        V = shape[-1]
        self.num_rows = N = prod(shape[:-1])
        self._device = device
        self._count_first = count
        self._ignore_index = ignore_index
        sizes = (N, V, *row_strides(shape, stride))
        options = (ignore_index, label_smoothing, z_loss)
        smooth, squared = label_smoothing != 0, z_loss != 0
        self._small = V <= SMALL and cut is None
        # The plain exponential's errors average out over a long row of bfloat16, whose gradient needs
        # no more; they do not over few classes, nor over the many equal logits of a float16 row.
        accurate = self._small or dtypes[0] != torch.bfloat16
        switches = (gradient, weights, mean, smooth, squared, accurate)
        rows = max(1, min(64, SMALL_TILE // power_of_2(V))) if self._small else FINISHED_ROWS
        self._programs = -(-N // rows)
        if self._small:
            self._launch = Launch(
                small_rows.small_rows,
                self._programs,
                (*sizes, *options),
                (rows, power_of_2(V), *switches, losses, total),
                device,
                num_warps=4,
            )
            return
        element_size = dtypes[0].itemsize
        cut = cut or layout.plan(V, element_size, multiprocessors(device))
        self._parts = cut.parts
        self._launch = Launch(
            long_row.long_row,
            N * cut.parts,
            (*sizes, *options),
            (
                16 // element_size,
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
            totals.count_valid, 1, (N, ignore_index), (4096,), device, num_warps=16
        )
        self._finish: Launch | None = None
        if losses or total:
            self._finish = Launch(
                totals.finish_losses,
                self._programs,
                (N, V, *options),
                (rows, cut.parts, mean, losses, total, smooth, squared),
                device,
                num_warps=4,
            )

    def __call__(
        self,
        logits: Tensor,
        targets: Tensor,
        num_valid: Tensor,
        *,
        gradient: Tensor | None = None,
        weights: Tensor | None = None,
        losses: Tensor | None = None,
        total: Tensor | None = None,
    ) -> None:
        """Write what is not None; `num_valid` (float64) is read for a gradient of the mean, written with `total`."""
        if not self.num_rows:
            return
        # A pointer that is not used must still be one.
        partials = counter = num_valid
        if total is not None:
            counter, partials = workspace(self._device, self._programs)
        if gradient is None:
            gradient = logits
        if weights is None:
            weights = num_valid
        if losses is None:
            losses = num_valid
        if total is None:
            total = num_valid
        if self._small:
            if self._count_first:
                valid = (targets != self._ignore_index).view(-1)
                torch.sum(valid, 0, dtype=torch.float64, out=num_valid)
            self._launch(
                logits, gradient, targets, weights, num_valid, losses, partials, counter, total
            )
            return
        N, device = self.num_rows, self._device
        numbers = torch.empty((3 + self._parts) * N, dtype=torch.float64, device=device)
        pairs = torch.empty(2 * self._parts * N, dtype=torch.float32, device=device)
        if self._count_first:
            arrivals = torch.empty(N, dtype=torch.int32, device=device)
            self._count(targets, arrivals, num_valid)
        else:
            arrivals = torch.zeros(N, dtype=torch.int32, device=device)
        self._launch(logits, gradient, targets, weights, num_valid, numbers, pairs, arrivals)
        if self._finish is not None:
            self._finish(targets, numbers, losses, partials, counter, total, num_valid)


# By everything that went into them: a loss asks for the same ones at each step.
rows = lru_cache(maxsize=1024)(Rows)


class LossKernel:
    """The loss of logits of one layout with one set of options: made once, then only addresses change."""

    def __init__(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        z_loss: float,
        early: bool,
        cut: Plan | None = None,
    ) -> None:
        """`early`: the forward pass writes the gradient too, for an upstream gradient of 1."""
        like = readable(logits)
        self._copies = like is not logits or not targets.is_contiguous()
        self._early = early
        self._mean = reduction == "mean"
        self._shape = targets.shape if reduction == "none" else None
        self._loss, self._num_valid = _scalars(logits.device)
        dtypes = (like.dtype, targets.dtype, torch.float32, torch.float32)
        place = (tuple(like.shape), tuple(like.stride()), dtypes, like.device)
        options = {
            "mean": self._mean,
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "cut": cut,
        }
        total = self._shape is None
        self._forward = rows(
            *place,
            gradient=early,
            losses=not total,
            total=total,
            count=early and self._mean,
            **options,
        )
        self._backward = rows(
            *place, gradient=True, weights=SCALAR if total else PER_ROW, **options
        )

    def forward(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(loss in float32, number of valid targets in float64, gradient if `early`)."""
        num_valid = torch.empty_like(self._num_valid)
        if self._shape is None:
            loss = torch.empty_like(self._loss)
        else:
            loss = torch.empty(self._shape, dtype=torch.float32, device=logits.device)
        if not self._forward.num_rows:
            loss.fill_(torch.nan if self._mean else 0)
        gradient = gradient_like(logits) if self._early else None
        if self._copies:
            logits, targets = readable(logits), targets.contiguous()
        if self._shape is None:
            self._forward(logits, targets, num_valid, gradient=gradient, total=loss)
        else:
            self._forward(logits, targets, num_valid, losses=loss)
        return loss, num_valid, gradient

    def backward(
        self, upstream: Tensor, num_valid: Tensor, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The gradient, from the logits again."""
        gradient = gradient_like(logits)
        if self._copies:
            logits, targets = readable(logits), targets.contiguous()
        if self._shape is not None:
            upstream = upstream.contiguous()
        self._backward(logits, targets, num_valid, gradient=gradient, weights=upstream)
        return gradient


@cache
def _scalars(device: torch.device) -> tuple[Tensor, Tensor]:
    """Scalars that others are made like: the quickest way to ask torch for one."""
    return (
        torch.empty((), dtype=torch.float32, device=device),
        torch.empty((), dtype=torch.float64, device=device),
    )
