"""The data that a script holds in variables while it calls backward: targets of a loss written by hand, masks, weights.

No tap sees them where no module and no loss function of torch is given them. A variable of a running function has a
name, and at the next step it has it again.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from traindoctor.ground.frames import kind_of
from traindoctor.ground.memory import nbytes

# Larger ones are data sets, not batches; and a step has no more variables than this that are worth a copy.
MAX_BYTES = 1 << 20
MOST = 64
# A variable's number is a checksum of its name; above it stands which of the step's backward passes it was seen at.
CRC_BITS = 32
# Functions (not modules) keep their variables outside of a dictionary.
_OPTIMIZED = 0x1


# The frame, the variable that asks and the call of getrefcount.
HELD_BY_FRAME = 3


def data_variables(nth: int = 0) -> Iterator[tuple[int, int, Tensor]]:
    """(number of the variable, place in it, tensor) of every function of the script that is running now.

    `nth`: of several backward passes of a step, each has a batch of its own in the same variables.
    """
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if kind_of(code.co_filename) == "script":
            for name, place, tensor in _in_frame(frame):
                yield (nth << CRC_BITS) + _number(code, name), place, tensor
                found += 1
                if found >= MOST:
                    return
        frame = frame.f_back


@lru_cache(maxsize=1024)
def _number(code: CodeType, name: str) -> int:
    return crc32(f"{code.co_qualname}.{name}".encode())


def _in_frame(frame: FrameType) -> list[tuple[str, int, Tensor]]:
    variables = frame.f_locals
    # One look at each; most variables of a script are numbers, functions and modules.
    holders = [(name, held) for name, held in variables.items() if issubclass(type(held), _HOLDERS)]
    found = [
        (name, place, value)
        for name, held in holders
        for place, value in enumerate(_values(held))
        if _is_data(value)
    ]
    # Before Python 3.13 this is a copy that the frame keeps, and so all that the script's variables held: tensors, loaders
    # with their workers. Where the script asked for `locals()` itself, the copy is its own.
    if frame.f_code.co_flags & _OPTIMIZED and type(variables) is dict:
        if sys.getrefcount(variables) <= HELD_BY_FRAME:
            variables.clear()
    return found


# UserDict: the batches of Hugging Face.
_HOLDERS = (Tensor, tuple, list, dict, UserDict)


def _values(held: Any) -> Iterable[Any]:
    """Without a call of the script's code: a mapping of its own may import or compute what it is asked for."""
    kind = type(held)
    if issubclass(kind, Tensor):
        return (held,)
    if issubclass(kind, UserDict):
        held = vars(held).get("data")
        if type(held) is not dict:
            return ()
    read = tuple if issubclass(kind, tuple) else list if issubclass(kind, list) else dict
    if read.__len__(held) > MOST:
        return ()
    return list(dict.values(held)) if read is dict else list(read.__iter__(held))


def _is_data(value: Any) -> bool:
    return (
        issubclass(type(value), Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and not value.requires_grad
        and value.layout == torch.strided
        and 1 < value.numel()
        and nbytes(value) <= MAX_BYTES
    )
