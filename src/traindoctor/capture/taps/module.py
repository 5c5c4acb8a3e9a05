"""Outermost module calls: a model's forward pass, seen from outside."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import ForwardBegin, ForwardEnd, GradsCleared
from traindoctor.ground.names import is_compiled, unwrap
from traindoctor.ground.nested import tensors_in, without_data
from traindoctor.ground.unseen import unseen


def install(patches: Patches) -> None:
    patches.replace(torch.nn.Module, "__call__", _call, _call_asleep)
    patches.replace(torch.nn.Module, "zero_grad", _zero_grad)


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        if hub.module_depth or hub.backward_depth:
            if not hub.attentive:
                return original(self, *args, **kwargs)
            hub.num_inner += 1
            if hub.beside is None and hub.inner is None:
                return original(self, *args, **kwargs)
            return _inside(original, self, args, kwargs)
        return _outermost(original, self, args, kwargs)

    return __call__


def _call_asleep(original: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluations are heard in silence too."""

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_grad_enabled() or is_compiling() or hub.module_depth or hub.backward_depth:
            return original(self, *args, **kwargs)
        return _outermost(original, self, args, kwargs)

    return __call__


@unseen
def _outermost(
    original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any
) -> Any:
    grad = is_grad_enabled()
    if not hub.hears(grad=grad):
        if grad:
            hub.passed_unheard = True
            hub.note("forward", tensors_in((args, kwargs)))
        return original(module, *args, **kwargs)
    if not grad:
        hub.evaluations_left -= 1
    begun = hub.emit(_forward_begins, module, args, kwargs, grad)
    if begun is None:
        return original(module, *args, **kwargs)
    begin = time.perf_counter()
    hub.module_depth += 1
    try:
        if hub.beside is not None and is_compiled(module):
            output = _beside(original, module, args, kwargs)
        else:
            output = original(module, *args, **kwargs)
    finally:
        hub.module_depth -= 1
    hub.emit(ForwardEnd, module, output, begun.wants_grad, time.perf_counter() - begin)
    return output


def _forward_begins(
    module: torch.nn.Module, args: Any, kwargs: Any, grad: bool
) -> ForwardBegin | None:
    if without_data((args, kwargs, next(module.parameters(), None))):
        return None
    wants_grad = grad and _trainable(module)
    return ForwardBegin(module, args, kwargs, wants_grad, module.training, grad)


def _inside(original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """A module call below an outermost one, while somebody wants to know of it."""
    # Without gradients it is a teacher, a rollout or an augmentation: not what is trained.
    if hub.module_depth and hub.inner is not None and is_grad_enabled() and not hub.idle:
        if hub.border is not None:
            hub.border.enter(hub.inner, module, args, kwargs)
    if hub.module_depth and hub.beside is not None and is_compiled(module):
        return _beside(original, module, args, kwargs)
    return original(module, *args, **kwargs)


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
    def zero_grad(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not is_compiling() and hub.attentive:
            hub.emit(GradsCleared, self)
        return result

    return zero_grad
