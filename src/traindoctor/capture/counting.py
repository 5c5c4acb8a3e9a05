"""What a step is: which events begin it, and which one ends it."""

from __future__ import annotations

import gc
from collections import deque

import torch

from traindoctor.capture.hub import hub
from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    BatchFetched,
    Event,
    ForwardBegin,
    ScalerUpdated,
    StepEnd,
)

# An optimizer that has not stepped after so many backward passes never will: passes are counted instead.
# The largest accumulation seen in the wild is below it.
NEVER_STEPS = 40
# Steps that must have ended with the same optimizer before its steps alone are counted.
RECENT = 16
# What only the next step can begin with.
BEGINNINGS = (ForwardBegin, BackwardBegin, BatchFetched)


class StepCount:
    """Optimizers that step one after the other, without a pass between them, share a step."""

    def __init__(self) -> None:
        self.step = 0
        """The optimizer step that is under way; the number of steps completed."""
        self.real_steps = 0
        self.backwards = 0
        self._backwards_in_step = 0
        self._stepped: set[int] = set()
        self._expected: set[int] = set()
        self._recent: deque[set[int]] = deque(maxlen=RECENT)
        """Who stepped in the last steps: optimizers may take turns."""
        self._searched = False
        self._never_steps = False

    @property
    def waiting(self) -> bool:
        """An optimizer has stepped, and another one may still come."""
        return bool(self._stepped)

    def has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """The same one again begins the next step."""
        return id(optimizer) in self._stepped

    def is_over_before(self, event: Event) -> bool:
        """Nobody else steps: what comes belongs to the next step."""
        return bool(self._stepped) and isinstance(event, BEGINNINGS)

    def backward_begins(self) -> None:
        self.backwards += 1
        self._backwards_in_step += 1

    def ends_with(self, event: Event) -> bool:
        """Whether the step is complete with this event. Each event is told once, after everybody has heard it."""
        if isinstance(event, StepEnd):
            self.real_steps += 1
            self._stepped.add(id(event.optimizer))
            return self._all_have_stepped()
        if isinstance(event, BackwardEnd):
            return self._counts_by_backward()
        return isinstance(event, ScalerUpdated) and event.skipped and not self._stepped

    @property
    def only_optimizer(self) -> torch.optim.Optimizer | None:
        """The one that ended each of the last steps; None where there are several, or none."""
        if len(self._expected) != 1 or any(one != self._expected for one in self._recent):
            return None
        return next((one for one in hub.optimizers if id(one) in self._expected), None)

    def turned(self, optimizer: torch.optim.Optimizer) -> None:
        """Another one stepped in between."""
        self._recent.append({id(optimizer)})

    def passed(self, steps: int, backwards: int) -> None:
        """Steps of that one which nobody heard."""
        self.step += steps
        self.real_steps += steps
        self.backwards += backwards

    def close(self) -> None:
        """The step ends; `step` is set when everything about it is written."""
        self._expected = set(self._stepped)
        self._recent.append(self._expected)
        self._stepped.clear()
        self._backwards_in_step = 0

    def _all_have_stepped(self) -> bool:
        """Whether another optimizer is still to come in this step: those of the last step are expected again."""
        if self._expected:
            return self._stepped >= self._expected
        return all(id(optimizer) in self._stepped for optimizer in hub.optimizers)

    def _counts_by_backward(self) -> bool:
        """A script with an optimizer of its own, or one that never steps, is counted by backward passes."""
        if self.real_steps:
            return False
        if not len(hub.optimizers) and not self._searched:
            self._searched = True
            hub.optimizers.update(dict.fromkeys(optimizers_alive(), ()))
        if self._backwards_in_step >= NEVER_STEPS:
            self._never_steps = True
        counted = self._never_steps or not len(hub.optimizers)
        if counted:
            hub.first_backward = True
        return counted


def optimizers_alive() -> list[torch.optim.Optimizer]:
    """Optimizers that were made before we came. Wrappers that only pass calls on have no groups of their own."""
    return [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer) and "param_groups" in vars(thing)
    ]
