"""May code of the script's be called a second time? Only where reading it shows nothing that would happen twice.

A Function, or the uncompiled forward of a compiled model, is called again by some tests. What it writes on its own
first argument (ctx, the module) is given back or thrown away; what else it writes, prints, opens or counts is not. So its
byte code, and that of every function of the script it names, is read for such things. Libraries are trusted.
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from traindoctor.ground.frames import kind_of

# Values that cannot change, or that are looked into elsewhere: modules, functions, classes, compiled code.
HARMLESS = (
    int, float, complex, str, bytes, bool, type(None), type(...), range, slice, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Tensor, types.ModuleType, types.BuiltinFunctionType, type, nn.Module,
    types.FunctionType, types.MethodType, classmethod, staticmethod, property,
)  # fmt: skip
CALLED = (types.FunctionType, types.MethodType, staticmethod, classmethod)
# Built-in functions that reach outside, or run what nobody has read.
REACHING = frozenset(
    "print open input exec eval compile globals setattr delattr __import__ breakpoint".split()
)
WRITING = {
    "STORE_GLOBAL": "writes the global",
    "DELETE_GLOBAL": "deletes the global",
    "STORE_DEREF": "writes to the outer variable",
    "IMPORT_NAME": "imports",
}
# Python's ways to call C by addresses.
FOREIGN = frozenset({"ctypes", "_ctypes", "cffi", "_cffi_backend"})
LOADING = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF")


def of_function(kind: type) -> str | None:
    """Why an autograd.Function is not called again; None where it may be."""
    return _first(_reasons((kind.forward, kind.backward, getattr(kind, "setup_context", None))))  # type: ignore[attr-defined]


def uses_addresses(kind: type) -> bool:
    """Whether an autograd.Function names something that calls C by addresses."""
    waiting = [kind.forward, kind.backward, getattr(kind, "setup_context", None)]  # type: ignore[attr-defined]
    values = (value for function in _reached(waiting) for _, value in _named(function))
    return any(_home(value).partition(".")[0] in FOREIGN for value in values)


def _home(value: Any) -> str:
    """The module that a value is, or that its class comes from."""
    return value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__


def of_arguments(given: Any) -> str | None:
    """Why a Function is not called again with these arguments: an object of the script's own may keep what is written to it."""
    if isinstance(given, tuple | list):
        return _first(filter(None, map(of_arguments, given)))
    if isinstance(given, dict):
        return of_arguments(list(dict.values(given)))
    if isinstance(given, HARMLESS) or _of_library(given):
        return None
    return f"it is given a {type(given).__name__}, which it may write to"


def of_modules(modules: Iterable[nn.Module]) -> str | None:
    """Why these models' forward is not run again."""
    kinds = {type(inner) for module in modules for inner in module.modules()}
    return _first(_reasons(getattr(kind, "forward", None) for kind in kinds))


def of_callable(function: Callable[..., Any]) -> str | None:
    return _first(_reasons([function]))


def _first(reasons: Iterator[str]) -> str | None:
    return next(reasons, None)


def _reached(functions: Iterable[Any]) -> Iterator[types.FunctionType]:
    """These functions of the script's, and those that they name, each once."""
    waiting, seen = list(functions), set[int]()
    while waiting:
        function = waiting.pop()
        function = getattr(function, "__func__", function)
        function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        if code is None or id(code) in seen or kind_of(code.co_filename) != "script":
            continue
        seen.add(id(code))
        yield function
        for _, value in _named(function):
            if isinstance(value, CALLED):
                waiting.append(value)
            elif isinstance(value, type) and kind_of_class(value) == "script":
                waiting += [v for v in vars(value).values() if isinstance(v, types.FunctionType)]


def _reasons(functions: Iterable[Any]) -> Iterator[str]:
    for function in _reached(functions):
        code = function.__code__
        spoken = getattr(function, "__qualname__", code.co_name)
        own = code.co_varnames[0] if code.co_argcount else None
        for inner in _nested(code):
            yield from (f"{spoken} {what}" for what in _writes(inner, own))
        for name, value in _named(function):
            if name in REACHING and value is getattr(builtins, name, None):
                yield f"{spoken} calls {name}"
            elif (
                not isinstance(value, HARMLESS)
                and not _is_constant(value)
                and not _of_library(value)
            ):
                yield f"{spoken} uses {name}, a {type(value).__name__} outside itself"


def _writes(code: types.CodeType, own: str | None) -> Iterator[str]:
    """What one piece of code writes to that is not its own."""
    steps = list(dis.get_instructions(code))
    for place, one in enumerate(steps):
        if one.opname in WRITING and one.argval not in code.co_cellvars:
            yield f"{WRITING[one.opname]} {one.argval}"
        elif one.opname in ("STORE_ATTR", "DELETE_ATTR"):
            holder = next(
                (i for i in reversed(steps[:place]) if i.opname.startswith(LOADING)), None
            )
            held = holder.argval if holder is not None else None
            if (held[-1] if isinstance(held, tuple) else held) != own:
                yield f"sets {one.argval} on another object"


def _named(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals and outer variables that a function names, with their values."""
    inside, code = function.__globals__, function.__code__
    for inner in _nested(code):
        for one in dis.get_instructions(inner):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                yield one.argval, inside.get(one.argval, getattr(builtins, one.argval, None))
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _is_constant(value: Any) -> bool:
    return isinstance(value, tuple | frozenset) and all(
        isinstance(item, HARMLESS) or _is_constant(item) for item in value
    )


def _of_library(value: Any) -> bool:
    """An object whose class somebody published: a Triton kernel, a loaded extension, a logger."""
    return kind_of_class(type(value)) != "script" and type(value).__module__ != "builtins"


def kind_of_class(kind: type) -> str:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None:
        methods = (v for v in vars(kind).values() if isinstance(v, types.FunctionType))
        file = next((method.__code__.co_filename for method in methods), None)
    return "library" if file is None else kind_of(file)
