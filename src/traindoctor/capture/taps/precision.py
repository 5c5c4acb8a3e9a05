"""GradScaler: the factor inside the loss, unscaling, and the steps it skips."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import ScalerUpdated, Unscaled
from traindoctor.ground.our_ref import OurRef

# The loss of each micro-batch between two updates; more than this many are leftovers of a script that never updates.
ROOTS_KEPT = 64


def install(patches: Patches) -> None:
    scales = _Scales()
    patches.replace(GradScaler, "scale", scales.wrap_scale)
    patches.replace(GradScaler, "unscale_", scales.wrap_unscale)
    patches.replace(GradScaler, "step", scales.wrap_step)
    patches.replace(GradScaler, "update", scales.wrap_update)


class _Scales:
    """Knows each scaler's factor without waiting for the device: it is copied after each update, read later."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[GradScaler, float] = weakref.WeakKeyDictionary()
        self._coming: weakref.WeakKeyDictionary[
            GradScaler, tuple[torch.Tensor, torch.cuda.Event]
        ] = weakref.WeakKeyDictionary()
        self._skipped = False

    def factor(self, scaler: GradScaler) -> float:
        if scaler in self._coming:
            value, event = self._coming[scaler]
            if event.query():
                self._known[scaler] = float(value)
                del self._coming[scaler]
        return self._known.get(scaler, float(scaler._init_scale))

    def _updated(self, scaler: GradScaler, skipped: bool) -> ScalerUpdated:
        scale = scaler._scale
        if scale is not None and scale.device.type == "cpu":
            self._known[scaler] = float(scale)
        elif scale is not None and scale.device.type == "cuda":
            value = torch.empty((), dtype=scale.dtype, device="cpu", pin_memory=True)
            value.copy_(scale.detach().reshape(()), non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._coming[scaler] = (value, event)
        return ScalerUpdated(self.factor(scaler), skipped)

    def wrap_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if torch.compiler.is_compiling() or hub.idle or not scaler.is_enabled():
                return result
            hub.emit(self._scaled, scaler, result)
            return result

        return scale

    def _scaled(self, scaler: GradScaler, result: Any) -> None:
        if len(hub.scaled_roots) >= ROOTS_KEPT:
            hub.scaled_roots.clear()
        for root in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(root, torch.Tensor):
                hub.scaled_roots[id(root)] = (OurRef(root), self.factor(scaler))

    def wrap_unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unscale_(scaler: GradScaler, optimizer: Any) -> Any:
            result = original(scaler, optimizer)
            if not hub.idle and scaler.is_enabled():
                hub.emit(Unscaled, optimizer)
            return result

        return unscale_

    def wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if hub.idle or not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            # A real step sets the flag; a skipped one leaves it as the backward pass did.
            hub.first_backward = False
            hub.scaling += (
                1  # the scaler reads whether it found infinities: not a read of the script's
            )
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                hub.scaling -= 1
            self._skipped = not hub.first_backward
            return result

        return step

    def wrap_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def update(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if hub.idle or not scaler.is_enabled():
                return result
            hub.scaled_roots.clear()
            skipped, self._skipped = self._skipped, False
            hub.first_backward = True
            hub.emit(self._updated, scaler, skipped)
            return result

        return update
