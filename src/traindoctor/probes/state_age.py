"""How old the optimizer's memory is: moments thrown away show as a state that is young again."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, StepBegin, StepEnd
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class StateAge:
    """Follows one parameter of each optimizer: its state before a step, and its own count of steps.

    Lost is a state that was there after the last step of this parameter and is empty before this one, or
    whose count goes back: both whatever the optimizer object is called by then.
    """

    name: ClassVar[str] = "state_age"
    gives: ClassVar[tuple[str, ...]] = ("optim.state_reset", "optim.state_step")
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self._had_state: dict[int, tuple[weakref.ref[Tensor], float]] = {}
        self._reset: bool | None = None
        self._age: float | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, StepBegin):
            parameter = _followed(event.optimizer)
            if parameter is None:
                return
            state = event.optimizer.state.get(parameter) or {}
            before = self._age_before(parameter)
            if before is not None:
                age = _count(state)
                self._reset = not state or (age is not None and age < before)
        elif isinstance(event, StepEnd):
            parameter = _followed(event.optimizer)
            state = None if parameter is None else event.optimizer.state.get(parameter)
            if parameter is not None and state and _remembers(state):
                self._age = _count(state)
                self._had_state[id(parameter)] = (weakref.ref(parameter), self._age or 0.0)

    def _age_before(self, parameter: Tensor) -> float | None:
        """Steps its state had seen after its last step; None if it had none."""
        known = self._had_state.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._reset is not None:
            record.scalar("optim.state_reset", step, float(self._reset))
        if self._age is not None:
            record.scalar("optim.state_step", step, self._age)
        self._reset = self._age = None


def _followed(optimizer: torch.optim.Optimizer) -> Tensor | None:
    """The first parameter that is stepped now."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return parameter  # type: ignore[no-any-return]
    return None


def _remembers(state: dict[str, Any]) -> bool:
    """SGD without momentum keeps None: there is nothing to lose."""
    return any(isinstance(v, Tensor) and v.dim() for v in state.values())


def _count(state: dict[str, Any]) -> float | None:
    """Steps this state has seen, where that can be read without waiting for a device."""
    count = state.get("step")
    if isinstance(count, Tensor):
        return float(count) if count.device.type == "cpu" else None
    return float(count) if isinstance(count, int | float) else None
