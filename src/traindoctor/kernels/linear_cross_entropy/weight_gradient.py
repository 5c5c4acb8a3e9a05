"""The weight's gradient as a sum over chunks of rows, in float32 whatever room there is for it.

Where a float32 buffer of the weight's size would outweigh all that the fusion saves, the gradient's
own memory has room for float32 sums of half of the classes. The other half is not summed at all: its
logits are made a second time, a few classes and all rows at a time, and one product gives their
gradient whole. That costs a sixth more arithmetic (7 products of N x D x V / 2 for 6) and no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Protocol, final

import torch
from torch import Tensor

from traindoctor.kernels.linear_cross_entropy.products import PaddedWeight, add_mm_, mm

# (first class, room (N, width), hidden states) -> fills the room with the gradient of the logits of classes
# from the first on; the rows of all are in the order in which the ignored ones come last
GradientOfClasses = Callable[[int, Tensor, Tensor], None]
# Classes that `HalfInPlace` rounds by way of a copy, which is 16 MB at D = 4096.
ROUNDED_FIRST = 2048


class WeightGradient(Protocol):
    """dW = sum over chunks of E.T @ (F H)."""

    def add(self, e: Tensor, scaled: Tensor) -> None:
        """One chunk: exponentials (n, columns) and hidden states times their rows' factors (n, D)."""

    def finish(
        self, hidden: Tensor, order: Tensor, gradient_of_classes: GradientOfClasses, room: int
    ) -> Tensor:
        """The gradient (columns, D); `room` is how many elements of bfloat16 may be used on the way."""


@final
class Float32Sum:
    """A float32 buffer beside the gradient."""

    def __init__(self, padded: PaddedWeight, dtype: torch.dtype) -> None:
        self._padded = padded
        self._dtype = dtype
        shape = (padded.columns, padded.weight.shape[1])
        self._total = torch.empty(shape, dtype=torch.float32, device=padded.weight.device)
        self._first = True

    def add(self, e: Tensor, scaled: Tensor) -> None:
        self._padded.add_weight_gradient(self._total, e, scaled, first=self._first)
        self._first = False

    def finish(
        self, hidden: Tensor, order: Tensor, gradient_of_classes: GradientOfClasses, room: int
    ) -> Tensor:
        if self._first:
            self._total.zero_()
        return self._total.to(self._dtype)


@final
class HalfInPlace:
    """Float32 sums of half of the classes in the memory of the bfloat16 gradient itself."""

    def __init__(self, padded: PaddedWeight, tile: int) -> None:
        """`tile`: classes of which a product makes whole tiles."""
        columns, D = padded.columns, padded.weight.shape[1]
        self._gradient = torch.empty(
            (columns, D), dtype=torch.bfloat16, device=padded.weight.device
        )
        self._half = columns // 2 // tile * tile
        self._tile = tile
        words = self._gradient.view(-1)[: 2 * self._half * D].view(torch.float32)
        self._sums = words.view(self._half, D)
        self._first = True

    def add(self, e: Tensor, scaled: Tensor) -> None:
        exponentials = e[:, : self._half].t()
        if self._first:
            mm(exponentials, scaled, out=self._sums)
        else:
            add_mm_(self._sums, exponentials, scaled)
        self._first = False

    def finish(
        self, hidden: Tensor, order: Tensor, gradient_of_classes: GradientOfClasses, room: int
    ) -> Tensor:
        N, columns = len(hidden), len(self._gradient)
        if self._first:
            return self._gradient.zero_()
        self._round()
        hidden = hidden[order]
        rest = columns - self._half
        # Few and wide panels; one percent more room is better than one panel more.
        num_panels = max(1, ceil(rest * N / max(1.01 * room - hidden.numel(), N * self._tile)))
        step = ceil(rest / num_panels / self._tile) * self._tile
        panel = torch.empty(N * step, dtype=torch.bfloat16, device=hidden.device)
        for start in range(self._half, columns, step):
            width = min(step, columns - start)
            dlogits = panel[: N * width].view(N, width)
            gradient_of_classes(start, dlogits, hidden)
            torch.mm(dlogits.t(), hidden, out=self._gradient[start : start + width])
        return self._gradient

    def _round(self) -> None:
        """The sums to bfloat16, in place: row i comes to lie where the float32 row i / 2 was."""
        stop = min(ROUNDED_FIRST, self._half)
        self._gradient[:stop] = self._sums[:stop].bfloat16()
        while stop < self._half:
            # Rows up to twice as far do not lie on rows that are still to be read.
            part = slice(stop, min(2 * stop, self._half))
            self._gradient[part].copy_(self._sums[part])
            stop = part.stop
