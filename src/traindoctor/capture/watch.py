"""Watch: taps' events go in, probes' numbers come out in the record; steps are counted, one step is taped.

It judges nothing. Whatever goes wrong in it is noted in the record, and the run goes on.
"""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from traindoctor.capture import taps
from traindoctor.capture.budget import Governor
from traindoctor.capture.examples import Examples
from traindoctor.capture.hub import Patches, hub, silent
from traindoctor.capture.ranks import rank_of_this_process
from traindoctor.capture.rest import ROUSED, Rest
from traindoctor.capture.taping import Taping
from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    BatchFetched,
    Event,
    ForwardBegin,
    RunEnded,
    ScalerUpdated,
    StepBegin,
    StepEnd,
)
from traindoctor.probes import make_probes
from traindoctor.probes.base import Probe
from traindoctor.record import RecordWriter, record_path
from traindoctor.replay.names import unwrap
from traindoctor.replay.patient import Patient
from traindoctor.replay.snapshot import Keeper

__all__ = ["Watch", "silent"]

# An optimizer that has not stepped after so many backward passes never will: passes are counted instead.
# The largest accumulation seen in the wild is below it.
NEVER_STEPS = 40
# Optimizers that exams may look at, the latest.
OPTIMIZERS_KEPT = 4
# Modules may be replaced while a run goes on: the trees are walked again after so many steps.
NAMES_AGAIN = 100
# What an inner module call costs by being wrapped, in seconds; no clock inside it can see that.
INNER_CALL_SECONDS = 3e-7
# Later snapshots are paid for like any other measurement.
SNAPSHOT, SNAPSHOT_EVERY = "snapshot", 30

_INHERITED: list[RecordWriter] = []


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
    ) -> None:
        self.out = Path(out)
        self.rank = rank
        self._given = (self.out, rank)
        self.governor = Governor(budget)
        self.rest = Rest(budget)
        self._roused: set[str] = set()
        self.patient = Patient()
        self.names = self.patient.names
        self._roots: weakref.WeakValueDictionary[int, torch.nn.Module] = (
            weakref.WeakValueDictionary()
        )
        self.examples = Examples(self.patient)
        self.listeners: list[Callable[[int], None]] = []
        self.enders: list[Callable[[], Any]] = []
        """Called when a child process ends that runs no exit handlers."""
        self.step = 0
        """The optimizer step that is under way; the number of steps completed."""
        self.listener_seconds = 0.0
        self.faults: list[str] = []
        self._meta: dict[str, Any] = {}
        self._writer: RecordWriter | None = None
        self._probes = list(make_probes(self._fault) if probes is None else probes)
        self._hearers: dict[tuple[type, bool], list[Probe]] = {}
        for probe in self._probes:
            if "names" in getattr(type(probe), "__annotations__", {}):
                probe.names = self.names  # type: ignore[attr-defined]
            if probe.cost != "free":
                self.governor.add(probe.name, probe.every)
        self.taping = Taping(self.patient, self.governor) if replay else None
        self.keeper = self.patient.snapshot = Keeper(self.names) if replay else None
        self._keeper_seconds = 0.0
        if self.keeper is not None:
            self.governor.add(SNAPSHOT, SNAPSHOT_EVERY)
            self.keeper.allowed = lambda step: SNAPSHOT in self.governor.choose(step)
        self._patches: Patches | None = None
        self._due: set[str] = self.governor.choose(0)
        self._costs: dict[str, float] = {}
        self._own = 0
        self._step_began = time.perf_counter()
        self._backwards = 0
        self._backwards_in_step = 0
        self._real_steps = 0
        self._stepped: set[int] = set()
        self._expected: set[int] = set()
        self._searched = False
        self._known_optimizers: weakref.WeakValueDictionary[int, torch.optim.Optimizer] = (
            weakref.WeakValueDictionary()
        )
        self._counts_backwards = False
        self._closed = False
        self._ended = False
        self._began = time.time()

    # -- coming and going --------------------------------------------------------------------------

    def attach(self) -> None:
        """Hooks torch. A second call does nothing."""
        if self._patches is None:
            self._patches = taps.install()
            hub.sink = self.receive
            self._step_began = time.perf_counter()

    def detach(self) -> None:
        """Gives torch back as it was."""
        if self.taping is not None:
            self.taping.abandon()
        if self._patches is not None:
            hub.sink = None
            self._patches.undo()
            self._patches = None

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
            self._writer = self.patient.writer = RecordWriter(self.out, rank=self.rank)
            for name, value in self._meta.items():
                self._writer.fact(name, value)
            for text in self.faults:
                self._writer.note("fault", text)
            if multiprocessing.parent_process() is not None:
                # Such a child leaves without its exit handlers; finalizers made after its start are run.
                multiprocessing.util.Finalize(None, self.run_enders, exitpriority=10)
        return self._writer

    def run_enders(self) -> None:
        """The end of a child process: the doctor first, the record last."""
        for ender in [*self.enders, self.close]:
            try:
                ender()
            except Exception as error:  # the border: a child must end as it would without us
                self._fault("the end of a child process", error)

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
        if hub.sink is not None and self.attached:
            hub.emit(RunEnded(status))
        if self._stepped:
            self._close_step()  # another optimizer was waited for
        self.detach()
        if self._writer is None:
            return
        for probe in list(self._probes):
            finish = getattr(probe, "finish", None)
            if finish is not None:
                self._guarded(probe, finish, self._writer)
        if self.keeper is not None:
            self._writer.fact("snapshot", self.keeper.describe())
        self._write_totals()
        self._writer.fact("run.ended", status)

    def close(self, status: int | str = 0) -> None:
        """Ends the run and closes its record."""
        if self._closed:
            return
        self._closed = True
        self.end(status)
        if self._writer is not None:
            self._writer.close()
            if self._writer.failed:
                print(
                    f"traindoctor: the record in {self.out} ends early: {self._writer.failed}",
                    file=sys.stderr,
                )

    def request_tape(self) -> None:
        """The next training step is taped, whatever the schedule says."""
        if self.taping is not None:
            self.taping.request()

    def forked(self) -> None:
        """In a forked child: the parent's record is the parent's, and counting begins anew."""
        if self._writer is not None:
            # Never closed here: closing a forked SQLite connection may touch the parent's file.
            _INHERITED.append(self._writer)
        self._writer = self.patient.writer = None
        self.out, self.rank = self._given
        self._closed = self._ended = False
        self.step = self.patient.current_step = 0
        self._backwards = self._backwards_in_step = self._real_steps = 0
        self._stepped.clear()
        self._due = self.governor.choose(0)
        self._began = time.time()
        if self.taping is not None:
            self.taping.abandon()

    # -- events ------------------------------------------------------------------------------------

    def receive(self, event: Event) -> None:
        """Called by the hub for each event; never raises for a fault of ours."""
        began = time.thread_time_ns()
        try:
            self._handle(event)
        except Exception as error:  # the border between the user's run and our code
            self._fault("watch", error)
            self.detach()
        finally:
            self._own += time.thread_time_ns() - began

    def _handle(self, event: Event) -> None:
        kind = type(event)
        if kind is StepBegin:
            event.step = self._step_of(event.optimizer)
            self._learn_optimizer(event.optimizer)
        elif kind is StepEnd:
            event.step = self.step
        elif self._stepped and kind in (ForwardBegin, BackwardBegin, BatchFetched):
            self._close_step()
        if kind is ForwardBegin:
            self._learn_module(event.module)
            self.examples.on(event, self.step)
        elif kind is BackwardBegin:
            self._backwards += 1
            self._backwards_in_step += 1
        if self.taping is not None:
            self.taping.on(event, self.step)
        if self.keeper is not None:
            self._tell_keeper(event)
        attentive = self.rest.attentive(self.step)
        for probe in self._hearing(kind):
            if attentive or probe.name not in self.rest.resting or self._rouses(probe, event):
                self._tell(probe, event)
        if kind is StepEnd:
            self._real_steps += 1
            self._stepped.add(id(event.optimizer))
            if self._all_have_stepped():
                self._close_step()
        elif kind is BackwardEnd:
            self._maybe_count_backward()
        elif kind is ScalerUpdated and event.skipped and not self._stepped:
            self._close_step()

    def _rouses(self, probe: Probe, event: Event) -> bool:
        """Whether an evaluation pass wakes a resting probe; it then closes this step as well."""
        if probe.name not in ROUSED or getattr(event, "wants_grad", True):
            return False
        self._roused.add(probe.name)
        return True

    def _all_have_stepped(self) -> bool:
        """Whether another optimizer is still to come in this step: those of the last step are expected again."""
        if self._expected:
            return self._stepped >= self._expected
        return all(id(optimizer) in self._stepped for optimizer in hub.optimizers)

    def _learn_module(self, module: torch.nn.Module) -> None:
        """The model is the largest module that was called from outside."""
        if self._roots.get(id(module)) is module:
            return
        self._roots[id(module)] = module
        if num_parameters(module):
            self.names.add_module(module)
            self.patient.model = unwrap(max(self._roots.values(), key=num_parameters))

    def _learn_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._known_optimizers.get(id(optimizer)) is None:
            self._known_optimizers[id(optimizer)] = optimizer
            self.names.add_tensors(p for group in optimizer.param_groups for p in group["params"])
            # A script may make a new one at each step: holding them all would hold their states.
            self.patient.optimizers = list(self._known_optimizers.values())[-OPTIMIZERS_KEPT:]

    def _step_of(self, optimizer: torch.optim.Optimizer) -> int:
        """Optimizers that step one after the other belong to one step; the same one again begins the next."""
        if id(optimizer) in self._stepped:
            self._close_step()
        return self.step

    def _maybe_count_backward(self) -> None:
        """A script with an optimizer of its own, or one that never steps, is counted by backward passes."""
        if self._real_steps:
            return
        if not len(hub.optimizers) and not self._searched:
            self._searched = True
            hub.optimizers.update(optimizers_alive())
        if not len(hub.optimizers) or self._backwards_in_step >= NEVER_STEPS:
            self._counts_backwards = True
        if self._counts_backwards:
            hub.first_backward = True
            self._close_step()

    def _hearing(self, kind: type) -> list[Probe]:
        """The probes that listen to this kind of event, in a step in which some rest or in any other."""
        key = (kind, self.rest.attentive(self.step))
        if key not in self._hearers:
            resting = frozenset() if key[1] else self.rest.resting - ROUSED
            self._hearers[key] = [
                probe
                for probe in self._probes
                if probe.name not in resting
                and (not getattr(probe, "hears", ()) or kind in probe.hears)
            ]
        return self._hearers[key]

    def _tell(self, probe: Probe, event: Event) -> None:
        free = probe.cost == "free"
        due = free or probe.name in self._due
        if free and not self.rest.measuring:
            self._guarded(probe, probe.on, event, due=True)
            return
        began = time.thread_time_ns()
        self._guarded(probe, probe.on, event, due=due)
        spent = (time.thread_time_ns() - began) * 1e-9
        self._costs[probe.name] = self._costs.get(probe.name, 0.0) + spent

    def _tell_keeper(self, event: Event) -> None:
        assert self.keeper is not None
        began, kept = time.thread_time_ns(), self.keeper.recent
        try:
            self.keeper.on(event, self.step)
            self._keeper_seconds += (time.thread_time_ns() - began) * 1e-9
            if self.keeper.recent is not kept:
                # The copy, and all the batches that were kept for the one before.
                self.governor.ran(SNAPSHOT, self.step, self._keeper_seconds)
                self._keeper_seconds = 0.0
        except Exception as error:  # the same border as for probes
            self._fault("snapshot", error)
            self.keeper = self.patient.snapshot = None

    def _guarded(self, probe: Probe, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:  # a probe may fail; the run may not
            self._fault(f"probe {probe.name}", error)
            self._probes.remove(probe)
            self._hearers.clear()
            self.governor.parts.pop(probe.name, None)

    def _fault(self, who: str, error: Exception) -> None:
        text = f"{who} failed and was taken off: {''.join(traceback.format_exception(error))}"
        self.faults.append(text)
        if self._writer is not None:
            self._writer.note("fault", text)

    # -- the end of a step -------------------------------------------------------------------------

    def _close_step(self) -> None:
        step, writer = self.step, self.record_writer
        self._expected = set(self._stepped)
        self._stepped.clear()
        self._backwards_in_step = 0
        now = time.perf_counter()
        attentive = self.rest.attentive(step)
        for probe in list(self._probes):
            resting = not attentive and probe.name in self.rest.resting
            if resting and probe.name not in self._roused:
                continue
            governed = probe.cost != "free"
            due = not governed or probe.name in self._due
            began = time.thread_time_ns()
            self._guarded(probe, probe.close_step, step, writer, due=due)
            spent = (time.thread_time_ns() - began) * 1e-9 + self._costs.get(probe.name, 0.0)
            hidden = getattr(probe, "hidden_seconds", 0.0)
            if hidden:
                spent += hidden
                self._own += int(hidden * 1e9)
                probe.hidden_seconds = 0.0  # type: ignore[attr-defined]
            if due and governed and probe.name in self.governor.parts:
                self.governor.ran(probe.name, step, spent)
            else:
                self.rest.always(probe.name, spent)
        self._costs.clear()
        self._roused.clear()
        resting = self.rest.resting
        self.rest.end_step(step, self.governor.step_seconds)
        if self.rest.resting != resting:
            self._hearers.clear()
        self.step = self.patient.current_step = step + 1
        if self.taping is not None:
            self.taping.step_ended(self.step)
        own = self._own * 1e-9 + hub.inner_calls * INNER_CALL_SECONDS
        self._own, hub.inner_calls = 0, 0
        if self.taping is not None:
            own += self.taping.charge(step)
        writer.scalar("self.seconds", step, own)
        self.governor.pay(own)
        self.governor.end_step(max(0.0, now - self._step_began - own))
        self._due = self.governor.choose(self.step)
        if self.step % NAMES_AGAIN == 0:
            for root in list(self._roots.values()):
                self.names.add_module(root)
        self._tell_listeners(step)
        for probe in list(self._probes):
            opened = getattr(probe, "opened", None)
            if opened is not None:
                self._guarded(probe, opened)
        self._step_began = time.perf_counter()

    def _tell_listeners(self, step: int) -> None:
        """Listeners (the doctor) keep an account of their own: their time is not taken from the probes."""
        began = time.thread_time_ns()
        for listener in list(self.listeners):
            try:
                listener(step)
            except Exception as error:  # same border: the doctor is ours too
                self._fault("listener", error)
                self.listeners.remove(listener)
        spent = time.thread_time_ns() - began
        self.listener_seconds += spent * 1e-9
        self._own -= spent

    def _write_totals(self) -> None:
        writer = self._writer
        assert writer is not None
        writer.fact("run.steps", self._real_steps)
        writer.fact("run.backwards", self._backwards)
        writer.fact("run.seconds", time.time() - self._began)
        writer.fact("self.share", self.governor.share)
        writer.fact("self.listener_seconds", self.listener_seconds)


def optimizers_alive() -> list[torch.optim.Optimizer]:
    """Optimizers that were made before we came. Wrappers that only pass calls on have no groups of their own."""
    return [
        thing
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer) and "param_groups" in vars(thing)
    ]


def num_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def claim(folder: Path, rank: int) -> Path:
    """The folder to record in: the run's, or one of its own where another process of this rank was first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(record_path(folder, rank), os.O_CREAT | os.O_EXCL))
        return folder
    except FileExistsError:
        return folder / f"process-{os.getpid()}"
    except OSError:
        return folder  # the writer says what is wrong
