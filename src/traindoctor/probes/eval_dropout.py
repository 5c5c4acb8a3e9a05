"""Dropout that an evaluation pass still applies: a function that was not told the mode of its module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from traindoctor.events import Event, ForwardBegin, ForwardEnd
from traindoctor.ground.border import border
from traindoctor.ground.meant import meant
from traindoctor.ground.mode_stack import put_on_top, take_from_stack
from traindoctor.ground.names import may_run_compiled
from traindoctor.ground.unseen import handed_on
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter
from traindoctor.tape.operators import DROPPING, operator_of
from traindoctor.tape.ops import op_name

# Evaluation passes that are listened to.
PASSES = 3


class EvalDropout:
    """`mode.eval_dropout`: dropout calls of an evaluation pass that drop something, all its modules being in that mode."""

    name: ClassVar[str] = "eval_dropout"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, ForwardEnd)

    def __init__(self) -> None:
        self._trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._listener: Listener | None = None
        self._left = PASSES
        self._counts: list[int] = []
        self._last: int | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            self._stop()
            if event.wants_grad:
                self._trained.add(event.module)
            elif self._left and event.module in self._trained and evaluates(event.module):
                self._listener = Listener()
                put_on_top(self._listener)
        elif isinstance(event, ForwardEnd) and self._listener is not None:
            self._left -= 1
            self._counts.append(self._listener.count)
            self._stop()

    def _stop(self) -> None:
        if self._listener is not None and take_from_stack(self._listener):
            self._listener = None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._stop()
        self._last = step
        self._write(record)

    def _write(self, record: RecordWriter) -> None:
        if self._counts and self._last is not None:
            record.scalar("mode.eval_dropout", self._last, float(max(self._counts)))
        self._counts = []

    def finish(self, record: RecordWriter) -> None:
        """Many scripts evaluate once, when the last step has been made."""
        self._stop()
        self._write(record)


def evaluates(module: torch.nn.Module) -> bool:
    """Every part is in evaluation mode, and none is compiled."""
    return not may_run_compiled(module) and not any(part.training for part in module.modules())


class Listener(TorchFunctionMode):
    """Counts the calls that drop something; changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        func, kwargs = meant(func), kwargs or {}
        kind = operator_of(op_name(func)).kind
        if kind in DROPPING:
            self.count += bool(border.enter(drops, kind, args, kwargs))
        return handed_on(func, args, kwargs)


def drops(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of this function drops anything."""
    if kind == "dropout":
        chance = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        told = kwargs.get("training", args[2] if len(args) > 2 else True)
        return bool(told) and float(chance) > 0
    if kind == "scaled_dot_product_attention":
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)) > 0
    return False
