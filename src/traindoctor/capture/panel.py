"""The probes of a run: which are told of an event, what each costs, and which are taken off after a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from traindoctor.capture.budget import Governor
from traindoctor.capture.rest import ROUSED, Rest
from traindoctor.events import Event
from traindoctor.probes.base import Probe
from traindoctor.record import RecordWriter
from traindoctor.replay.names import Names


class Panel:
    """`hear(event, step)` for every event, `close(step, writer)` when a step ends, `choose(step)` before the next."""

    def __init__(
        self,
        probes: Sequence[Probe],
        names: Names,
        governor: Governor,
        rest: Rest,
        fault: Callable[[str, Exception], None],
    ) -> None:
        self.probes = list(probes)
        self.governor = governor
        self.rest = rest
        self._fault = fault
        self._hearers: dict[tuple[type, bool], list[Probe]] = {}
        self._awake: list[Probe] | None = None
        self._openers: list[Probe] | None = None
        self._roused: set[str] = set()
        self._costs: dict[str, float] = {}
        for probe in self.probes:
            if "names" in getattr(type(probe), "__annotations__", {}):
                probe.names = names  # type: ignore[attr-defined]
            if probe.cost != "free":
                governor.add(probe.name, probe.every)
        self._due: set[str] = set()

    def choose(self, step: int) -> None:
        """Which of the costly ones may measure at this step."""
        self._due = self.governor.choose(step)

    def hear(self, event: Event, step: int) -> None:
        attentive = self.rest.attentive(step)
        for probe in self._hearing(type(event), attentive):
            if attentive or probe.name not in self.rest.resting or self._rouses(probe, event):
                self._tell(probe, event)

    def _hearing(self, kind: type, attentive: bool) -> list[Probe]:
        """The probes that listen to this kind of event, in a step in which some rest or in any other."""
        key = (kind, attentive)
        if key not in self._hearers:
            resting = frozenset() if attentive else self.rest.resting - ROUSED
            self._hearers[key] = [
                probe
                for probe in self.probes
                if probe.name not in resting
                and (not getattr(probe, "hears", ()) or kind in probe.hears)
            ]
        return self._hearers[key]

    def _closing(self, attentive: bool) -> list[Probe]:
        """The probes that were awake in this step."""
        if attentive:
            return list(self.probes)
        if self._roused:
            asleep = self.rest.resting - self._roused
            return [probe for probe in self.probes if probe.name not in asleep]
        if self._awake is None:
            self._awake = [probe for probe in self.probes if probe.name not in self.rest.resting]
        return list(self._awake)

    def _rouses(self, probe: Probe, event: Event) -> bool:
        """Whether an evaluation pass wakes a resting probe; it then closes this step as well."""
        if probe.name not in ROUSED or getattr(event, "wants_grad", True):
            return False
        self._roused.add(probe.name)
        return True

    def _tell(self, probe: Probe, event: Event) -> None:
        free = probe.cost == "free"
        due = free or probe.name in self._due
        if not self._priced(free, due):
            self._guarded(probe, probe.on, event, due=due)
            return
        began = time.thread_time_ns()
        self._guarded(probe, probe.on, event, due=due)
        spent = (time.thread_time_ns() - began) * 1e-9
        self._costs[probe.name] = self._costs.get(probe.name, 0.0) + spent

    def _priced(self, free: bool, due: bool) -> bool:
        """Whether anyone asks what this probe costs now: to read the clock twice takes longer than many of them."""
        return self.rest.measuring or (due and not free)

    def close(self, step: int, writer: RecordWriter) -> int:
        """Each one writes its numbers, and what it cost is known. Gives the nanoseconds that no clock of ours saw."""
        hidden_ns = 0
        attentive = self.rest.attentive(step)
        for probe in self._closing(attentive):
            governed = probe.cost != "free"
            due = not governed or probe.name in self._due
            hidden = getattr(probe, "hidden_seconds", 0.0)
            if hidden:
                hidden_ns += int(hidden * 1e9)
                probe.hidden_seconds = 0.0  # type: ignore[attr-defined]
            if not self._priced(not governed, due):
                self._guarded(probe, probe.close_step, step, writer, due=due)
                continue
            began = time.thread_time_ns()
            self._guarded(probe, probe.close_step, step, writer, due=due)
            spent = (time.thread_time_ns() - began) * 1e-9
            spent += hidden + self._costs.get(probe.name, 0.0)
            if due and governed and probe.name in self.governor.parts:
                self.governor.ran(probe.name, step, spent)
            else:
                self.rest.always(probe.name, spent)
        self._costs.clear()
        self._roused.clear()
        self._rest(step)
        return hidden_ns

    def _rest(self, step: int) -> None:
        before = self.rest.resting
        self.rest.end_step(step, self.governor.step_seconds)
        if self.rest.resting != before:
            self._forget()

    def _forget(self) -> None:
        """Who is told of what has changed."""
        self._hearers.clear()
        self._awake = self._openers = None

    def opened(self) -> None:
        """All of our work after a step is done, and the next one begins."""
        if self._openers is None:
            self._openers = [probe for probe in self.probes if hasattr(probe, "opened")]
        for probe in list(self._openers):
            self._guarded(probe, probe.opened)  # type: ignore[attr-defined]

    def finish(self, writer: RecordWriter) -> None:
        """The run has ended."""
        for probe in list(self.probes):
            finish = getattr(probe, "finish", None)
            if finish is not None:
                self._guarded(probe, finish, writer)

    def _guarded(self, probe: Probe, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:  # a probe may fail; the run may not
            self._fault(f"probe {probe.name}", error)
            self.probes.remove(probe)
            self._forget()
            self.governor.parts.pop(probe.name, None)
