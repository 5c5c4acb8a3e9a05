"""What a probe is: it turns events into numbers, cheaply, and never judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

from traindoctor.events import Event
from traindoctor.record import RecordWriter

Cost = Literal["free", "cheap", "costly"]


class Probe(Protocol):
    """One measurement. It draws no random number, writes no parameter, keeps no tensor of the run alive.

    `free` probes run at every step; the governor decides how often the others are `due`.
    """

    name: ClassVar[str]
    gives: ClassVar[tuple[str, ...]]
    """Series and layer series it writes."""
    cost: ClassVar[Cost]
    every: ClassVar[int]
    """How often it would like to run, in steps."""

    def on(self, event: Event, *, due: bool) -> None:
        """An event of the run; `due` says whether this step may be measured."""

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        """The step has ended: write its numbers."""


def numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """The entries that were measured."""
    return {name: float(value) for name, value in values.items() if value is not None}
