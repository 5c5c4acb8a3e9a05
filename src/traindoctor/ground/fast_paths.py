"""Attention layers of torch evaluate along a faster way (other kernels, padded places left out), unless a mode listens.

What they give there differs in its last bits, and at padded places altogether. So as long as only modes of ours are on the
stack, these layers are told that nobody listens: their faster kernel is then heard as one function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from traindoctor.ground.torch_private import DISABLED, function_mode_stack
from traindoctor.ground.unseen import unseen

# The modules that choose a kernel by the answer; others hand their call to the mode.
CHOOSING = ("torch.nn.modules.transformer", "torch.nn.modules.activation")
PACKAGE = __name__.partition(".")[0] + "."

original = torch.overrides.has_torch_function
_listening: set[int] = set()


def begin(mode: object) -> None:
    """A mode of ours has come onto a stack."""
    _listening.add(id(mode))
    torch.overrides.has_torch_function = somebody_else_listens


def end(mode: object) -> None:
    _listening.discard(id(mode))
    if not _listening and torch.overrides.has_torch_function is somebody_else_listens:
        torch.overrides.has_torch_function = original


def end_all() -> None:
    """In a forked child."""
    _listening.clear()
    torch.overrides.has_torch_function = original


@unseen
def somebody_else_listens(args: Iterable[Any]) -> bool:
    if not original(args):
        return False
    if sys._getframe(1).f_globals.get("__name__") not in CHOOSING:
        return True
    return any(map(is_not_ours, function_mode_stack())) or any(map(overrides, args))


def is_not_ours(mode: object) -> bool:
    return not type(mode).__module__.startswith(PACKAGE)


def overrides(value: Any) -> bool:
    """A subclass that wants to hear of torch's functions."""
    kind = type(value)
    return (
        kind is not torch.Tensor and getattr(kind, "__torch_function__", DISABLED) is not DISABLED
    )
