"""The walk: forward, loss, backward, update in the order in which A made them, and the first tensor that differs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.terms import Aligned
from traindoctor.compare.tolerance import Distance, Tolerance, distance, undetermined
from traindoctor.compare.trace import Entry, Key, Trace

State = Literal["same", "different", "missing", "shape", "no gradient"]
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
    open: NDArray[Any] | None = None
    """Of an update: elements that rounding leaves undetermined; they are not compared."""
    shape: tuple[int, ...] | None = None
    """B's, where it is another."""

    @property
    def over(self) -> float | None:
        """The difference over the tolerance: above 1 is different."""
        if self.apart is None or self.allowed is None:
            return None
        return self.apart.over(self.allowed)


def walk(aligned: Aligned, tolerance: Tolerance) -> list[Place]:
    """Every tensor of A, in order."""
    cut = _without_gradient(aligned)
    return [
        Place(entry, "no gradient") if entry.key in cut else _place(entry, aligned, tolerance)
        for entry in in_order(aligned.a.entries)
    ]


def _without_gradient(aligned: Aligned) -> set[Key]:
    """Tensors that both sides have and that only A has a gradient of, where weights of B are cut off from the loss."""
    a, b = aligned.a.by_key, aligned.b.by_key
    told = {key[1] for key in b if key[0] == "gradient"}
    missing = {
        key
        for key in a
        if key[0] == "gradient" and key not in b and key[1] in told and _moves(a[key])
    }
    if not any(("update", *key[1:]) in b for key in missing):
        return set()
    return {key for key in missing if {("update", *key[1:]), ("activation", *key[1:])} & b.keys()}


def _moves(entry: Entry) -> bool:
    return bool(np.asarray(entry.read()).any())


def _place(entry: Entry, aligned: Aligned, tolerance: Tolerance) -> Place:
    other = aligned.b.by_key.get(entry.key)
    if other is None:
        return Place(entry, "missing")
    first, second = entry.values(), other.values()
    if first.shape != second.shape:
        if first.size != second.size or entry.rows != other.rows:
            return Place(entry, "shape", shape=other.shape)
        second = second.reshape(first.shape)
    if first.dtype.kind != "f" and second.dtype.kind != "f":
        same = np.array_equal(first, second)
        return Place(entry, "same" if same else "different")
    first, second = first.astype(np.float64), second.astype(np.float64)
    hidden = open_elements(entry, aligned.a, tolerance)
    if hidden is not None:
        first, second = np.where(hidden, 0.0, first), np.where(hidden, 0.0, second)
    apart, allowed = distance(first, second), tolerance.of(entry, other)
    state: State = "different" if apart.over(allowed) > 1 else "same"
    return Place(entry, state, apart, allowed, hidden)


def open_elements(entry: Entry, a: Trace, tolerance: Tolerance) -> NDArray[Any] | None:
    """Of an update, those that its gradients do not determine."""
    if entry.kind != "update":
        return None
    gradients = [a.by_key.get(("gradient", step, entry.name)) for step in range(entry.step + 1)]
    known = [
        g for g in gradients if g is not None and (g.shape, g.rows) == (entry.shape, entry.rows)
    ]
    return undetermined((gradient.values(), tolerance.of(gradient)) for gradient in known)


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
    return next(
        (place for place in places if place.state in ("different", "shape", "no gradient")), None
    )
