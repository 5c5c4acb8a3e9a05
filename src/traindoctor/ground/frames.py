"""Where in the script an op was called: its line, its module, the autograd.Function it ran in."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn

from traindoctor.ground.unseen import FILE as UNSEEN

Kind = Literal["torch", "ours", "library", "script"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# Our trainer and its kernels are training code like a stranger's: their lines are worth naming.
_TRAINING = tuple(_OURS + part + os.sep for part in ("lm", "kernels"))
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(key)) + os.sep for key in ("stdlib", "purelib", "platlib")}
    | {sysconfig.get_path(key) + os.sep for key in ("stdlib", "purelib", "platlib")}
)
_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CALL = nn.Module._call_impl.__code__
_kinds: dict[str, Kind] = {}


def kind_of(filename: str) -> Kind:
    known = _kinds.get(filename)
    if known is None:
        known = _kinds[filename] = _classify(filename)
    return known


def _classify(filename: str) -> Kind:
    if filename.startswith(_TORCH):
        return "torch"
    if filename == UNSEEN:
        return "ours"
    if filename.startswith(_TRAINING):
        return "library"
    if filename.startswith(_OURS):
        return "ours"
    if filename.startswith(_LIBRARIES) or filename.startswith("<frozen"):
        return "library"
    return "script"


@dataclass(slots=True)
class Place:
    """The answer of one walk up the stack."""

    line: str | None = None
    package_line: str | None = None
    module: nn.Module | None = None
    functions: list[FrameType] | None = None
    """Frames of Function.apply, innermost first."""


def name_line(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def here(skip: int = 1) -> Place:
    """Walks up the stack once. `skip` leaves out the caller's own frames."""
    place = Place()
    frame: FrameType | None = sys._getframe(skip)
    outside_library = False
    while frame is not None:
        code = frame.f_code
        if code is _APPLY:
            if place.functions is None:
                place.functions = []
            place.functions.append(frame)
        elif code is _CALL:
            if place.module is None:
                place.module = frame.f_locals.get("self")
        elif place.line is None:
            kind = kind_of(code.co_filename)
            if kind == "script":
                place.line = name_line(frame)
                outside_library = True
            elif kind == "library" and place.package_line is None and not outside_library:
                place.package_line = name_line(frame)
        frame = frame.f_back
    return place


def arguments(frame: FrameType) -> tuple[type, tuple[Any, ...], dict[str, Any]]:
    """Class and arguments of a running Function.apply."""
    values = frame.f_locals
    return values["cls"], tuple(values.get("args", ())), dict(values.get("kwargs", {}))
