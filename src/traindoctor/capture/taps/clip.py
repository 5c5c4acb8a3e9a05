"""Gradient clipping by norm and by value. The norm that `clip_grad_norm_` gives back is the one BEFORE."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import Clipped


def install(patches: Patches) -> None:
    utils, home = torch.nn.utils, torch.nn.utils.clip_grad
    patches.replace(home, "clip_grad_norm_", _clip_norm)
    patches.replace(home, "clip_grad_value_", _clip_value)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        patches.share(
            utils, name, getattr(home, name)
        )  # one object under both names, as pickle expects
    # Accelerate and torchtitan use the two halves of clip_grad_norm_ on their own.
    patches.replace(utils, "clip_grads_with_norm_", _clip_with_norm)


def _clip_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.call_depth or hub.asleep:
            return original(parameters, max_norm, *args, **kwargs)
        parameters, given = _keep(parameters)
        hub.call_depth += 1
        try:
            total = original(given, max_norm, *args, **kwargs)
        finally:
            hub.call_depth -= 1
        hub.emit(_clipped, "norm", parameters, max_norm, total)
        return total

    return clip_grad_norm_


def _clip_with_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grads_with_norm_(
        parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.call_depth or hub.asleep:
            return original(parameters, max_norm, total_norm, *args, **kwargs)
        parameters, given = _keep(parameters)
        # Clipping writes to the gradients, and a norm of one tensor may be a view of nothing else: safe after.
        result = original(given, max_norm, total_norm, *args, **kwargs)
        hub.emit(_clipped, "norm", parameters, max_norm, total_norm)
        return result

    return clip_grads_with_norm_


def _clip_value(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def clip_grad_value_(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.call_depth or hub.asleep:
            return original(parameters, clip_value, *args, **kwargs)
        parameters, given = _keep(parameters)
        result = original(given, clip_value, *args, **kwargs)
        hub.emit(_clipped, "value", parameters, clip_value, None)
        return result

    return clip_grad_value_


def _keep(parameters: Any) -> tuple[list[torch.Tensor], Any]:
    """The parameters as a list, and what to hand on: a generator can be read only once."""
    if isinstance(parameters, torch.Tensor):
        return [parameters], parameters
    kept = list(parameters)
    if inspect.isgenerator(parameters):
        # An empty generator makes torch warn: keep it one.
        return kept, kept if kept else _empty()
    return kept, kept if isinstance(parameters, Iterable) else parameters


def _empty() -> Iterable[torch.Tensor]:
    yield from ()


def _clipped(kind: Any, parameters: list[torch.Tensor], limit: Any, total: Any) -> Clipped:
    return Clipped(kind, parameters, _limit(limit), total)


def _limit(limit: Any) -> float:
    """A limit on a device would have to be waited for."""
    if isinstance(limit, torch.Tensor) and limit.device.type != "cpu":
        return float("nan")
    return float(limit)
