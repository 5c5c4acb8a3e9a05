"""Compiled functions: `torch.compile(function)`. Modules that are compiled are seen by their calls."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from traindoctor.capture.hub import Patches, hub
from traindoctor.capture.taps.hiding import hide_from_compiler
from traindoctor.ground.names import function_compiled


def install(patches: Patches) -> None:
    patches.replace(torch, "compile", _compile)
    if "torch._dynamo" in sys.modules:
        hide_from_compiler()  # something may be compiled already


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(model, *args, **kwargs)
        hide_from_compiler()
        if model is None or isinstance(compiled, torch.nn.Module) or not callable(compiled):
            return compiled  # a decorator calls torch.compile again; a module's calls are heard
        function_compiled()

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or hub.beside is None or hub.idle:
                return compiled(*args, **kwargs)
            again = functools.partial(compiled, *args, **kwargs)
            return hub.beside(again, again, (args, kwargs), modules_of(model, args))

        return call

    return compile


def modules_of(function: Callable[..., Any], args: tuple[Any, ...]) -> list[torch.nn.Module]:
    """The modules that a function can reach: its arguments, its object, what its code names."""
    found = [function, *args, getattr(function, "__self__", None)]
    try:
        names = inspect.getclosurevars(inspect.unwrap(function))
        found += [*names.nonlocals.values(), *names.globals.values()]
    except (TypeError, ValueError):
        pass  # no Python function: nothing to look into
    return [thing for thing in found if isinstance(thing, torch.nn.Module)]
