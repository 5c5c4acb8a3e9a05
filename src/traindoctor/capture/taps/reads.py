"""Scalars that the script reads: `item()`, `float()`, and f-strings, which call `item` themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import ScalarRead


def install(patches: Patches) -> None:
    patches.replace(torch.Tensor, "item", _read)
    patches.replace(torch.Tensor, "__float__", _read)


def _read(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: torch.Tensor) -> Any:
        value = original(self)
        # Optimizers read their own step counts, one per parameter: those are not the script's reads.
        if type(value) is not float or torch.compiler.is_compiling() or hub.stepping is not None:
            return value
        quiet = hub.idle or hub.backward_depth or hub.call_depth or hub.scaling
        if hub.attentive and not quiet:
            hub.emit(ScalarRead, self, value)
        return value

    return read
