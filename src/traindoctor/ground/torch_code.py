"""Is this function torch's own code, untouched? And what lies under the wrappers that torch puts around `step`?"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as base

import traindoctor
from traindoctor.ground.unseen import FILE as UNSEEN

TORCH = str(Path(torch.__file__).parent) + "/"
OURS = str(Path(traindoctor.__file__).parent) + "/"


def file_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return code.co_filename if isinstance(code, types.CodeType) else ""


def is_torchs(function: Any) -> bool:
    """A Python function defined in torch's files, with the names of its own module around it."""
    if not isinstance(function, types.FunctionType):
        return False
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return (
        file_of(function).startswith(TORCH)
        and module is not None
        and vars(module) is function.__globals__
    )


def is_ours(function: Any) -> bool:
    """A tap: it makes no event while we are the ones who call."""
    return file_of(getattr(function, "__func__", function)).startswith((OURS, UNSEEN))


def is_builtin(value: Any) -> bool:
    """Compiled: a function, method or property of torch's own extension or of Python."""
    return isinstance(
        value,
        types.BuiltinFunctionType
        | types.MethodDescriptorType
        | types.GetSetDescriptorType
        | types.WrapperDescriptorType
        | types.ClassMethodDescriptorType,
    )


def is_untouched(value: Any) -> bool:
    """What torch put there, or our tap around it."""
    if isinstance(value, property):
        return all(is_untouched(f) for f in (value.fget, value.fset) if f is not None)
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if is_ours(value):
        return is_untouched(getattr(value, "__wrapped__", None))
    return is_builtin(value) or is_torchs(value)


def layers(function: Any) -> Iterator[Any]:
    """The function and, one after the other, what `functools.wraps` says it is wrapped around."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def _code_inside(function: Any, name: str) -> types.CodeType:
    """The code of a function that is defined inside another one."""
    return next(
        c
        for c in function.__code__.co_consts
        if isinstance(c, types.CodeType) and c.co_name == name
    )


# What every optimizer's class gets around its `step`: hooks before and after.
HOOKED = _code_inside(Optimizer.profile_hook_step, "wrapper")


def under_hooks(step: Any) -> Callable[..., Any]:
    """`step` of a class without the hooks that torch calls around it."""
    while getattr(step, "__code__", None) is HOOKED:
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def foreign_hooks(optimizer: Optimizer) -> bool:
    """Whether code of the script runs before or after each step."""
    held = vars(optimizer)
    hooks = [
        *base._global_optimizer_pre_hooks.values(),
        *base._global_optimizer_post_hooks.values(),
        *held.get("_optimizer_step_pre_hooks", {}).values(),
        *held.get("_optimizer_step_post_hooks", {}).values(),
    ]
    return not all(is_ours(hook) or is_torchs(getattr(hook, "__func__", hook)) for hook in hooks)


def replaced_step(optimizer: Optimizer) -> bool:
    """Whether the object has a `step` of its own, other than the one that a scheduler of torch counts calls with."""
    own = vars(optimizer).get("step")
    if own is None:
        return False
    return not (
        is_torchs(own)
        and file_of(own) == lr_scheduler.__file__
        and getattr(own, "__wrapped__", None) is type(optimizer).step
    )
