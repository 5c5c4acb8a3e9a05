"""What an exam gets: the tapes of the run, its model and optimizers, and a way to leave no trace."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from traindoctor.experiment.crash import Crash
from traindoctor.ground.border import modes_aside, silent_warnings, state_set_aside, usual_state
from traindoctor.ground.hook_handles import own_handles
from traindoctor.ground.hooks_aside import hooks_aside
from traindoctor.ground.memory import memory
from traindoctor.ground.modes import random_state_restored
from traindoctor.ground.names import Names, unwrap
from traindoctor.ground.no_communication import no_communication
from traindoctor.ground.no_trace import (
    gradients_restored,
    modes_restored,
    modules_restored,
)
from traindoctor.ground.quiet import quiet
from traindoctor.ground.stacks import stacks_restored
from traindoctor.record import RecordWriter
from traindoctor.tape.tape import StepTape

# Tapes kept: the first two (a wrong gradient, a missing zero_grad) and the latest ones; fewer of a later stage.
KEPT_FIRST, KEPT_LATEST = 2, 2
KEPT_OF_LATER_STAGES = 1


class MayBeGone:
    """The model, or a weak reference to it: read, it is the model, or None once the script has let go of it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot = f"_{name}"

    def __get__(self, patient: object, owner: type | None = None) -> nn.Module | None:
        held = None if patient is None else vars(patient).get(self.slot)
        return held() if isinstance(held, weakref.ref) else held

    def __set__(self, patient: object, held: nn.Module | weakref.ref[nn.Module] | None) -> None:
        vars(patient)[self.slot] = held


@dataclass
class Patient:
    """The run, as exams see it."""

    names: Names = field(default_factory=Names)
    writer: RecordWriter | None = None
    model: MayBeGone = MayBeGone()
    optimizers: Collection[torch.optim.Optimizer] = ()
    learning: frozenset[str] = frozenset()
    """Names of what the optimizers held when a step was taped."""
    tapes: dict[int, StepTape] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    """Steps that could not be taped, and why."""
    snapshot: Any = None
    """experiment/snapshot.py fills it: what is needed to repeat K steps."""
    crash: Crash | None = None
    """experiment/crash.py fills it: the first step that was not finite."""
    facts: dict[str, Any] = field(default_factory=dict)
    current_step: int = 0
    rows_joined: set[int] = field(default_factory=set)
    """How many examples the loaders join to a batch, as far as they say so."""
    asks_itself: bool = False
    """What is trained was called without gradient before its own pass in the same step: the loss may work with that."""
    seconds: float = math.inf
    """What an exam may take; experiments repeat fewer steps where it is short."""
    hard_seconds: float = math.inf
    """After so long it is stopped from outside (ground/watchdog.py), whatever it is doing."""
    hard_host_bytes: float = math.inf
    hard_device_bytes: float = math.inf
    """The same for memory, beyond what is used when it begins."""
    _every_tape: dict[int, StepTape] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    """Exams that were stopped, and why: none is tried again in this run."""

    @property
    def step(self) -> int:
        """The step that the latest tape is of; the run's own step without one."""
        return self.tape.step if self.tape is not None else self.current_step

    @property
    def tape(self) -> StepTape | None:
        """The latest tape whose loss is finite: of a step that broke there is little to ask. Else the latest."""
        sound = [step for step, tape in self.tapes.items() if math.isfinite(tape.loss)]
        return self.tapes[max(sound or self.tapes)] if self.tapes else None

    @property
    def first_tape(self) -> StepTape | None:
        return self.tapes[min(self.tapes)] if self.tapes else None

    @property
    def every_tape(self) -> dict[int, StepTape]:
        """The tapes of all stages, also while an exam sees those of one."""
        return self._every_tape or self.tapes

    @contextmanager
    def at_stage(self, stage: int) -> Iterator[None]:
        """Inside, only the steps of one optimizer were taped (if there are any)."""
        whole = self.tapes
        chosen = {step: tape for step, tape in whole.items() if tape.stage == stage}
        self.tapes, self._every_tape = chosen or whole, whole
        try:
            yield
        finally:
            self.tapes, self._every_tape = whole, {}

    def add_tape(self, tape: StepTape) -> None:
        """Keeps the first and the latest few of each stage."""
        self.tapes[tape.step] = tape
        self.learning = self.in_optimizers() or self.learning
        steps = sorted(step for step, other in self.tapes.items() if other.stage == tape.stage)
        first, latest = (KEPT_OF_LATER_STAGES,) * 2 if tape.stage else (KEPT_FIRST, KEPT_LATEST)
        for step in steps[first:-latest]:
            del self.tapes[step]

    def make_room(self) -> None:
        """Before a tape is made: where the memory bound is near, an earlier one goes, the first one last."""
        needed = max((tape.bytes for tape in self.tapes.values()), default=0)
        while len(self.tapes) > 1 and memory.room() < needed:
            del self.tapes[sorted(self.tapes)[1]]

    def held_bytes(self) -> int:
        """Copies that are kept for exams."""
        tapes = sum(tape.bytes for tape in self.tapes.values())
        kept = self.snapshot.bytes if self.snapshot is not None else 0
        return tapes + kept + (self.crash.bytes if self.crash is not None else 0)

    def in_optimizers(self) -> frozenset[str]:
        return frozenset(
            self.names.of(parameter)
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        )

    @property
    def model_is_gone(self) -> bool:
        """It was known, and the script has let go of it."""
        return self.model is None and vars(self).get("_model") is not None

    def logs(self) -> list[Any]:
        """The StepLogs whose data were kept, in order; none where the run is watched without replay."""
        kept = getattr(self.snapshot, "logs", None) or {}
        return [kept[step] for step in sorted(kept)]

    def saw(self, model: nn.Module) -> None:
        """The model, where the user says which one is meant."""
        self.names.add_module(model)
        self.model = unwrap(model)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Whatever happens inside, the run goes on as if it had not: see the tests for the list."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(silent_warnings())
            if not usual_state():
                stack.enter_context(state_set_aside())
            stack.enter_context(modes_aside())
            stack.enter_context(torch.enable_grad())
            stack.enter_context(no_communication())
            stack.enter_context(random_state_restored())
            stack.enter_context(modes_restored())
            stack.enter_context(hooks_aside())
            stack.enter_context(own_handles())
            stack.enter_context(modules_restored(self.model))
            stack.enter_context(gradients_restored(tensor for _, tensor in self.names.parameters()))
            stack.enter_context(stacks_restored())
            yield
