"""GradScaler: its factor and the steps it skips."""

from __future__ import annotations

from typing import ClassVar

from traindoctor.events import Event, ScalerUpdated
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class Scaler:
    """`scaler.scale` after the update of the step before, `scaler.skipped` 1 for a skipped step.

    `update()` comes after `step()`: the real step is closed by then, and its scale is written with its number.
    """

    name: ClassVar[str] = "scaler"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ScalerUpdated,)

    def __init__(self) -> None:
        self._update: ScalerUpdated | None = None
        self._used = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ScalerUpdated):
            self._update, self._used = event, True

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._used:
            update = self._update
            if update is not None:
                record.scalar("scaler.scale", step, update.scale)
            record.scalar("scaler.skipped", step, float(update is not None and update.skipped))
        self._update = None
