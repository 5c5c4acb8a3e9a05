"""Launch a Triton kernel without asking again what it was compiled for.

Triton's own `kernel[grid](...)` looks at every argument on each call, which takes longer than a
small loss takes on the GPU. A `Launch` is everything about a call but the addresses of its tensors:
it keeps the compiled kernel and hands it the addresses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from copy import copy
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Sizes are part of the key of `launch`: a program that sees ever new ones must not grow without end.
_MOST = 2048
_LAUNCHES: dict[tuple[Any, ...], Launch] = {}


class Launch:
    """kernel[(programs,)](*descriptors, *tensors, *numbers, *constants, **options), decided but for the tensors.

    The tensors of all calls have the same dtypes, and the descriptors the same shapes.
    """

    __slots__ = ("_between", "_compiled", "_device", "_kernel", "_options", "_programs", "_values")

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[int | float, ...],
        constants: tuple[int | bool, ...],
        device: torch.device,
        **options: int,
    ) -> None:
        self._kernel = kernel
        self._programs = programs
        self._values = (*numbers, *constants)
        self._device = device.index
        # enable_fp_fusion is Triton's present default; said aloud, because it is announced to change.
        self._options = options if INTERPRETED else {**options, "enable_fp_fusion": True}
        # What launches, after the first call, and what it takes between the stream and the addresses.
        self._compiled: Callable[..., None] | None = None
        self._between: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor, descriptors: tuple[Any, ...] = ()) -> None:
        addresses = [*map(Tensor.data_ptr, tensors)]
        together = reduce(or_, addresses)
        if not self.at((*descriptors, *addresses), together):
            self._through_triton(tensors, descriptors, aligned=not together & 15)

    def at(self, addresses: Sequence[Any], together: int) -> bool:
        """Launch on these addresses; False if it must be called with the tensors themselves.

        That is so before the first call, and for the rare addresses that are no multiples of 16
        (`together`: all that may not be, in one), which Triton compiles for anew.
        """
        launch = self._compiled
        if launch is None or together & 15 or self._device != torch._C._cuda_getDevice():
            return False
        # An address costs the launcher less than a tensor: it asks the driver nothing about it.
        launch(
            self._programs,
            1,
            1,
            torch._C._cuda_getCurrentRawStream(self._device),
            *self._between,
            *addresses,
            *self._values,
        )
        return True

    def _through_triton(
        self, tensors: tuple[Tensor, ...], descriptors: tuple[Any, ...], *, aligned: bool
    ) -> None:
        """Compile and launch as Triton does it, and keep what it compiled if that fits the next call."""
        run = self._kernel[(self._programs,)]
        if INTERPRETED:
            run(*descriptors, *tensors, *self._values, **self._options)
            return
        with torch.cuda.device(self._device):
            kernel = run(*descriptors, *tensors, *self._values, **self._options)
        if aligned:
            between = (kernel.function, kernel.packed_metadata, None, None, None)
            arguments = (*descriptors, *map(Tensor.data_ptr, tensors), *self._values)
            self._compiled, self._between = beneath(kernel.run, between, arguments)


def beneath(
    launcher: Any, between: tuple[Any, ...], arguments: tuple[Any, ...]
) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """The function that Triton's launcher calls in the end, and what it hands it before `arguments`.

    The launcher itself, where it does more than to pass its arguments on: room to allocate at each
    launch, arguments packed in another form.
    """
    inner = getattr(launcher, "launch", None)
    rooms = [getattr(launcher, f"{kind}_scratch_size", None) for kind in ("global", "profile")]
    if inner is None or rooms != [0, 0]:
        return launcher, between
    handed: list[tuple[Any, ...]] = []
    # A copy of the launcher that launches nothing shows what it would hand on.
    stand_in = copy(launcher)
    stand_in.launch = lambda *values: handed.append(values)
    grid_and_stream = (1, 1, 1, 0)
    stand_in(*grid_and_stream, *between, *arguments)
    values = handed[0]
    first = len(values) - len(arguments)
    if values[:4] != grid_and_stream or values[first:] != arguments:
        return launcher, between
    return inner, values[4:first]


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[int | bool, ...],
    *,
    descriptors: tuple[Any, ...] = (),
    **options: int,
) -> None:
    """A launch that is looked up by everything that went into its compilation."""
    device = tensors[0].device
    key = (
        # not the kernel itself: its hash is a walk over its source
        id(kernel),
        programs,
        numbers,
        constants,
        *options.values(),
        *[tensor.dtype for tensor in tensors],
        *[(*descriptor.shape, *descriptor.block_shape) for descriptor in descriptors],
        device,
    )
    found = _LAUNCHES.get(key)
    if found is None:
        if len(_LAUNCHES) >= _MOST:
            _LAUNCHES.clear()
        found = _LAUNCHES[key] = Launch(kernel, programs, numbers, constants, device, **options)
    found(*tensors, descriptors=descriptors)
