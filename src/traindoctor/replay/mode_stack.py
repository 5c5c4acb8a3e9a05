"""Leaving torch's stack of function modes in whatever order modes were entered."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def stack_height() -> int:
    return int(torch._C._len_torch_function_stack())


def take_from_stack(mode: TorchFunctionMode) -> int | None:
    """How many modes (a device context) lay on top of it; None where it was not there, as inside a torch function."""
    above, found = [], False
    while stack_height() and not found:
        top = _pop_mode()
        found = top is mode
        if not found:
            above.append(top)
    for other in reversed(above):
        _push_mode(other)
    return len(above) if found else None


class Seat(TorchFunctionMode):
    """A place on this thread's stack, for one handler of torch functions after the other.

    Inside a torch function no mode can be taken off: torch puts it back when the function returns. A script without
    modules gives no other moment, so the next handler sits down where the last one sat; else there would be one
    mode more after every step.
    """

    left: ClassVar[dict[int, Seat]] = {}
    """By thread: empty seats that could not be taken from its stack yet."""

    made: ClassVar[weakref.WeakSet[Seat]] = weakref.WeakSet()
    """All that may be on a stack."""

    def __init__(self) -> None:
        super().__init__()
        Seat.made.add(self)
        self.handler: Handler | None = None
        self.thread = threading.get_ident()
        self._above: int | None = None
        """While it is aside: how many modes lay on top of it."""

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
        if self._above is None and take_from_stack(self) is None:
            Seat.left[self.thread] = self

    def aside(self) -> bool:
        """Off the stack until `back`: whether it was there, or is aside already."""
        if self.thread != threading.get_ident():
            return False
        if self._above is None:
            self._above = take_from_stack(self)
        return self._above is not None

    def back(self) -> None:
        """Where it was: a context of the script's that lies on top is left by the script. A seat that was left stays away."""
        if self._above is None or self.thread != threading.get_ident():
            return
        above = [_pop_mode() for _ in range(min(self._above, stack_height()))]
        self._above = None
        if self.handler is not None:
            _push_mode(self)
        for other in reversed(above):
            _push_mode(other)

    @classmethod
    def clear(cls) -> None:
        """Takes away the empty seat of this thread, if this is a moment when it can be."""
        seat = cls.left.get(threading.get_ident())
        if seat is not None and take_from_stack(seat) is not None:
            del cls.left[seat.thread]

    @classmethod
    def leave_in_child(cls) -> None:
        """A forked child has the stack of the thread that forked: ours go, the script's own modes stay."""
        for seat in list(cls.made):
            seat.handler = seat._above = None
            take_from_stack(seat)
        cls.left.clear()

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
