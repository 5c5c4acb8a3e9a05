"""Does the order of the data reach the optimizer? Labels of a batch against labels dealt out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import Event
from traindoctor.experiment.samples import Sample, Samples
from traindoctor.probes.base import ASKED_AT, DEALS, MOST_ROWS, Cost
from traindoctor.record import RecordWriter

Labels = list[NDArray[np.int64]]
"""One array per batch."""

# A language model has no label per example, and never will: after so many steps without one it is left alone.
GIVE_UP = 20


class LabelOrder:
    """`order.label_z`: how much more alike the labels of one batch are than if rows were dealt at random.

    Only for examples with one label each. Within 2 in shuffled runs; hundreds where classes come in order. Two stages
    with labels of their own are two runs: each is dealt by itself.
    """

    name: ClassVar[str] = "label_order"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = Samples.hears

    def __init__(self) -> None:
        self._samples = Samples()
        self._labels: Labels = []
        self._without = 0

    def on(self, event: Event, *, due: bool) -> None:
        if self._without < GIVE_UP and sum(map(len, self._labels)) <= MOST_ROWS:
            self._samples.on(event)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        for at, samples in self._samples.take(step):
            found = labels_of_rows(samples)
            self._without = 0 if found else self._without + 1
            if not found or sum(map(len, self._labels)) > MOST_ROWS:
                continue
            self._labels.append(np.concatenate(found))
            if len(self._labels) in ASKED_AT:
                z = stage_by_stage(self._labels, redealt_z)
                if z is not None:
                    record.scalar("order.label_z", at, z)
                follow = stage_by_stage(self._labels, neighbour_z)
                if follow is not None:
                    record.scalar("order.neighbour_z", at, follow)


def labels_of_rows(samples: list[Sample]) -> Labels:
    """Of the first loss on each batch: a second one asks the same rows for something else, or once more (SAM, two views)."""
    found: dict[object, NDArray[np.int64]] = {}
    asked: set[int] = set()
    for number, sample in enumerate(samples):
        if id(sample.target) in asked:
            continue
        asked.add(id(sample.target))
        labels = row_labels(sample) if sample.wants_grad else None
        if labels is not None:
            given = tuple(map(id, (*sample.tokens, sample.dense)))
            found.setdefault(given if sample.tokens or sample.dense else number, labels)
    return list(found.values())


def row_labels(sample: Sample) -> NDArray[np.int64] | None:
    """One label per row of the batch, or None where targets are no such thing."""
    if sample.binary or len(sample.shape) != 1 or sample.contrastive:
        return None
    inputs = sample.inputs()
    if inputs and all(len(x) != sample.shape[0] for x in inputs):
        return None  # a flattened sequence
    if not inputs and sample.shape[0] not in sample.lengths:
        return None  # compiled code looks its tokens up unheard; nothing says that these are labels of examples
    if any(x.ndim == 1 and len(x) == sample.shape[0] for x in inputs):
        return None  # one unbatched sequence
    labels = sample.targets[sample.valid]
    return labels if len(labels) else None


def stage_by_stage(batches: Labels, measure: Callable[[Labels], float | None]) -> float | None:
    """The measure of the whole, or the larger one of the two stretches that differ most, where that is less.

    Classes in order stand out within a stretch as well, or leave one class alone in it, of which nothing can be measured; an
    order that comes again with each pass has both halves in each stretch.
    """
    whole, at = measure(batches), border(batches)
    parts = [measure(part) for part in (batches[:at], batches[at:])]
    known = [z for z in parts if z is not None]
    return whole if whole is None or len(known) < len(parts) else min(whole, max(known))


def border(batches: Labels) -> int:
    """The place at which the labels before and after differ most."""
    kinds, coded = np.unique(np.concatenate(batches), return_inverse=True)
    ends = np.cumsum([len(b) for b in batches])
    counts = np.stack([np.bincount(c, minlength=len(kinds)) for c in np.split(coded, ends[:-1])])
    before, rows = counts.cumsum(axis=0)[:-1], ends[:-1, None]
    left = ends[-1] - rows
    apart = before / rows - (counts.sum(axis=0) - before) / left
    return 1 + int((np.square(apart) * (rows * left)).sum(axis=1).argmax())


def redealt_z(batches: Labels) -> float | None:
    """z-score of the labels' likeness within batches against DEALS random deals into the same sizes."""
    labels = np.concatenate(batches)
    kinds, coded = np.unique(labels, return_inverse=True)
    if len(kinds) < 2 or len(kinds) > len(labels) // 4 or len(batches) < 4:
        return None
    sizes = np.array([len(b) for b in batches])
    batch_of = np.repeat(np.arange(len(batches)), sizes)

    def likeness(order: NDArray[np.int64]) -> float:
        cells = np.bincount(batch_of * len(kinds) + order, minlength=len(batches) * len(kinds))
        table = cells.reshape(len(batches), len(kinds))
        return float((table**2 / sizes[:, None]).sum())

    # Our own generator: a probe draws nothing from the run's.
    random = np.random.default_rng(0)
    dealt = [likeness(random.permutation(coded)) for _ in range(DEALS)]
    spread = float(np.std(dealt))
    return (likeness(coded) - float(np.mean(dealt))) / spread if spread > 0 else None


def neighbour_z(batches: Labels) -> float | None:
    """z-score of the likeness of batches that follow each other, against batches in random order."""
    kinds, coded = np.unique(np.concatenate(batches), return_inverse=True)
    if len(kinds) < 2 or len(batches) < 8:
        return None
    ends = np.cumsum([len(b) for b in batches])[:-1]
    shares = np.stack(
        [np.bincount(c, minlength=len(kinds)) / len(c) for c in np.split(coded, ends)]
    )

    def likeness(order: NDArray[np.int64]) -> float:
        return float((shares[order][1:] * shares[order][:-1]).sum())

    random = np.random.default_rng(0)
    dealt = [likeness(random.permutation(len(batches))) for _ in range(DEALS)]
    spread = float(np.std(dealt))
    return (likeness(np.arange(len(batches))) - float(np.mean(dealt))) / spread if spread else None
