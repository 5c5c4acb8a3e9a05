"""Do the inputs of an example say anything about its targets? A permutation test over examples.

Legend: n examples, P input features (a token is in the row, or not), Q target features (a class is
among the row's targets, or not). The statistic is the sum of squared correlations of all P x Q pairs;
it is compared with the same sum after the targets have been dealt to other examples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import Event
from traindoctor.experiment.samples import Sample, Samples
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

ASKED_AT = (96, 256, 640, 1280)
FEATURES = 512
DEALS = 40
# Features x features per row up to which a product of matrices is cheaper than picking n x n numbers: 1280 rows of 90
# features take 40 x 0.7 ms instead of 40 x 20.
CHEAP = 100
# A z-score of the statistic needs this many different examples.
LEAST_ROWS = 64

Features = NDArray[np.float32]


class Relatedness:
    """`relation.z`: z-score of input-target relation. Near 0: none seen. Healthy tasks give 30 and more."""

    name: ClassVar[str] = "relatedness"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = Samples.hears

    def __init__(self) -> None:
        self._samples = Samples()
        self._x: list[Features] = []
        self._y: list[Features] = []
        self._rows = 0
        self._asked = 0
        self._known: set[int] = set()
        self._first_label: dict[bytes, int] = {}
        self._labels: Counter[int] = Counter()
        self._repeats = self._agreeing = 0

    def on(self, event: Event, *, due: bool) -> None:
        if self._asked < len(ASKED_AT):
            self._samples.on(event)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._asked >= len(ASKED_AT):
            return
        for at, samples in self._samples.take(step):
            for sample in samples:
                self._add(sample)
            if self._asked < len(ASKED_AT) and self._rows >= ASKED_AT[self._asked]:
                self._asked += 1
                z = relation_z(np.concatenate(self._x), np.concatenate(self._y))
                if z is not None:
                    record.scalar("relation.z", at, z)
                    record.scalar("relation.rows", at, float(self._rows))
                if self._repeats:
                    record.scalar("relation.repeats", at, float(self._repeats))
                    record.scalar("relation.agreement", at, self.agreement)
        if self._asked >= len(ASKED_AT):
            self._x, self._y = [], []

    def _add(self, sample: Sample) -> None:
        if not sample.wants_grad or sample.contrastive:
            return
        x = input_features(sample)
        y = target_features(sample, len(x)) if x is not None else None
        if x is None or y is None or (self._x and self._x[0].shape[1] != x.shape[1]):
            return
        self._count_repeats(sample)
        # An example that comes again in a later epoch, label and all, is no second witness.
        fresh = []
        for number, row in enumerate(x):
            key = hash(row.tobytes())
            if key not in self._known:
                self._known.add(key)
                fresh.append(number)
        self._x.append(x[fresh])
        self._y.append(y[fresh])
        self._rows += len(fresh)

    def _count_repeats(self, sample: Sample) -> None:
        """Equal inputs that come again, and whether they bring the same label."""
        inputs = next((i for i in sample.inputs() if i.ndim == 2), None)
        if inputs is None or sample.binary or sample.shape != (len(inputs),):
            return
        for row, label in zip(inputs, sample.targets.tolist()):
            self._labels[label] += 1
            known = self._first_label.get(row.tobytes())
            if known is None:
                self._first_label[row.tobytes()] = label
            else:
                self._repeats += 1
                self._agreeing += known == label

    @property
    def agreement(self) -> float:
        """1: equal inputs always have equal labels; 0: no more often than by chance."""
        total = self._labels.total()
        chance = sum(count * count for count in self._labels.values()) / total**2
        share = self._agreeing / self._repeats
        return (share - chance) / (1 - chance) if chance < 1 else 1.0


def input_features(sample: Sample) -> Features | None:
    """Tokens that stand in each row; for dense inputs their values."""
    for inputs in sample.inputs():
        if inputs.ndim == 2:
            return presence(inputs, np.ones_like(inputs, dtype=bool))
    if sample.dense is None:
        return None
    values = sample.dense.read()
    return values.reshape(len(values), -1).astype(np.float32)


def target_features(sample: Sample, rows: int) -> Features | None:
    """Classes that stand among each row's targets; row b of the input must be row b of the targets."""
    targets, valid = sample.targets, sample.valid
    if sample.binary:
        return targets.astype(np.float32) if len(targets) == rows else None
    if targets.size == 0 or targets.size % rows:
        return None
    return presence(targets.reshape(rows, -1), valid.reshape(rows, -1))


def presence(tokens: NDArray[np.int64], keep: NDArray[np.bool_]) -> Features:
    """(n, FEATURES): which tokens (by their number modulo FEATURES) stand in each row."""
    found = np.zeros((len(tokens), FEATURES), dtype=np.float32)
    rows = np.broadcast_to(np.arange(len(tokens))[:, None], tokens.shape)
    found[rows[keep], tokens[keep] % FEATURES] = 1.0
    return found


def relation_z(x: Features, y: Features) -> float | None:
    """z-score of the sum of squared correlations, rows of y dealt anew DEALS times."""
    x, y = standardised(x), standardised(y)
    if len(x) < LEAST_ROWS or not x.shape[1] or not y.shape[1]:
        return None
    strength = by_features(x, y) if x.shape[1] * y.shape[1] < CHEAP * len(x) else by_rows(x, y)
    random = np.random.default_rng(0)
    dealt = [strength(random.permutation(len(x))) for _ in range(DEALS)]
    spread = float(np.std(dealt))
    return (strength(np.arange(len(x))) - float(np.mean(dealt))) / spread if spread else None


def by_features(x: Features, y: Features) -> Callable[[NDArray[np.int64]], float]:
    """The sum of squared correlations, from all P x Q of them."""
    return lambda order: float(np.square(x.T @ y[order]).sum(dtype=np.float64))


def by_rows(x: Features, y: Features) -> Callable[[NDArray[np.int64]], float]:
    """The same sum, from the n x n products of rows: cheaper where features are many."""
    near_x, near_y = x @ x.T, y @ y.T
    return lambda order: float((near_x * near_y[np.ix_(order, order)]).sum(dtype=np.float64))


def standardised(features: Features) -> Features:
    """Zero mean, unit variance; features that never change say nothing and are left out."""
    spread = features.std(axis=0)
    # A token in one row only correlates perfectly with that row's label by chance.
    alive = ((features != 0).sum(axis=0) >= 3) & (spread > 0)
    made: Features = (features[:, alive] - features[:, alive].mean(axis=0)) / spread[alive]
    return made
