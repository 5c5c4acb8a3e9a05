"""The probes of a run: which are told of an event, what each costs, and which are removed after a fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from traindoctor.capture.attention import PULSE, ROUSED
from traindoctor.capture.budget import Governor
from traindoctor.events import Event
from traindoctor.ground.border import raised_by_signal
from traindoctor.ground.names import Names
from traindoctor.probes.base import Probe
from traindoctor.record import RecordWriter


class Panel:
    """`hear(event)` for every event, `close(step, writer)` when a step ends, `choose(step)` before the next."""

    def __init__(
        self,
        probes: Sequence[Probe],
        names: Names,
        governor: Governor,
        fault: Callable[[str, Exception], None],
    ) -> None:
        self.probes = list(probes)
        self.governor = governor
        self._fault = fault
        self._hearers: dict[tuple[type, bool], list[Probe]] = {}
        self._pulse: list[Probe] = []
        self._openers: list[Probe] = []
        self._roused: list[Probe] = []
        self._costs: dict[str, float] = {}
        self._due: set[str] = set()
        for probe in self.probes:
            if "names" in getattr(type(probe), "__annotations__", {}):
                probe.names = names  # type: ignore[attr-defined]
            if probe.cost != "free":
                governor.add(probe.name, probe.every)
        self._learn()

    def _learn(self) -> None:
        """Who is told of what."""
        self._hearers.clear()
        self._pulse = [probe for probe in self.probes if probe.name in PULSE]
        self._openers = [probe for probe in self.probes if hasattr(probe, "opened")]

    def choose(self, step: int, *, attentive: bool = True) -> None:
        """Which of the costly ones may measure at this step."""
        self._due = self.governor.choose(step) if attentive else set()

    def hear(self, event: Event, *, attentive: bool) -> None:
        for probe in self._hearing(type(event), attentive):
            if attentive or probe.name in PULSE or self._rouses(probe, event):
                self._tell(probe, event)

    def _hearing(self, kind: type, attentive: bool) -> list[Probe]:
        """The probes that listen to this kind of event, in an attentive step or in any other."""
        key = (kind, attentive)
        if key not in self._hearers:
            self._hearers[key] = [
                probe
                for probe in self.probes
                if (attentive or probe.name in PULSE or probe.name in ROUSED)
                and kind in (getattr(probe, "hears", ()) or (kind,))
            ]
        return self._hearers[key]

    def _rouses(self, probe: Probe, event: Event) -> bool:
        """Whether an evaluation pass wakes this probe; it then closes this step as well."""
        if getattr(event, "wants_grad", True):
            return False
        if probe not in self._roused:
            self._roused.append(probe)
        return True

    def _tell(self, probe: Probe, event: Event) -> None:
        if probe.cost == "free" or probe.name not in self._due:
            self._guarded(probe, probe.on, event, due=probe.cost == "free")
            return
        began = time.perf_counter()
        self._guarded(probe, probe.on, event, due=True)
        self._costs[probe.name] = self._costs.get(probe.name, 0.0) + time.perf_counter() - began

    def close(self, step: int, writer: RecordWriter, *, attentive: bool) -> float:
        """Each one writes its numbers. Gives the seconds that went to measurements the governor chose."""
        measured = 0.0
        for probe in list(self.probes) if attentive else [*self._pulse, *self._roused]:
            if probe.cost == "free" or probe.name not in self._due:
                self._guarded(probe, probe.close_step, step, writer, due=probe.cost == "free")
                continue
            began = time.perf_counter()
            self._guarded(probe, probe.close_step, step, writer, due=True)
            spent = time.perf_counter() - began + self._costs.get(probe.name, 0.0)
            spent += getattr(probe, "seconds_inside", 0.0)
            if probe.name in self.governor.parts:
                self.governor.ran(probe.name, step, spent)
            measured += spent
        self._costs.clear()
        self._roused.clear()
        return measured

    def opened(self) -> None:
        """All of our work after a step is done, and the next one begins."""
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
            if raised_by_signal(error):
                raise
            self._fault(f"measuring {probe.name!r}", error)
            self.probes.remove(probe)
            self._learn()
            self.governor.parts.pop(probe.name, None)
