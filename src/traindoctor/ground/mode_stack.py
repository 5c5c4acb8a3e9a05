"""Leaving torch's stack of function modes in whatever order modes were entered."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch.overrides import TorchFunctionMode

from traindoctor.ground import fast_paths
from traindoctor.ground.meant import meant
from traindoctor.ground.torch_private import (
    DeviceContext,
    num_function_modes,
    pop_function_mode,
    push_function_mode,
)
from traindoctor.ground.unseen import handed_on

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def stack_height() -> int:
    return int(num_function_modes())


def take_from_stack(mode: TorchFunctionMode) -> bool:
    """Whether it was there: inside a torch function no mode is."""
    above, found = [], False
    while stack_height() and not found:
        top = pop_function_mode()
        found = top is mode
        if not found:
            above.append(top)
    _push_all(above)
    if found:
        fast_paths.end(mode)
    return found


def put_on_top(mode: TorchFunctionMode) -> None:
    """To listen for a while: a mode of ours, as long as no other context is entered."""
    push_function_mode(mode)
    fast_paths.begin(mode)


def put_below(mode: TorchFunctionMode) -> None:
    """Below the script's own modes: a context that the script leaves takes away whatever is on top."""
    above: list[TorchFunctionMode] = []
    while stack_height():
        top = pop_function_mode()
        if _stays_lowest(top):
            push_function_mode(top)
            break
        above.append(top)
    push_function_mode(mode)
    _push_all(above)
    fast_paths.begin(mode)


def _stays_lowest(mode: TorchFunctionMode) -> bool:
    """The default device, entered by Python, is looked for at the bottom; `with torch.device(...)` pushes and pops as others do."""
    return isinstance(mode, DeviceContext) and hasattr(mode, "old_device")


def take_ours_from_stack() -> None:
    """A forked child has the stack of the thread that forked: ours go, the script's own modes stay."""
    modes = [pop_function_mode() for _ in range(stack_height())]
    _push_all([mode for mode in modes if fast_paths.is_not_ours(mode)])
    fast_paths.end_all()


def _push_all(popped: Sequence[TorchFunctionMode]) -> None:
    for mode in reversed(popped):
        push_function_mode(mode)


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
        self._aside = False

    @classmethod
    def take(cls, handler: Handler) -> Seat:
        seat = cls.left.pop(threading.get_ident(), None)
        if seat is None:
            seat = cls()
            put_below(seat)
        seat.handler = handler
        return seat

    def leave(self) -> None:
        """May be called at any time; a seat that cannot be taken off hands every function on as it is."""
        self.handler = None
        if not self._aside and not take_from_stack(self):
            Seat.left[self.thread] = self

    def aside(self) -> bool:
        """Off the stack until `back`: whether it was there, or is aside already."""
        if self.thread != threading.get_ident():
            return False
        if not self._aside:
            self._aside = take_from_stack(self)
        return self._aside

    def back(self) -> None:
        """Where it belongs. A seat that was left stays away."""
        if not self._aside or self.thread != threading.get_ident():
            return
        self._aside = False
        if self.handler is not None:
            put_below(self)

    @classmethod
    def clear(cls) -> None:
        """Takes away the empty seat of this thread, if this is a moment when it can be."""
        seat = cls.left.get(threading.get_ident())
        if seat is not None and take_from_stack(seat):
            del cls.left[seat.thread]

    @classmethod
    def leave_in_child(cls) -> None:
        """In a forked child: one that torch puts back, the fork being inside a torch function, hears nothing."""
        for seat in list(cls.made):
            seat.handler, seat._aside = None, False
        cls.left.clear()
        take_ours_from_stack()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func = meant(func)
        if self.handler is None:
            return handed_on(func, args, kwargs or {})
        return self.handler(func, args, kwargs or {})
