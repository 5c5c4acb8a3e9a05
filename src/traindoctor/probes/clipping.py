"""Clip calls: the threshold and how often."""

from __future__ import annotations

import math
from typing import ClassVar

from traindoctor.events import Clipped, Event
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class Clipping:
    """`clip.limit` (NaN: none in this step) and `clip.calls`; the kind of clipping is the fact `clip`."""

    name: ClassVar[str] = "clipping"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (Clipped,)

    def __init__(self) -> None:
        self._calls = 0
        self._limit = math.nan
        self._kind: str | None = None
        self._told: str | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, Clipped):
            self._calls += 1
            self._limit = event.limit
            self._kind = event.kind

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        record.scalar("clip.limit", step, self._limit)
        record.scalar("clip.calls", step, self._calls)
        if self._kind != self._told:
            record.fact("clip", {"kind": self._kind, "limit": self._limit})
            self._told = self._kind
        self._calls, self._limit = 0, math.nan
