"""Launch a Triton kernel without asking again what it was compiled for.

Triton's own `kernel[grid](...)` looks at every argument on each call, which takes longer than a
small loss takes on the GPU. Here the compiled kernel is remembered by everything that went into its
compilation and launched at once the next time.
"""

from __future__ import annotations

import os
from typing import Any

import torch

# (kernel, numbers, constants, options, dtypes, shapes of descriptors) -> compiled kernel
_COMPILED: dict[tuple[Any, ...], Any] = {}
# Sizes are part of the key: a program that sees ever new ones must not grow without end.
_MOST = 2048
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Any, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[int | bool, ...],
    *,
    descriptors: tuple[Any, ...] = (),
    **options: int,
) -> None:
    """kernel[(programs,)](*descriptors, *tensors, *numbers, *constants, **options)."""
    if INTERPRETED:
        kernel[(programs,)](*descriptors, *tensors, *numbers, *constants, **options)
        return
    device = tensors[0].device
    if device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(
                kernel, programs, tensors, numbers, constants, descriptors=descriptors, **options
            )
        return
    # Triton's present default; said aloud, because it is announced to change.
    options["enable_fp_fusion"] = True
    addresses = 0
    for tensor in tensors:
        addresses |= tensor.data_ptr()
    if addresses & 15:
        # Triton compiles for pointers that are multiples of 16; the rare others it may sort out itself.
        kernel[(programs,)](*descriptors, *tensors, *numbers, *constants, **options)
        return
    key = (
        kernel,
        numbers,
        constants,
        *options.values(),
        *[tensor.dtype for tensor in tensors],
        *[(*descriptor.shape, *descriptor.block_shape) for descriptor in descriptors],
        device,
    )
    compiled = _COMPILED.get(key)
    if compiled is None:
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[key] = kernel[(programs,)](
            *descriptors, *tensors, *numbers, *constants, **options
        )
        return
    compiled[(programs, 1, 1)](*descriptors, *tensors, *numbers, *constants)
