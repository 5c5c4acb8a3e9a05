"""When a step is taped, and the tape recorder's life between two steps."""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
from torch import Tensor

from traindoctor.capture.beside import Beside
from traindoctor.capture.budget import Governor
from traindoctor.capture.hub import hub
from traindoctor.capture.stages import Stages
from traindoctor.errors import ReplayError
from traindoctor.events import BackwardBegin, Event, ForwardBegin, StepBegin
from traindoctor.experiment.batches import sources_of
from traindoctor.experiment.crash import CrashKeeper
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.snapshot import EVERY as SNAPSHOT_EVERY
from traindoctor.experiment.snapshot import Source, StepLog
from traindoctor.ground.border import border
from traindoctor.ground.memory import memory
from traindoctor.ground.mode_stack import Seat
from traindoctor.ground.names import SHARDED, sharded
from traindoctor.ground.stacks import stacks_restored
from traindoctor.ground.torch_private import Dropout, current_backward
from traindoctor.ground.watchdog import Overdue, limited
from traindoctor.tape.draft import MAX_BYTES
from traindoctor.tape.draws import Draws
from traindoctor.tape.recorder import StepRecorder

# The first steps show the model as it was built, and gradients that were never cleared from the second on.
ALWAYS = frozenset({0, 1, 2, 20, 100})
# After those a tape is one more measurement that the governor pays for.
EVERY = 100
PART = "tape"
# After the first minute a step that would pass in silence is heard for a snapshot only so often.
SNAPSHOT_LATER = 8 * SNAPSHOT_EVERY
# Tapes that are tried for a stage that was never taped, and after tapes that began too late.
MOST_TRIES = 3

# What putting a tape together may take while the script waits: it is a walk over some thousand functions.
FINISH_SECONDS = 10.0

# Passes without gradient in a step that are taped with it.
MOST_ASKED = 8
# Steps between two tapes of a model beside: see exams/frozen_targets.py.
LONG_AFTER = 24


class Taping:
    """Starts a recorder at the first training forward pass of a chosen step and ends it at the step."""

    def __init__(self, patient: Patient, governor: Governor) -> None:
        self.patient = patient
        self.governor = governor
        self._recorder: StepRecorder | None = None
        self._charged: StepRecorder | None = None
        """Its time is not on the account yet."""
        self._finished = False
        self._given: dict[Source, Tensor] = {}
        """What was seen of the step that is taped, until its tape is finished."""
        self._asked = False
        self._seen_module = False
        self._early: bool | None = None
        """Steps begin before their first module is called, so a tape begins where the step before ends. None: not known."""
        self._trained: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._modes: set[bool] = set()
        """Training mode or not, of the passes with gradient since the last step."""
        self._in_eval_mode = False
        """The last step was made of passes in evaluation mode alone: so the next one may be (preferences, fine-tuning)."""
        self._taped_step = -1
        self._draws = Draws()
        self._draws_told: dict[str, Any] | None = None
        self._seconds = 0.0
        self._inside = 0.0
        """Seconds inside the script's calls that are on the account and not told yet."""
        self.crashes = CrashKeeper(patient.names, hub.notes)
        self._stages = Stages()
        self._stage_seen: dict[int, list[int]] = {}
        """Stage that was never taped -> its first steps."""
        self._stages_taped: set[int] = set()
        self._begun, self._target = -1, -1
        """The step whose stage is known, and the one at which a stage that was never taped should come again."""
        self._asked_beside: weakref.WeakKeyDictionary[torch.nn.Module, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        """Models asked without gradient in training mode -> the step of their last pass, and the passes in that step."""
        self._given_up = False
        """A tape took too long to be put together: no other is begun in this run."""
        self._tries_left = MOST_TRIES
        """Tapes that are begun again where a step's loss was computed before its tape began."""
        self._once_more = -1
        """Whether the model beside stays as it is shows on a second tape: the step of that one."""
        governor.add(PART, EVERY)

    @property
    def recording(self) -> bool:
        """A step is being taped right now."""
        return self._recorder is not None and not self._finished

    def wanted(self, step: int) -> bool:
        if step == self._taped_step or self._given_up:
            return False
        if self._asked or step == self._target or (step in ALWAYS and self.governor.can_lend):
            return True
        return PART in self.governor.choose(step)

    def planned(self, step: int) -> bool:
        """Whether a tape or a snapshot may begin at this step: asked for steps that might pass in silence."""
        due = step % (SNAPSHOT_EVERY if self.governor.early else SNAPSHOT_LATER) == 0
        return self._asked or step == self._target or step in ALWAYS or due

    def reserve(self, step: int) -> float:
        """What the first tapes that are still to come will cost. Tests can wait for the script's end, tapes cannot."""
        to_come = sum(one >= step for one in ALWAYS)
        return 0.0 if self._given_up else to_come * self.governor.parts[PART].price

    def on(self, event: Event, step: int) -> None:
        """Every event of the run, before any probe has seen it. Its price is asked while a step is taped."""
        taped = self._recorder is not None
        began = time.perf_counter() if taped else 0.0
        self._hear(event, step)
        if taped:
            self._seconds += time.perf_counter() - began

    def _hear(self, event: Event, step: int) -> None:
        if Seat.left:
            Seat.clear()  # of a tape that ended inside a torch function
        if self.patient.crash is None:
            self.crashes.on(event, step)
            self.patient.crash = self.crashes.crash
            # Numbers of the script's own (a temperature that falls) are those of the crash on the next step's tape.
            self._asked = self._asked or self.patient.crash is not None
        if self.recording and isinstance(event, BackwardBegin):
            self._given |= self.crashes.seen()
        if self._recorder is not None:
            self._recorder.on(event)
            if self._recorder.done and self._finished:
                self._recorder = hub.recorder = hub.beside = None
        if isinstance(event, ForwardBegin) and event.wants_grad:
            self._seen_module = True
            self._trained.add(event.module)
            self.patient.asks_itself |= self._asked_beside.get(event.module, (-1, 0))[0] == step
            self._modes.add(event.training)
            in_mode = event.training or self._in_eval_mode
            # A tape without the beginning of its step is none.
            whole = not hub.passed_unheard and not self._early
            if not self.recording and in_mode and whole and self.wanted(step):
                reason = untapeable(event.module)
                if reason is None:
                    self._start(step)
                else:
                    self._taped_step = step
                    self.patient.refusals[step] = reason
        elif isinstance(event, ForwardBegin) and event.training:
            last, passes = self._asked_beside.get(event.module, (-1, 0))
            self._asked_beside[event.module] = step, passes + 1 if last == step else 1
            # Asked at every step in training mode: a teacher with dropout at work, or what is trained, asked before its
            # own step (a cache of features). What it says is taped too.
            asked_again = hub.attentive and (last == step - 1 or step == self._once_more)
            if not self.recording and asked_again and self._seen_module:
                wanted = self.wanted(step) or step == self._once_more
                # Many passes are a rollout or a text that is generated, and no part of the step.
                itself = event.module in self._trained and passes <= MOST_ASKED
                teacher = active_dropout(event.module)
                if wanted and (teacher or itself) and untapeable(event.module) is None:
                    self._start(step)
                    if teacher and self._once_more < 0:
                        self._once_more = self._target = step + LONG_AFTER
        elif isinstance(event, StepBegin):
            # Of several that step together the first one's stage is the step's.
            if step != self._begun:
                self._begun, stage = step, self._stages.of(event.optimizer, step)
                self._asked = self._asked or self._stages.asks
                self._in_eval_mode, self._modes = self._modes == {False}, set()
                if self.recording:
                    self._finish(step, stage, event.optimizer)
                if stage not in self._stages_taped:
                    self._await(stage, step)

    def _await(self, stage: int, step: int) -> None:
        """A stage that was never taped should come again after as many steps as the last time."""
        seen = self._stage_seen.setdefault(stage, [])
        seen.append(step)
        if 2 <= len(seen) < 2 + MOST_TRIES:
            self._target = 2 * step - seen[-2]

    def step_ended(self, step: int) -> None:
        """Step `step - 1` is over. Without optimizer events its tape ends here; without a module the next begins."""
        if self.recording:
            self._finish(step - 1)
        self._inside += self._settle(step - 1)  # before the next one takes its place
        told = self._draws.told
        if told != self._draws_told and self.patient.writer is not None:
            self._draws_told = told
            self.patient.writer.fact("draws", told)
        if (not self._seen_module or self._early) and self.wanted(step):
            self._start(step)

    def _start(self, step: int) -> None:
        self.abandon()
        self._asked, self._taped_step, self._seconds = False, step, 0.0
        self.patient.make_room()
        room = min(MAX_BYTES, memory.room())
        self._recorder = StepRecorder(step, self.patient.names, max_bytes=room, draws=self._draws)
        self._finished = False
        self._recorder.start()
        self._charged = self._recorder
        hub.recorder, hub.beside = self._recorder, Beside(self._recorder)

    def _finish(
        self, step: int, stage: int = 0, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        assert self._recorder is not None
        self._finished = True
        try:
            if current_backward() != -1:
                raise ReplayError("the optimizer steps inside the backward pass")
            with stacks_restored():
                tape = limited(self._recorder.finish, seconds=FINISH_SECONDS)
            tape.stage = stage = self._stages.taped(tape, stage, optimizer)
            self.patient.add_tape(tape)
            tape.sources = sources_of(tape, StepLog(step, data=self._given))
            if any(root.ref is None for root in tape.roots) and self._tries_left:
                # The end of the step before was known too late: by its first backward pass.
                self._tries_left, self._asked = self._tries_left - 1, True
            if tape.begins_late:
                # Where an earlier begin does not help, state is carried on from step to step.
                self._early = self._early is None
            if stage not in self._stages_taped:
                self._stages_taped.add(stage)
                if stage and self.patient.writer is not None:
                    self.patient.writer.fact("stages.taped", sorted(self._stages_taped - {0}))
        except (ReplayError, Overdue) as reason:
            late = isinstance(reason, Overdue)
            self.patient.refusals[step] = (
                f"writing it down took too long: {reason}" if late else str(reason)
            )
            self._recorder.close()
            self._recorder = hub.recorder = hub.beside = None
            self._given_up = self._given_up or late
        finally:
            self._given = {}

    def charge(self, step: int) -> float:
        """What taping this step cost, all told."""
        inside, self._inside = self._inside + self._settle(step), 0.0
        return inside

    def _settle(self, step: int) -> float:
        """The cost of a step that was taped goes on the governor's account, once."""
        if self._charged is None or step != self._taped_step:
            return 0.0
        spent, self._charged = self._seconds + self._charged.seconds, None
        border.charge(spent - self._seconds)
        self.governor.ran(PART, step, spent)
        return spent

    def abandon(self) -> None:
        recorder, self._recorder, self._given = self._recorder, None, {}
        hub.recorder = hub.beside = None
        if recorder is not None:
            recorder.close()
        Seat.clear()


def untapeable(module: torch.nn.Module) -> str | None:
    """Why a step of this model is not taped."""
    return SHARDED if sharded(module.parameters()) else None


def active_dropout(module: torch.nn.Module) -> bool:
    """A pass of it drops something."""
    return any(isinstance(m, Dropout) and m.training and m.p > 0 for m in module.modules())
