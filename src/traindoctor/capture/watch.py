"""Watch: taps' events go in, probes' numbers come out in the record; steps are counted, one step is taped.

It judges nothing. Whatever goes wrong in it is noted in the record, and the run goes on.
"""

from __future__ import annotations

import multiprocessing.util
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from traindoctor.capture import forking, taps
from traindoctor.capture.attention import Attention
from traindoctor.capture.budget import Governor
from traindoctor.capture.counting import StepCount
from traindoctor.capture.device_clock import DeviceClock
from traindoctor.capture.examples import Examples
from traindoctor.capture.folders import claim
from traindoctor.capture.hub import EVALUATION_PASSES, Patches, hub, silent
from traindoctor.capture.keeping import Keeping
from traindoctor.capture.panel import Panel
from traindoctor.capture.ranks import rank_of_this_process
from traindoctor.capture.subjects import Subjects
from traindoctor.capture.tap_price import TapPrice
from traindoctor.capture.taping import Taping
from traindoctor.capture.taps.optimizer import know_optimizer, look_at_schedulers
from traindoctor.events import (
    BackwardBegin,
    BatchFetched,
    Event,
    ForwardBegin,
    RunEnded,
    ScalerUpdated,
    StepBegin,
    StepEnd,
    WeightsLoaded,
)
from traindoctor.experiment.patient import Patient
from traindoctor.ground.border import TrainsInThreads, border, raised_by_signal
from traindoctor.ground.memory import memory
from traindoctor.ground.mode_stack import Seat
from traindoctor.ground.no_communication import no_communication, tensors_may_be_sharded
from traindoctor.probes import make_probes
from traindoctor.probes.base import Probe
from traindoctor.record import RecordWriter

__all__ = ["Watch", "silent"]

# Modules may be replaced while a run goes on: the trees are walked again after so many steps.
NAMES_AGAIN = 100
# Attentive steps whose calls of taps are remembered.
TAPS_REMEMBERED = 15
# Of what may be spent up front, at most so much is kept back for listening: early proofs are worth more.
RESERVED = 0.25
# A thread of ours that works keeps the script's thread from the interpreter for about twice as long (measured: 2.0).
HELD_UP = 2.0


class Watch:
    """`watch = Watch(Path("runs/mine")); watch.attach(); train(); watch.close("done")`"""

    def __init__(
        self,
        out: Path,
        *,
        budget: float = 0.02,
        replay: bool = True,
        rank: int | None = None,
        probes: Sequence[Probe] | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.out = Path(out)
        self.rank = rank
        self.governor = Governor(budget)
        self.attention = Attention()
        self.patient = Patient()
        self.names = self.patient.names
        self.count = StepCount()
        self.subjects = Subjects(self.patient)
        self.examples = Examples(self.patient)
        self.listeners: list[Callable[[int], None]] = []
        self.enders: list[Callable[[], Any]] = []
        """Called when the process ends, before the record is closed."""
        self.listener_seconds = 0.0
        """What the doctor spent since the last step was written down."""
        self.faults: list[str] = []
        self.unrecorded: str | None = None
        """Why there can be no record."""
        self._meta: dict[str, Any] = {}
        self._writer: RecordWriter | None = None
        made = make_probes(self._fault) if probes is None else probes
        self.panel = Panel(made, self.names, self.governor, self._fault)
        self.taping = Taping(self.patient, self.governor) if replay else None
        self.keeping = Keeping(self.patient, self.governor, self._fault) if replay else None
        self._patches: Patches | None = None
        self._memory_limit = memory_limit
        self.panel.choose(0)
        self.device_clock = DeviceClock()
        self._charged = 0.0
        """What of the border's time is on the account."""
        self._tap_calls: deque[int] = deque(maxlen=TAPS_REMEMBERED)
        """Calls of taps that make no event, in each step."""
        self._tap_price = TapPrice()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that have stepped."""
        self._slept = 0
        """Steps that passed in silence before the one that is heard now."""
        self._step_began = time.perf_counter()
        self._closed = False
        self._ended = False
        self._began = time.time()

    # -- coming and going --------------------------------------------------------------------------

    def attach(self) -> None:
        """Hooks torch. A second call does nothing."""
        if self._patches is None:
            forking.in_child(self.forked)
            forking.hold_while_forking(border.lock)
            self._patches = taps.install()
            hub.border, border.on, border.when_broken = border, True, self._broken
            hub.begin(self.receive)
            hub.woken = self._wake
            memory.limit, memory.holders = self._memory_limit, [self.patient.held_bytes]
            self._charged = border.seconds
            self._step_began = time.perf_counter()

    def detach(self) -> None:
        """Gives torch back as it was."""
        if self.taping is not None:
            self.taping.abandon()
        if self._patches is not None:
            hub.sink = hub.woken = border.when_broken = None
            hub.wake()
            self._patches.undo()
            self._patches = None

    @property
    def step(self) -> int:
        """The optimizer step that is under way; the number of steps completed."""
        return self.count.step

    @property
    def attached(self) -> bool:
        return self._patches is not None

    @property
    def record_writer(self) -> RecordWriter:
        """Made when it is first needed: only then is the rank known (mp.spawn sets no environment)."""
        if self._writer is None:
            if self.rank is None:
                self.rank = rank_of_this_process()
            self.out = claim(self.out, self.rank)
            self._writer = self.patient.writer = self._made_writer(self.rank)
            forking.hold_while_forking(self._writer.busy)
            for name, value in self._meta.items():
                self._writer.fact(name, value)
            for text in self.faults:
                self._writer.note("fault", text)
            if multiprocessing.parent_process() is not None:
                # Such a child leaves without its exit handlers; finalizers made after its start are run.
                multiprocessing.util.Finalize(None, self.run_enders, exitpriority=10)
        return self._writer

    def _made_writer(self, rank: int) -> RecordWriter:
        try:
            return RecordWriter(self.out, rank=rank)
        except Exception as error:
            self.unrecorded = str(error)
            raise

    def run_enders(self) -> None:
        """The end of the process: the doctor first, the record last."""
        for ender in [*self.enders, self.close]:
            try:
                ender()
            except Exception as error:  # the border: a process must end as it would without us
                self._fault("the end of the process", error)

    @property
    def has_record(self) -> bool:
        return self._writer is not None

    def describe(self, **meta: Any) -> None:
        """Facts to write with the record: the script, its arguments."""
        self._meta.update(meta)
        if self._writer is not None:
            for name, value in meta.items():
                self._writer.fact(name, value)

    def end(self, status: int | str = 0) -> None:
        """The run has ended: the last numbers and facts. The record stays open for exams that follow."""
        if self._ended:
            return
        self._ended = True
        if hub.asleep:
            self._slept = hub.slept
            self.count.passed(hub.slept, hub.passes_asleep)
        if hub.sink is not None and self.attached:
            look_at_schedulers()
            hub.emit(RunEnded, status)
        if self.count.waiting and self.unrecorded is None:
            self._close_step()  # another optimizer was waited for
        self.detach()
        if self._writer is None:
            return
        self.panel.finish(self._writer)
        if self.keeping is not None:
            self.keeping.finish(self._writer)
        self._write_totals()
        self._writer.fact("run.ended", status)

    def close(self, status: int | str = 0) -> None:
        """Ends the run and closes its record."""
        if self._closed:
            return
        self._closed = True
        self.end(status)
        memory.holders = []
        if self._writer is not None:
            self._writer.close()
            if self._writer.failed:
                print(
                    f"traindoctor: the record in {self.out} ends early: {self._writer.failed}",
                    file=sys.stderr,
                )

    def forked(self) -> None:
        """In a forked child: this watch and its record are the parent's, and nothing of it answers here."""
        hub.reset_in_child()
        border.begin_anew()
        Seat.leave_in_child()
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
        self._closed = self._ended = True
        forking.keep_for_ever(self, self._writer)
        self._writer = self.patient.writer = None

    # -- events ------------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Called by the hub for each event, behind the border."""
        if not hub.attentive:
            self._shielded(event)
            return
        began = border.seconds
        self.device_clock.begin()
        try:
            self._shielded(event)
        finally:
            self.device_clock.end(border.seconds - began)

    def _shielded(self, event: Event) -> None:
        if tensors_may_be_sharded():
            with no_communication():
                self._handle(event)
        else:
            self._handle(event)

    def _broken(self, error: BaseException) -> None:
        """The border let nothing through and is closed for good: the script goes on without us."""
        if not isinstance(error, TrainsInThreads):
            self._fault("watch", error)
        self.detach()
        self._meta["watch.ended"] = reason = str(error) or type(error).__name__
        self.record_writer.fact("watch.ended", reason)

    def _handle(self, event: Event) -> None:
        count = self.count
        if hub.asleep and isinstance(event, ScalerUpdated):
            return  # a step that was skipped in silence
        if hub.asleep and isinstance(event, WeightsLoaded) and event.amiss:
            self._wake(None)  # what has arrived is looked at before the next step changes it
        if isinstance(event, StepBegin):
            if count.has_stepped(event.optimizer):
                self._close_step()
            event.step = count.step
            know_optimizer(event.optimizer)  # it may be older than our taps
            self.subjects.meet_optimizer(event.optimizer)
            event.left_behind = self.subjects.left_behind()
            self._meet(event.optimizer, stage=event.left_behind)
        elif isinstance(event, StepEnd):
            event.step = count.step
        elif count.is_over_before(event):
            self._close_step()
        if isinstance(event, ForwardBegin):
            self.subjects.meet_module(event.module)
            self.examples.on(event, count.step)
        elif isinstance(event, BackwardBegin):
            count.backward_begins()
            self.subjects.meet_leaves(event)
        elif isinstance(event, BatchFetched) and event.rows:
            self.patient.rows_joined.add(event.rows)
        if self.taping is not None:
            self.taping.on(event, count.step)
        if self.keeping is not None:
            self.keeping.on(event, count.step)
        self.panel.hear(event, attentive=self.attention.attentive(count.step))
        ended = count.ends_with(event)
        if ended or isinstance(event, StepEnd):
            # What comes is another step's, whoever has to step in this one.
            hub.passed_unheard = False
        if ended:
            self._close_step()

    def _meet(self, optimizer: Any, *, stage: bool = False) -> None:
        """A stage begins with a new optimizer, or where all of them are left without gradients."""
        if stage or optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self.attention.begin_stage(self.step)

    def _fault(self, who: str, error: BaseException) -> None:
        text = f"{who} failed and was switched off: {''.join(traceback.format_exception(error))}"
        self.faults.append(text)
        if self._writer is not None:
            self._writer.note("fault", text)

    # -- the end of a step -------------------------------------------------------------------------

    def _close_step(self) -> None:
        step, writer = self.step, self.record_writer
        attentive = self.attention.attentive(step)
        self.count.close()
        measured = self.panel.close(step, writer, attentive=attentive)
        self.count.step = self.patient.current_step = step + 1
        if self.taping is not None:
            self.taping.step_ended(self.step)
            measured += self.taping.charge(step)
        taps, taps_asleep = self._taps()
        border.charge(taps + taps_asleep + self.device_clock.extra())
        border.charge(HELD_UP * writer.thread_seconds())
        own, now = border.seconds - self._charged, time.perf_counter()
        self._charged += own
        writer.scalar("self.seconds", step, own + self.listener_seconds)
        self.listener_seconds = 0.0
        self.governor.pay(own)
        if self.keeping is not None and self.keeping.wants(step) and not self.attention.heard(step):
            self.keeping.heard(own - measured)
        self.governor.end_step(max(0.0, now - self._step_began - own), 1 + self._slept)
        if hub.attentive == attentive:
            silence = taps_asleep / self._slept if self._slept else 0.0
            earned = self.governor.earnings(self.governor.step_seconds)
            listening = max(0.0, own - measured - taps_asleep)
            left = max(0.0, earned - silence)
            self.attention.end_step(step, listening, left, early=self.governor.early)
        self.attention.wait(step, self.governor.overdrawn)
        reserve = self.attention.reserve(self.step)
        if self.taping is not None:
            reserve += self.taping.reserve(self.step)
        self.governor.reserved = min(reserve, RESERVED * self.governor.up_front)
        if self.governor.spent > self.governor.up_front:
            self.attention.end_beginning(step)
        if self.step % NAMES_AGAIN == 0:
            self.subjects.name_again()
        self._tell_listeners(step)
        self._slept, hub.evaluations_left = 0, EVALUATION_PASSES
        self._step_began = time.perf_counter()
        if not self._fall_asleep():
            self._open_step()

    def _taps(self) -> tuple[float, float]:
        """What taps cost that made no event, in this step, and in those that were slept through."""
        if hub.attentive:
            self._tap_calls.append(hub.num_inner)
        hub.num_inner = 0
        # An evaluation inside one attentive step is no measure of the others: the median is.
        calls = median(self._tap_calls or [0])
        return calls * self._tap_price.heard(), calls * self._slept * self._tap_price.asleep()

    def _fall_asleep(self) -> bool:
        """The steps up to the next one that is to be heard pass in silence."""
        optimizer = self.count.only_optimizer
        if self.attention.pulse == 1 or optimizer is None:
            return False
        step, taping = self.step, self.taping
        if self.keeping is not None and self.keeping.wants(step):
            return False  # the batches after a snapshot are kept without a gap
        while not (self.attention.heard(step) or (taping is not None and taping.planned(step))):
            step += 1
        if step > self.step:
            hub.sleep(step - self.step, optimizer)
        return step > self.step

    def _wake(self, other: Any) -> bool:
        """Called by the hub, behind the border, when the step that is to be heard begins, or another optimizer stepped."""
        self._slept = hub.slept
        self.count.passed(hub.slept, hub.passes_asleep)
        hub.wake()
        if other is not None:
            self.count.turned(other)
            self._meet(other)
        self.patient.current_step = self.step
        self._open_step()
        return True

    def _open_step(self) -> None:
        """Who listens in the step that begins."""
        step = self.step
        attentive = self.attention.attentive(step)
        self.panel.choose(step, attentive=attentive)
        taped = self.taping is not None and self.taping.wanted(step)
        kept = self.keeping is not None and self.keeping.wants(step)
        hub.attentive = attentive or taped or kept
        hub.notes.clear()
        self.panel.opened()

    def _tell_listeners(self, step: int) -> None:
        """Listeners (the doctor) decide by themselves what they spend; it is the same budget, and paid back."""
        began = border.seconds
        for listener in list(self.listeners):
            try:
                listener(step)
            except Exception as error:  # the doctor is ours too
                if raised_by_signal(error):
                    raise
                self._fault("listener", error)
                self.listeners.remove(listener)
        spent = border.seconds - began
        self.listener_seconds += spent
        self._charged += spent
        self.governor.owe(spent)

    def _write_totals(self) -> None:
        writer = self._writer
        assert writer is not None
        # Optimizers that step together make one step; one that never steps makes none.
        writer.fact("run.steps", min(self.count.real_steps, self.count.step))
        writer.fact("run.backwards", self.count.backwards)
        writer.fact("run.seconds", time.time() - self._began)
        writer.fact("self.share", self.governor.share)
        writer.fact("self.listener_seconds", self.listener_seconds)
