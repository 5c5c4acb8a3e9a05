"""Our frames are not for torch.compile: it starts no graph at torch's own frames, so it must start none at ours.

Only frames that it meets on its own are left out. Inside a graph our replacements are looked through as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from traindoctor.ground.torch_private import eval_frame

# What runs between the script and an event: all else of ours runs while the compiler is off (hub.emit).
PARTS = (
    "capture.taps",
    "capture.hub",
    "capture.step_hooks",
    "capture.first_training",
    "capture.beside",
    "events",
    "ground.border",
    "ground.names",
    "ground.nested",
    "ground.quiet",
    "ground.torch_private",
    "tape.ops",
)
_hidden: set[CodeType] = set()


def hide_from_compiler() -> None:
    """Idempotent. Call it when torch._dynamo is there: importing it takes seconds."""
    if not hasattr(eval_frame, "set_code_exec_strategy"):  # before torch 2.7
        return
    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    names = tuple(f"traindoctor.{part}" for part in PARTS)
    # a copy in one step: another thread may be importing
    for name, module in sys.modules.copy().items():
        if name.startswith(names):
            for code in _codes_of_module(module):
                if code not in _hidden:
                    _hidden.add(code)
                    eval_frame.set_code_exec_strategy(code, strategy)


def _codes_of_module(module: ModuleType) -> Iterator[CodeType]:
    for thing in vars(module).values():
        inside = vars(thing).values() if isinstance(thing, type) else (thing,)
        for one in inside:
            function = one.fget if isinstance(one, property) else getattr(one, "__wrapped__", one)
            for part in (one, function):
                if isinstance(part, FunctionType):
                    yield from _codes(part.__code__)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """With those of the functions inside it."""
    yield code
    constants: tuple[Any, ...] = code.co_consts
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
