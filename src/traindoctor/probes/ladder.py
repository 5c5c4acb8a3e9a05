"""The entropy ladder: what count models of the same targets could have had by now.

Each batch is scored BEFORE it is counted (prequential), so a rung is what a predictor that sees that
much context could have reached on that very batch. Interpolated Witten-Bell:
    p(y | c) = (n(c, y) + d(c) p(y | shorter c)) / (n(c) + d(c)),  d(c) = kinds of y seen after c.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import Event
from traindoctor.experiment.samples import Sample, Samples
from traindoctor.graph.alignment import Mask, Tokens, align, layouts
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Hashed counts: 2**18 slots of 4 bytes, 12 tables, 12 MiB. Past a quarter full, counting stops and
# scoring goes on: two contexts in one slot would make the rung too good or too bad.
SLOTS = 1 << 18
FULL = SLOTS // 4
ORDER = 5
# A step is described by so many targets; a batch of millions is not counted whole.
MOST_TARGETS = 8192
# Two rungs are written; the orders between them only carry the back-off.
RUNGS = {2: "ladder.bigram", 5: "ladder.fivegram"}

Hashes = NDArray[np.uint64]
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class CountModel:
    """Prequential Witten-Bell model of order 1 to `order` over hashed contexts."""

    def __init__(self, classes: int, order: int = ORDER) -> None:
        self.classes = classes
        self.order = order
        self.seen = np.zeros(classes, dtype=np.int64)
        self.kinds = 0
        self.pairs = np.zeros((order - 1, SLOTS), dtype=np.int32)
        self.contexts = np.zeros((order - 1, SLOTS), dtype=np.int32)
        self.distinct = np.zeros((order - 1, SLOTS), dtype=np.int32)
        self.filled = np.zeros(order - 1, dtype=np.int64)

    def score(self, contexts: Hashes, targets: Tokens) -> NDArray[np.float64]:
        """Nll in nats, (orders 1..k, N). `contexts` is (k-1, N): hashes of the last 1, 2, ... inputs."""
        total = self.seen.sum()
        p = (self.seen[targets] + (self.kinds + 1) / self.classes) / (total + self.kinds + 1)
        rows = [p]
        for order, context in enumerate(contexts):
            slot = slots_of(context)
            pair = pair_slots(context, targets)
            count = self.contexts[order][slot]
            # Two pairs in one slot can hide a new kind: a context that was seen has at least one.
            kinds = np.maximum(self.distinct[order][slot], count > 0)
            together = count + kinds
            counted = (self.pairs[order][pair] + kinds * p) / np.maximum(together, 1)
            p = np.where(together > 0, counted, p)
            rows.append(p)
        nll: NDArray[np.float64] = -np.log(np.stack(rows))
        return nll

    def count(self, contexts: Hashes, targets: Tokens) -> None:
        new = np.bincount(targets, minlength=self.classes)
        self.kinds += int(((self.seen == 0) & (new > 0)).sum())
        self.seen += new
        for order, context in enumerate(contexts):
            if self.filled[order] > FULL:
                continue
            slot = slots_of(context)
            pair = pair_slots(context, targets)
            unique, first, counts = np.unique(pair, return_index=True, return_counts=True)
            fresh = self.pairs[order][unique] == 0
            np.add.at(self.distinct[order], slot[first[fresh]], 1)
            self.pairs[order][unique] += counts.astype(np.int32)
            np.add.at(self.contexts[order], slot, 1)
            self.filled[order] += int(fresh.sum())


def pair_slots(context: Hashes, targets: Tokens) -> NDArray[np.int64]:
    return slots_of(mix(context + targets.astype(np.uint64) + np.uint64(1)))


def slots_of(h: Hashes) -> NDArray[np.int64]:
    return (h & np.uint64(SLOTS - 1)).astype(np.int64)


def mix(h: Hashes) -> Hashes:
    """A multiply and a fold: neighbours in, strangers out."""
    h = h * MULTIPLIER
    return h ^ (h >> np.uint64(29))


def context_hashes(inputs: Tokens, orders: int) -> Hashes:
    """Hashes of the last 1, 2, ... inputs up to each place of (B, T): (orders, B, T).

    Before a row's beginning stands one sign, so a short context is a context of its own.
    """
    B, T = inputs.shape
    found = np.empty((orders, B, T), dtype=np.uint64)
    h = np.zeros((B, T), dtype=np.uint64)
    for back in range(orders):
        moved = np.zeros((B, T), dtype=np.uint64)
        moved[:, back:] = (inputs[:, : T - back] + 2).astype(np.uint64)
        h = mix(h + moved + np.uint64(1))
        found[back] = h
    return found


def laid_out(sample: Sample, time: int) -> tuple[Tokens, Tokens, Mask] | None:
    """(inputs, targets, valid), all (B, T) in batch-first layout; None when they do not lie together."""
    targets, valid = sample.targets, sample.valid
    for inputs in reversed(sample.inputs()):  # the decoder's tokens are embedded last
        for axis, laid, mask in layouts(inputs, targets, valid):
            if axis == time:
                x, y, m = (inputs, laid, mask) if axis == 1 else (inputs.T, laid.T, mask.T)
                return x[:, : y.shape[1]], y, m
    return None


def time_axis(sample: Sample) -> int:
    """The axis along which targets follow inputs; 1, as most scripts have it, where nothing tells."""
    found = [align(inputs, sample.targets, sample.valid) for inputs in sample.inputs()]
    axes = [alignment.axis for alignment in found if alignment is not None]
    return axes[0] if axes else 1


class Unigram:
    """`ladder.unigram`: counts of the targets alone. Cheap enough for every step, and the rung that judges."""

    name: ClassVar[str] = "unigram"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = Samples.hears

    def __init__(self) -> None:
        self._samples = Samples()
        self._model: CountModel | None = None

    def on(self, event: Event, *, due: bool) -> None:
        self._samples.on(event)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        for at, samples in self._samples.take(step):
            asked = asked_for_classes(samples)
            if not asked:
                continue
            classes = asked[0].classes
            if self._model is None or self._model.classes != classes:
                self._model = CountModel(classes, 1)
            parts = [s.targets[s.valid].reshape(-1) for s in asked if s.classes == classes]
            targets = np.concatenate(parts)[:MOST_TARGETS]
            if not targets.size:
                continue
            none = np.empty((0, targets.size), dtype=np.uint64)
            record.scalar("ladder.unigram", at, float(self._model.score(none, targets).mean()))
            self._model.count(none, targets)


class Ladder:
    """`ladder.bigram` and `ladder.fivegram`, where targets lie beside inputs.

    A batch that is not scored is not counted either: the rungs stay fair ones.
    """

    name: ClassVar[str] = "ladder"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = Samples.hears

    def __init__(self) -> None:
        self._samples = Samples()
        self._model: CountModel | None = None
        self._axis = 1

    def on(self, event: Event, *, due: bool) -> None:
        self._samples.on(event)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        for at, samples in self._samples.take(step):
            asked = asked_for_classes(samples) if due else []
            scores = self.measure(asked) if asked else None
            if scores is not None:
                for order, name in RUNGS.items():
                    record.scalar(name, at, float(scores[order - 1]))

    def measure(self, samples: list[Sample]) -> NDArray[np.float64] | None:
        """Mean nll of each order over the samples' valid targets; counts them afterwards."""
        classes = samples[0].classes
        if self._model is None or self._model.classes != classes:
            self._model = CountModel(classes)
            self._axis = time_axis(samples[0])
        parts: list[tuple[Hashes, Tokens]] = []
        for sample in samples:
            lying = laid_out(sample, self._axis) if sample.classes == classes else None
            if lying is None:
                continue
            inputs, targets, valid = lying
            rows = max(1, MOST_TARGETS // max(1, inputs.shape[1]))
            inputs, targets, valid = inputs[:rows], targets[:rows], valid[:rows]
            if valid.any():
                parts.append((context_hashes(inputs, ORDER - 1)[:, valid], targets[valid]))
        if not parts:
            return None
        hashes = np.concatenate([h for h, _ in parts], axis=1)
        targets = np.concatenate([y for _, y in parts])
        scores: NDArray[np.float64] = self._model.score(hashes, targets).mean(axis=1)
        self._model.count(hashes, targets)
        return scores


def asked_for_classes(samples: list[Sample]) -> list[Sample]:
    """The training losses of a step whose targets name classes; none where rows are their own classes."""
    asked = [s for s in samples if s.wants_grad and not s.binary]
    return [] if asked and asked[0].contrastive else asked
