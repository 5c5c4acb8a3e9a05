"""Scalars that the script reads: `item()`, `float()`, and f-strings, which call `item` themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import ScalarRead
from traindoctor.ground.unseen import handed_on


def install(patches: Patches) -> None:
    patches.replace(torch.Tensor, "item", _read, _read_asleep)
    patches.replace(
        torch.Tensor,
        "__float__",
        lambda original: _read(_warning_there(original)),
        lambda original: _read_asleep(_warning_there(original)),
    )


def _read(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: torch.Tensor) -> Any:
        if is_compiling():
            return original(self)
        value = original(self)
        if not hub.attentive or type(value) is not float:
            return value
        # Optimizers read their own step counts, one per parameter: those are not the script's reads.
        if hub.stepping is not None:
            hub.num_inner += 1
        elif not (hub.idle or hub.backward_depth or hub.call_depth or hub.scaling):
            hub.emit(ScalarRead, self, value)
        return value

    return read


def _warning_there(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch warns of the gradient that is lost, at the line that asks for the number."""

    @functools.wraps(original)
    def convert(self: torch.Tensor) -> Any:
        return handed_on(original, (self,), {}) if self.requires_grad else original(self)

    return convert


def _read_asleep(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: torch.Tensor) -> Any:
        return original(self)

    return read
