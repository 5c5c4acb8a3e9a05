"""Leaving torch's stack of function modes in whatever order modes were entered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def take_from_stack(mode: TorchFunctionMode) -> bool:
    """Whether it was there: a device context may lie on top. Inside a torch function a mode is off the stack."""
    above, found = [], False
    while torch._C._len_torch_function_stack() and not found:
        top = _pop_mode()
        found = top is mode
        if not found:
            above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return found


class Seat(TorchFunctionMode):
    """A place on this thread's stack, for one handler of torch functions after the other.

    Inside a torch function no mode can be taken off: torch puts it back when the function returns. A script without
    modules gives no other moment, so the next handler sits down where the last one sat; else there would be one
    mode more after every step.
    """

    left: ClassVar[dict[int, Seat]] = {}
    """By thread: empty seats that could not be taken from its stack yet."""

    def __init__(self) -> None:
        super().__init__()
        self.handler: Handler | None = None
        self.thread = threading.get_ident()

    @classmethod
    def take(cls, handler: Handler) -> Seat:
        seat = cls.left.pop(threading.get_ident(), None)
        if seat is None:
            seat = cls()
            seat.__enter__()
        seat.handler = handler
        return seat

    def leave(self) -> None:
        """May be called at any time; a seat that cannot be taken off hands every function on as it is."""
        self.handler = None
        if not take_from_stack(self):
            Seat.left[self.thread] = self

    def aside(self) -> bool:
        """Off the stack until `back`: whether it was there."""
        return take_from_stack(self)

    def back(self) -> None:
        _push_mode(self)

    @classmethod
    def clear(cls) -> None:
        """Takes away the empty seat of this thread, if this is a moment when it can be."""
        seat = cls.left.get(threading.get_ident())
        if seat is not None and take_from_stack(seat):
            del cls.left[seat.thread]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self.handler is None:
            return func(*args, **(kwargs or {}))
        return self.handler(func, args, kwargs or {})
