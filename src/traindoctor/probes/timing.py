"""Where a step's time goes: data, forward, backward, optimizer."""

from __future__ import annotations

import time
from typing import ClassVar

from traindoctor.events import BackwardEnd, BatchFetched, Event, ForwardBegin, ForwardEnd, StepEnd
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class Timing:
    """Seconds of wall time. `time.data` is from the end of a step to the next training forward pass.

    On a GPU the calls return before the work is done: forward and backward are then launch times, and only
    `time.step`, `time.data` and `time.loader` mean what they say.
    """

    name: ClassVar[str] = "timing"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        BackwardEnd,
        BatchFetched,
        ForwardBegin,
        ForwardEnd,
        StepEnd,
    )

    def __init__(self) -> None:
        self._begin: float | None = None
        self._data: float | None = None
        self._loader = self._forward = self._backward = self._optimizer = 0.0
        self._evaluated = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            if event.wants_grad and self._data is None and self._begin is not None:
                self._data = time.perf_counter() - self._begin
            elif not event.wants_grad and self._data is None:
                self._evaluated = True
        elif isinstance(event, ForwardEnd):
            if event.wants_grad:
                self._forward += event.seconds
        elif isinstance(event, BackwardEnd):
            self._backward += event.seconds
        elif isinstance(event, BatchFetched):
            self._loader += event.seconds
        elif isinstance(event, StepEnd):
            self._optimizer += event.seconds

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        now = time.perf_counter()
        if self._begin is not None:
            record.scalar("time.step", step, now - self._begin)
            # An evaluation between two steps is no waiting for data.
            if self._data is not None and not self._evaluated:
                record.scalar("time.data", step, self._data)
                record.scalar("time.loader", step, self._loader)
        if self._forward:  # heard in attentive steps only
            record.scalar("time.forward", step, self._forward)
        record.scalar("time.backward", step, self._backward)
        record.scalar("time.optimizer", step, self._optimizer)
        self._data, self._evaluated = None, False
        self._loader = self._forward = self._backward = self._optimizer = 0.0
        self.opened()

    def opened(self) -> None:
        """The next step begins here: what traindoctor did after the last one is no time of the script's."""
        self._begin = time.perf_counter()
