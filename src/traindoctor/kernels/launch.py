"""Launch a Triton kernel without asking again what it was compiled for.

Triton's own `kernel[grid](...)` looks at every argument on each call, which takes longer than a
small loss takes on the GPU. Here the compiled kernel is remembered by everything that went into its
compilation and launched at once the next time.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

_COMPILED: dict[tuple[Any, ...], Any] = {}
# Sizes are part of the key: a program that sees ever new ones must not grow without end.
_MOST = 2048
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def launch(
    kernel: Any,
    programs: int,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    **options: int,
) -> None:
    """kernel[(programs,)](*arguments, **constants, **options); arguments before constants."""
    if INTERPRETED:
        kernel[(programs,)](*arguments, **constants, **options)
        return
    key = [kernel, *constants.values(), *options.values()]
    for argument in arguments:
        if isinstance(argument, Tensor):
            key += (argument.dtype, argument.data_ptr() & 15 == 0)
        elif hasattr(argument, "block_shape"):  # a TMA descriptor
            key += (argument.base.dtype, *argument.shape, *argument.block_shape)
        else:
            key.append(argument)
    key.append(torch.cuda.current_device())
    name = tuple(key)
    compiled = _COMPILED.get(name)
    if compiled is None:
        if len(_COMPILED) >= _MOST:
            _COMPILED.clear()
        _COMPILED[name] = kernel[(programs,)](*arguments, **constants, **options)
        return
    compiled[(programs, 1, 1)](*arguments, *constants.values())
