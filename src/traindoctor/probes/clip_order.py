"""Where in the step gradients are clipped, and whose: order of backward, unscale, clip and step."""

from __future__ import annotations

from typing import ClassVar

from traindoctor.events import BackwardEnd, Clipped, Event, StepBegin, Unscaled
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class ClipOrder:
    """Counts clip calls that can still act on the step's gradients, and those that cannot."""

    name: ClassVar[str] = "clip_order"
    gives: ClassVar[tuple[str, ...]] = ("clip.in_time", "clip.scaled", "clip.coverage")
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        BackwardEnd,
        Clipped,
        StepBegin,
        Unscaled,
    )

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._calls = self._in_time = self._scaled = 0
        self._unscaled = False
        self._clipped: set[int] = set()
        self._coverage: float | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BackwardEnd):
            # What was clipped before this pass has been added to since.
            self._in_time = 0
            self._clipped = set()
        elif isinstance(event, Unscaled):
            self._unscaled = True
        elif isinstance(event, Clipped):
            self._calls += 1
            self._in_time += 1
            self._scaled += not self._unscaled
            self._clipped |= {id(p) for p in event.parameters}
        elif isinstance(event, StepBegin) and self._calls:
            held = {id(p) for group in event.optimizer.param_groups for p in group["params"]}
            self._coverage = len(held & self._clipped) / len(held) if held else None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._calls:
            record.scalar("clip.in_time", step, float(self._in_time))
            record.scalar("clip.scaled", step, float(self._scaled))
            if self._coverage is not None:
                record.scalar("clip.coverage", step, self._coverage)
        self._clear()
