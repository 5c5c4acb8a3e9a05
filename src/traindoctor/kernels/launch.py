"""Launch a Triton kernel without asking again what it was compiled for.

Triton's own `kernel[grid](...)` looks at every argument on each call, which takes longer than a
small loss takes on the GPU. A `Launch` is everything about a call but the addresses of its tensors:
it keeps the compiled kernel and hands it the addresses.
"""

from __future__ import annotations

import os
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

    __slots__ = ("_compiled", "_device", "_kernel", "_options", "_programs", "_values")

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
        # (launcher, function, metadata) after the first call
        self._compiled: tuple[Any, Any, Any] | None = None

    def __call__(self, *tensors: Tensor, descriptors: tuple[Any, ...] = ()) -> None:
        addresses = [*map(Tensor.data_ptr, tensors)]
        together = reduce(or_, addresses)
        # Triton compiles for pointers that are multiples of 16; the rare others it sorts out itself.
        if self._compiled is None or together & 15 or self._device != torch._C._cuda_getDevice():
            self._through_triton(tensors, descriptors, aligned=not together & 15)
            return
        launcher, function, metadata = self._compiled
        # An address costs the launcher less than a tensor: it asks the driver nothing about it.
        launcher(
            self._programs,
            1,
            1,
            torch._C._cuda_getCurrentRawStream(self._device),
            function,
            metadata,
            None,
            None,
            None,
            *descriptors,
            *addresses,
            *self._values,
        )

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
            self._compiled = (kernel.run, kernel.function, kernel.packed_metadata)


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
