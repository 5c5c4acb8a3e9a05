"""Reads that make the script wait for the device, and how long the device then stands idle."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch

from traindoctor.events import BackwardBegin, Event, ForwardBegin, ScalarRead, StepBegin
from traindoctor.ground.border import border
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class Mark(NamedTuple):
    """A place in the device's work, and what the script had waited for us by then."""

    event: torch.cuda.Event
    ours: float

    def idle_until(self, end: Mark) -> float:
        """Seconds on the device's clock in which it waited for the script: our own between the two do not count."""
        return max(0.0, float(self.event.elapsed_time(end.event)) / 1e3 - (end.ours - self.ours))


class Sync:
    """`sync.reads`: scalars read from a CUDA device in the step; `sync.idle`: seconds, by events on the device,
    from a read (when nothing is left to do there) to the next forward or backward pass or optimizer step. Reads one
    after the other keep it waiting from the first one on.

    What we do in such a gap is taken off. A step may be closed within one (it ends where the next pass begins): the gap is
    then made of the part before and the part after. On the CPU there is nothing to wait for, and nothing is written.
    """

    name: ClassVar[str] = "sync"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (BackwardBegin, ForwardBegin, ScalarRead, StepBegin)

    def __init__(self) -> None:
        self._reads = 0
        self._since: Mark | None = None
        # (begin, end) of the parts of the gap that is open, and (step, parts) of those that are over
        self._parts: list[tuple[Mark, Mark]] = []
        self._gaps: list[tuple[int, list[tuple[Mark, Mark]]]] = []
        self._step = 0

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ScalarRead):
            if event.tensor.is_cuda:
                self._reads += 1
                if self._since is None:
                    self._since, self._parts = marked(), []
        elif self._since is not None:
            # The device's clock stands at the read until the first work behind it is queued.
            parts = [*self._parts, (self._since, marked())]
            if self._gaps and self._gaps[-1][0] == self._step:
                self._gaps[-1][1].extend(parts)
            else:
                self._gaps.append((self._step, parts))
            self._since, self._parts = None, []

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._since is not None:
            self._parts.append((self._since, marked()))
        if torch.cuda.is_initialized():
            record.scalar("sync.reads", step, self._reads)
        self._reads, self._step = 0, step + 1
        if torch.cuda.is_initialized():
            self._write(record, wait=False)

    def opened(self) -> None:
        """Our own work between two steps is no idleness of the script's making: the gap goes on from here."""
        if self._since is not None:
            self._since = marked()

    def _write(self, record: RecordWriter, *, wait: bool) -> None:
        # A gap of the step that goes on may get another part.
        while self._gaps and (
            wait or (self._gaps[0][0] < self._step and self._gaps[0][1][-1][1].event.query())
        ):
            step, parts = self._gaps.pop(0)
            parts[-1][1].event.synchronize()
            record.scalar("sync.idle", step, sum(begin.idle_until(end) for begin, end in parts))

    def finish(self, record: RecordWriter) -> None:
        self._write(record, wait=True)


def marked() -> Mark:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return Mark(event, border.seconds)
