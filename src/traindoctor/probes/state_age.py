"""How old the optimizer's memory is: moments thrown away show as a state that is young again."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, StepBegin, StepEnd
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.some_values import some_values
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Values by which a parameter is known again, evenly spread.
SOME = 64


@dataclass(frozen=True)
class Stepped:
    parameter: OurRef
    optimizer: weakref.ref[torch.optim.Optimizer]
    age: float
    """Steps that its state had seen then."""
    values: Tensor
    """Some of its values after that step."""


class StateAge:
    """Follows one parameter of each optimizer: its state before a step, and its own count of steps.

    Lost is a state that was there after the last step of this parameter and is empty before this one, or
    whose count goes back: both whatever the optimizer object is called by then. A parameter that begins where another
    one ended (a model saved and loaded) is the same.
    """

    name: ClassVar[str] = "state_age"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self._last: dict[int, Stepped] = {}
        """Of each followed parameter: who stepped it last."""
        self._own: dict[tuple[int, int], Stepped] = {}
        """By parameter and optimizer."""
        self._latest: Stepped | None = None
        self._waiting: dict[int, int] = {}
        """Parameter -> an optimizer that stepped it after another one that is still there: do both go on?"""
        self._reset: bool | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, StepBegin):
            parameter = _followed(event.optimizer)
            if parameter is not None:
                self._reset = self._is_reset(parameter, event.optimizer)
        elif isinstance(event, StepEnd):
            parameter = _followed(event.optimizer)
            state = None if parameter is None else event.optimizer.state.get(parameter)
            if parameter is not None and state and _remembers(state):
                stepped = Stepped(
                    OurRef(parameter),
                    weakref.ref(event.optimizer),
                    _count(state) or 0.0,
                    some_values(parameter, SOME),
                )
                self._latest = self._last[id(parameter)] = stepped
                self._own[id(parameter), id(event.optimizer)] = stepped

    def _is_reset(self, parameter: Tensor, optimizer: torch.optim.Optimizer) -> bool | None:
        """The state is younger than it was. None: there was none, or two optimizers may share the parameter."""
        at, key = id(parameter), (id(parameter), id(optimizer))
        last, own = self._last.get(at), self._own.get(key)
        state = optimizer.state.get(parameter) or {}
        if last is None or last.parameter() is not parameter:
            goes_on = self._latest is not None and _same(
                some_values(parameter, SOME), self._latest.values
            )
            return not state if goes_on else None
        waiting = self._waiting.pop(at, None)
        known = own if own is not None and own.optimizer() is optimizer else None
        age = _count(state)
        younger = not state or (age is not None and age < (known or last).age)
        if known is not None:
            return younger or waiting == id(optimizer)
        if not younger or last.optimizer() is None:
            return younger
        self._waiting[at] = id(optimizer)
        return True if waiting is not None else None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._reset is not None:
            record.scalar("optim.state_reset", step, float(self._reset))
        self._reset = None


def _followed(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The first parameter that is stepped now."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return parameter  # type: ignore[no-any-return]
    return None


def _same(values: Tensor, others: Tensor) -> bool:
    """To the bit: a parameter that is built anew has other values, unless all are one constant."""
    alike = (values.shape, values.dtype, values.device) == (
        others.shape,
        others.dtype,
        others.device,
    )
    return alike and bool((values != values[:1]).any()) and torch.equal(values, others)


def _remembers(state: dict[str, Any]) -> bool:
    """SGD without momentum keeps None: there is nothing to lose."""
    return any(isinstance(v, Tensor) and v.dim() for v in state.values())


def _count(state: dict[str, Any]) -> float | None:
    """Steps this state has seen, where that can be read without waiting for a device."""
    count = state.get("step")
    if isinstance(count, Tensor):
        return float(count) if count.device.type == "cpu" else None
    return float(count) if isinstance(count, int | float) else None
