"""Leaving torch's stack of function modes in whatever order modes were entered."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode


def take_from_stack(mode: TorchFunctionMode) -> bool:
    """Whether it was there: a device context may lie on top. Inside a torch function a mode is off the stack."""
    above, found = [], False
    while torch._C._len_torch_function_stack() and not found:
        top = _pop_mode()
        found = top is mode
        if not found:
            above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return found
