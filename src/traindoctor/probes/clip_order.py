"""Where in the step gradients are clipped, and whose: order of backward, unscale, clip and step."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from traindoctor.events import BackwardBegin, BackwardEnd, Clipped, Event, StepBegin, Unscaled
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.some_values import some_values
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter

# Values of each clipped parameter, evenly spread, that say whether a script updates it by hand.
WATCHED_VALUES = 16


class ClipOrder:
    """Counts clip calls that can still act on the step's gradients, and those that cannot.

    Where no optimizer of torch steps, an update by hand is a step: a call acts if the weights that it was given move
    between it and the next backward pass, and have not moved since the last one.
    """

    name: ClassVar[str] = "clip_order"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        BackwardBegin,
        BackwardEnd,
        Clipped,
        StepBegin,
        Unscaled,
    )

    def __init__(self) -> None:
        self._later = Later()
        self._by_torch = False
        """An optimizer of torch has stepped."""
        self._watched: list[OurRef] = []
        self._after_backward: Tensor | None = None
        self._clear()

    def _clear(self) -> None:
        self._calls = self._in_time = self._scaled = 0
        self._unscaled = False
        self._clipped: set[int] = set()
        self._coverage: float | None = None
        self._when_clipped: Tensor | None = None
        self._acted: Tensor | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BackwardBegin):
            if self._when_clipped is not None:
                self._acted = self._moved_by_hand(self._when_clipped)
                self._when_clipped = None
        elif isinstance(event, BackwardEnd):
            if self._watched and not self._by_torch:
                self._after_backward = self._weights()
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
            if not self._by_torch:
                self._watched = [OurRef(p) for p in event.parameters]
                self._when_clipped = self._weights()
                if self._when_clipped is None:
                    self._coverage = 0.0
        elif isinstance(event, StepBegin):
            self._by_torch, self._when_clipped, self._acted = True, None, None
            if not self._calls:
                return
            held = {id(p) for group in event.optimizer.param_groups for p in group["params"]}
            self._coverage = len(held & self._clipped) / len(held) if held else None

    def _weights(self) -> Tensor | None:
        """Some values of each parameter of the last clip call."""
        values = [
            some_values(p, WATCHED_VALUES).float()
            for ref in self._watched
            if (p := ref()) is not None
        ]
        return torch.cat([v.to(values[0].device) for v in values]) if values else None

    def _moved_by_hand(self, clipped: Tensor) -> Tensor | None:
        """Whether weights moved after the clip call and not before it."""
        now, before = self._weights(), self._after_backward
        if now is None or now.shape != clipped.shape:
            return None
        moved = (now != clipped).any()
        if before is not None and before.shape == clipped.shape:
            moved = moved & (before == clipped).all()
        return moved

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._later.collect(step)
        if self._calls:
            if self._acted is None:
                record.scalar("clip.in_time", step, float(self._in_time))
            else:
                calls = self._calls
                self._later.put(
                    step,
                    self._acted,
                    lambda acted: record.scalar("clip.in_time", step, calls * float(acted)),
                )
            record.scalar("clip.scaled", step, float(self._scaled))
            if self._coverage is not None:
                record.scalar("clip.coverage", step, self._coverage)
        self._clear()

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()
