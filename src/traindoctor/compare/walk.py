"""The walk: forward, loss, backward, update in the order in which A made them, and the first tensor that differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traindoctor.compare.terms import Aligned
from traindoctor.compare.tolerance import Distance, Tolerance, distance
from traindoctor.compare.trace import Entry, Trace

State = Literal["same", "different", "missing", "shape"]
WORDS = {
    "input": "batch",
    "weight": "weight before the step",
    "activation": "output",
    "loss": "loss",
    "gradient": "gradient",
    "update": "update",
}


@dataclass(frozen=True)
class Place:
    """One tensor of A and what B has there."""

    entry: Entry
    state: State
    apart: Distance | None = None
    allowed: Distance | None = None

    @property
    def over(self) -> float | None:
        """The difference over the tolerance: above 1 is different."""
        if self.apart is None or self.allowed is None:
            return None
        return self.apart.over(self.allowed)


def walk(aligned: Aligned, tolerance: Tolerance) -> list[Place]:
    """Every tensor of A, in order."""
    return [_place(entry, aligned.b, tolerance) for entry in in_order(aligned.a.entries)]


def _place(entry: Entry, b: Trace, tolerance: Tolerance) -> Place:
    other = b.by_key.get(entry.key)
    if other is None:
        return Place(entry, "missing")
    first, second = entry.values(), other.values()
    if first.shape != second.shape:
        if first.size != second.size or entry.rows != other.rows:
            return Place(entry, "shape")
        second = second.reshape(first.shape)
    if first.dtype.kind != "f" and second.dtype.kind != "f":
        same = np.array_equal(first, second)
        return Place(entry, "same" if same else "different")
    apart = distance(first.astype(np.float64), second.astype(np.float64))
    allowed = tolerance.of(entry)
    return Place(entry, "different" if apart.over(allowed) > 1 else "same", apart, allowed)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """As the side made them; the gradient of a weight stands behind that of its owner's output, from which it is made."""
    entries = list(entries)
    outputs = {e.key: i for i, e in enumerate(entries) if e.kind == "activation"}
    gradients = {e.key: i for i, e in enumerate(entries) if e.kind == "gradient"}

    def place(index: int, entry: Entry) -> tuple[int, int]:
        if entry.kind != "gradient" or ("activation", entry.step, entry.name) in outputs:
            return index, 0
        owner = entry.name.partition(" + ")[0].rpartition(".")[0]
        behind = gradients.get(("gradient", entry.step, owner), index)
        return (behind, 1 + index) if behind < index else (index, 0)

    order = sorted(range(len(entries)), key=lambda i: place(i, entries[i]))
    return [entries[i] for i in order]


def first_different(places: Iterable[Place]) -> Place | None:
    return next((place for place in places if place.state in ("different", "shape")), None)
