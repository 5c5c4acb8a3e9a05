"""Outermost module calls: a model's forward pass, seen from outside."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import ForwardBegin, ForwardEnd, GradsCleared
from traindoctor.replay.names import is_compiled, unwrap


def install(patches: Patches) -> None:
    patches.replace(torch.nn.Module, "__call__", _call)
    patches.replace(torch.nn.Module, "zero_grad", _zero_grad)


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(self, *args, **kwargs)
        if hub.module_depth:
            hub.inner_calls += 1
            if hub.inner is not None and not hub.idle:
                hub.inner(self, args, kwargs)
            if hub.beside is not None and is_compiled(self):
                return _beside(original, self, args, kwargs)
            return original(self, *args, **kwargs)
        if hub.idle or hub.backward_depth or torch._C._is_tracing():
            return original(self, *args, **kwargs)
        wants_grad = torch.is_grad_enabled() and _trainable(self)
        hub.emit(ForwardBegin(self, args, kwargs, wants_grad, self.training))
        begin = time.perf_counter()
        hub.module_depth += 1
        try:
            if hub.beside is not None and is_compiled(self):
                output = _beside(original, self, args, kwargs)
            else:
                output = original(self, *args, **kwargs)
        finally:
            hub.module_depth -= 1
        hub.emit(ForwardEnd(self, output, wants_grad, time.perf_counter() - begin))
        return output

    return __call__


def _beside(original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A compiled module while a step is taped. Beside it the user's own module is called, without a wrapper:
    a second call of DistributedDataParallel would prepare a second reduction."""
    inner = unwrap(module)
    return hub.beside(  # type: ignore[misc]
        functools.partial(original, module, *args, **kwargs),
        functools.partial(inner, *args, **kwargs),
        (args, kwargs),
        [inner],
    )


def _trainable(module: torch.nn.Module) -> bool:
    """Stops at the first trainable parameter; a loss module has none."""
    return any(parameter.requires_grad for parameter in module.parameters())


def _zero_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling() or hub.idle:
            return original(self, *args, **kwargs)
        result = original(self, *args, **kwargs)
        hub.emit(GradsCleared(self))
        return result

    return zero_grad
