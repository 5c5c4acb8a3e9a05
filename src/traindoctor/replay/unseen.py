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
ALWAYS = [("always", None, Warning, None, 0)]


def unseen(function: Function) -> Function:
    """The function, with frames that neither warnings nor tracebacks count."""
    if isinstance(function, FunctionType):
        function.__code__ = function.__code__.replace(co_filename=FILE)
    return function


def handed_on(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)`, called by a mode of ours."""
    given: list[warnings.WarningMessage] = []
    filters, shown = warnings.filters, warnings._showwarnmsg  # type: ignore[attr-defined]
    warnings.filters = ALWAYS  # type: ignore[assignment]
    warnings._showwarnmsg = given.append  # type: ignore[attr-defined]
    try:
        return func(*args, **kwargs)
    finally:
        warnings.filters = filters
        warnings._showwarnmsg = shown  # type: ignore[attr-defined]
        if given:
            _give_again(given, sys._getframe(1))


def _give_again(given: list[warnings.WarningMessage], frame: FrameType) -> None:
    caller = _caller(frame)
    for message in given:
        where = _frame_of(message, frame)
        if where is None and caller is None:
            continue
        if where is None or _is_between(where):
            where = caller
        assert where is not None
        inside = where.f_globals
        warnings.warn_explicit(
            message.message,
            message.category,
            where.f_code.co_filename,
            where.f_lineno,
            module=inside.get("__name__", "<unknown>"),
            registry=inside.setdefault("__warningregistry__", {}),
            source=message.source,
        )


def _frame_of(message: warnings.WarningMessage, frame: FrameType | None) -> FrameType | None:
    """The frame that a warning was placed at, if it still runs."""
    while frame is not None:
        if frame.f_lineno == message.lineno and frame.f_code.co_filename == message.filename:
            return frame
        frame = frame.f_back
    return None


def _is_between(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.startswith(PACKAGE) or name == OVERRIDES


def _caller(frame: FrameType | None) -> FrameType | None:
    """Who called the function: below our frames, those of torch's overrides and the function's own first one."""
    overridden = False
    while frame is not None and _is_between(frame):
        overridden = overridden or frame.f_globals.get("__name__") == OVERRIDES
        frame = frame.f_back
    if overridden and frame is not None:
        frame = frame.f_back
        while frame is not None and _is_between(frame):
            frame = frame.f_back
    return frame
