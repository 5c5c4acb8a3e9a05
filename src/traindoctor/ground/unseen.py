"""Frames of ours between the script and torch: warnings are placed where they would stand without them.

`warnings.warn(..., stacklevel=2)` counts frames, and a warning is shown once per place: with a frame more it would name
our file, and come again. Python does not count frames of the import system, which it knows by their file name: what only
hands a call on (`unseen`) takes such a name. Where a call passes through a mode, torch's own frames lie between as well:
there the warnings of the call are collected and given again at their right place (`handed_on`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any, TypeVar

FILE = "<frozen importlib._bootstrap>/traindoctor"
PACKAGE = __name__.partition(".")[0] + "."
OVERRIDES = "torch.overrides"

Function = TypeVar("Function", bound=Callable[..., Any])
ALWAYS = ("always", None, Warning, None, 0)


def unseen(function: Function) -> Function:
    """The function, with frames that neither warnings nor tracebacks count."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_filename=FILE)
    return function


def handed_on(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)`, called by a mode of ours."""
    given: list[warnings.WarningMessage] = []
    filters, shown = warnings.filters, warnings._showwarnmsg  # type: ignore[attr-defined]
    ours = [ALWAYS]
    warnings.filters = ours
    warnings._showwarnmsg = given.append  # type: ignore[attr-defined]
    try:
        return func(*args, **kwargs)
    finally:
        # What a library asks for while it is imported inside the call is its own.
        filters[:0] = [one for one in ours if one is not ALWAYS]  # type: ignore[index]
        warnings.filters = filters
        warnings._showwarnmsg = shown  # type: ignore[attr-defined]
        if given:
            _give_again(given, sys._getframe(1))


def _give_again(given: list[warnings.WarningMessage], frame: FrameType) -> None:
    for message in given:
        filename, line = message.filename, message.lineno
        # In a thread of torch's own there is no Python frame: Python places the warning in sys.
        inside = vars(sys) if "sys" in (filename, filename.strip("<>")) else _module_of(filename)
        if filename == FILE or inside is None or _is_between(inside):
            caller = _caller(frame)
            if caller is None:
                continue
            filename, line = caller.f_code.co_filename, caller.f_lineno
            inside = caller.f_globals
        warnings.warn_explicit(
            message.message,
            message.category,
            filename,
            line,
            module=inside.get("__name__", "<unknown>"),
            registry=inside.setdefault("__warningregistry__", {}),
            source=message.source,
        )


def _module_of(filename: str) -> dict[str, Any] | None:
    """The names of the module in this file. Warnings are rare: a search is good enough."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            return vars(module)
    return None


def _is_between(inside: dict[str, Any]) -> bool:
    name = str(inside.get("__name__", ""))
    return name.startswith(PACKAGE) or name == OVERRIDES


def _caller(frame: FrameType | None) -> FrameType | None:
    """Who called the function: below our frames, those of torch's overrides and the function's own first one."""
    overridden = False
    while frame is not None and _is_between(frame.f_globals):
        overridden = overridden or frame.f_globals.get("__name__") == OVERRIDES
        frame = frame.f_back
    if overridden and frame is not None:
        frame = frame.f_back
        while frame is not None and _is_between(frame.f_globals):
            frame = frame.f_back
    return frame
