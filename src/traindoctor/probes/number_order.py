"""Does the order of the data reach a regression? Numbers asked for in a batch against numbers dealt out again.

Legend: n rows in all batches, Q numbers per row that are looked at.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import Event, LossCalled
from traindoctor.experiment.samples import PATIENCE, HostCopy, host_copy
from traindoctor.probes.base import ASKED_AT, DEALS, MOST_ROWS, Cost
from traindoctor.record import RecordWriter
from traindoctor.tape.operators import NUMBER_LOSSES

# Numbers of a row that are looked at, evenly spaced: a signal's places tell the same story.
MOST_NUMBERS = 8
# A z-score of batches needs a few of them, one of their order some more.
LEAST_BATCHES, LEAST_NEIGHBOURS = 4, 8
# A variance under this is rounding: numbers that never change have no order.
CONSTANT = 1e-12

Numbers = NDArray[np.float64]


class NumberOrder:
    """`order.number_z`: how much more alike the numbers of one batch are than if rows were dealt at random.

    `order.number_neighbour_z`: the same of batches that follow each other. Within 3 in shuffled runs.
    """

    name: ClassVar[str] = "number_order"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (LossCalled,)

    def __init__(self) -> None:
        self._now: HostCopy | None = None
        self._waiting: list[tuple[int, HostCopy]] = []
        self._batches: list[Numbers] = []
        self._rows = 0

    def on(self, event: Event, *, due: bool) -> None:
        if self._now is not None or self._rows > MOST_ROWS or not isinstance(event, LossCalled):
            return
        target = event.target
        if event.kind in NUMBER_LOSSES and event.wants_grad and not target.requires_grad:
            if target.ndim and len(target) > 1 and target.is_floating_point():
                wide = target.detach().reshape(len(target), -1)
                self._now = host_copy(wide[:, :: -(-wide.shape[1] // MOST_NUMBERS)])

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._now is not None:
            self._waiting.append((step, self._now))
            self._now = None
        while self._waiting:
            at, copy = self._waiting[0]
            if copy.late and step - at < PATIENCE:
                return
            self._waiting.pop(0)
            self._add(at, copy.read().astype(np.float64), record)

    def _add(self, step: int, numbers: Numbers, record: RecordWriter) -> None:
        if self._batches and self._batches[0].shape[1] != numbers.shape[1]:
            return  # another task
        self._batches.append(numbers)
        self._rows += len(numbers)
        if len(self._batches) in ASKED_AT and self._rows <= 2 * MOST_ROWS:
            for name, z in (
                ("order.number_z", within_z(self._batches)),
                ("order.number_neighbour_z", neighbour_z(self._batches)),
            ):
                if z is not None:
                    record.scalar(name, step, z)


def standardised(batches: list[Numbers]) -> Numbers | None:
    """(n, Q) with zero mean and unit variance; None where nothing varies, or not all is finite."""
    rows = np.concatenate(batches)
    if not np.isfinite(rows).all():
        return None
    spread = rows.std(axis=0)
    alive = spread**2 > CONSTANT
    return (rows[:, alive] - rows[:, alive].mean(axis=0)) / spread[alive] if alive.any() else None


def within_z(batches: list[Numbers]) -> float | None:
    """z-score of the spread of batch means against DEALS random deals of the rows into the same sizes."""
    rows = standardised(batches)
    if rows is None or len(batches) < LEAST_BATCHES:
        return None
    sizes = np.array([len(batch) for batch in batches])
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def likeness(dealt: Numbers) -> float:
        return float((np.add.reduceat(dealt, begins) ** 2 / sizes[:, None]).sum())

    random = np.random.default_rng(0)  # our own: a probe draws nothing from the run's
    return z_score(likeness(rows), [likeness(random.permutation(rows)) for _ in range(DEALS)])


def neighbour_z(batches: list[Numbers]) -> float | None:
    """z-score of the likeness of batches that follow each other, against batches in random order."""
    rows = standardised(batches)
    if rows is None or len(batches) < LEAST_NEIGHBOURS:
        return None
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    means = np.stack([part.mean(axis=0) for part in np.split(rows, ends)])

    def likeness(order: Numbers) -> float:
        return float((order[1:] * order[:-1]).sum())

    random = np.random.default_rng(0)
    return z_score(likeness(means), [likeness(random.permutation(means)) for _ in range(DEALS)])


def z_score(value: float, dealt: list[float]) -> float | None:
    spread = float(np.std(dealt))
    return (value - float(np.mean(dealt))) / spread if spread > 0 else None
