"""Which function of torch's a mode was asked to call, where the script has put one of its own in that place."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

TRUSTED = ("torch.", __name__.partition(".")[0] + ".")
HANDLING = torch.overrides.handle_torch_function.__code__


def meant(func: Callable[..., Any]) -> Callable[..., Any]:
    """What a mode was asked to call, of torch's own.

    torch's functions name themselves to a mode by looking up their own name: where the script has put a function of its
    own there, which calls torch's, that would be called a second time.
    """
    if type(func) is not FunctionType or str(func.__module__).startswith(TRUSTED):
        return func
    asking = sys._getframe(2)
    asked_by = asking.f_back
    if asking.f_code is not HANDLING or asked_by is None:
        return func
    if not str(asked_by.f_globals.get("__name__")).startswith("torch."):
        return func
    return _function_of(asked_by.f_code) or func


@functools.cache
def _function_of(code: CodeType) -> Callable[..., Any] | None:
    """Which function this code is the body of: torch no longer has it under its name."""
    owners = (one for one in gc.get_referrers(code) if type(one) is FunctionType)
    return next((one for one in owners if one.__code__ is code), None)
