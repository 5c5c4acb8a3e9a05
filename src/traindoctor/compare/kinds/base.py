"""What stands around the first difference, and what an explanation is."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.tolerance import Distance, Tolerance, distance
from traindoctor.compare.trace import Entry, Trace

Array = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """One simple difference that makes B of A within the tolerance."""

    code: str
    """For programs: factor, transposition, permutation, shift, tile, bias, activation, epsilon, mask, ..."""
    sentence: str
    """What B does, for a reader who knows the model."""


@dataclass(frozen=True)
class Scene:
    """The first tensor that differs. Whatever comes before it is the same on both sides."""

    entry: Entry
    a_trace: Trace
    b_trace: Trace
    tolerance: Tolerance
    open: Array | None = None
    """Elements of an update that are not compared (compare.tolerance.undetermined)."""

    @cached_property
    def a(self) -> Array:
        return self.closed(self.entry.values())

    @cached_property
    def b(self) -> Array:
        return self.closed(self.b_trace.by_key[self.entry.key].values().reshape(self.a.shape))

    @property
    def allowed(self) -> Distance:
        return self.tolerance.of(self.entry, self.b_trace.by_key.get(self.entry.key))

    def closed(self, values: Array) -> Array:
        """With 0 where nothing is compared."""
        return values if self.open is None else np.where(self.open, 0.0, values)

    def explains(self, guess: Array) -> bool:
        """Whether B is this, as far as rounding lets one see, and this is not what A has."""
        if guess.shape != self.b.shape or not np.isfinite(guess).all():
            return False
        allowed, guess = self.allowed, self.closed(guess)
        if distance(guess, self.a).over(allowed) <= 1:
            return False
        # The tolerance is A's: where B is much smaller, its rounding is still that of the same sums and weights.
        norms = np.linalg.norm(self.a), np.linalg.norm(guess)
        larger = max(1.0, float(norms[0] / norms[1])) if norms[1] else 1.0
        return distance(guess, self.b).over(allowed) <= larger

    def is_a(self, guess: Array) -> bool:
        """Whether this is what A has: the formula that a variant is made from is A's own."""
        if guess.shape != self.a.shape or not np.isfinite(guess).all():
            return False
        return distance(self.a, self.closed(guess)).over(self.allowed) <= 1

    @property
    def whole(self) -> bool:
        """Whether every row was kept."""
        return self.entry.rows is None

    def get(self, kind: str, name: str, step: int | None = None) -> Array | None:
        """A tensor of A's, of the same step."""
        found = self.a_trace.by_key.get((kind, self.entry.step if step is None else step, name))
        if found is None or (kind != "weight" and found.rows != self.entry.rows):
            return None
        return found.values() if found.rows in (None, self.entry.rows) else None

    def weight_at(self, step: int) -> Array | None:
        """Of an update, its weight as that step found it."""
        return self.weight(self.entry.name, step)

    def weight(self, name: str, before: int | None = None) -> Array | None:
        """A weight as this step found it, or an earlier one."""
        start = self.get("weight", name, 0)
        for step in range(self.entry.step if before is None else before):
            moved = self.get("update", name, step)
            if start is None or moved is None:
                return None
            start = start + moved
        return start

    def earlier(self, kind: str | None = None) -> Iterator[Entry]:
        """A's tensors before this one, the latest first."""
        place = next(i for i, e in enumerate(self.a_trace.entries) if e.key == self.entry.key)
        for entry in reversed(self.a_trace.entries[:place]):
            if kind in (None, entry.kind) and entry.rows == self.entry.rows:
                yield entry

    def setting(self, name: str) -> float | None:
        value = self.a_trace.settings.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def owner(self) -> str:
        """The module of a weight."""
        return self.entry.name.partition(" + ")[0].rpartition(".")[0]


def numbers_of(trace: Trace) -> dict[int, str]:
    """Lengths that the shapes are made of, and products of two: what a wrong factor may be."""
    found: dict[int, str] = {}
    batch = next((e.shape for e in trace.of_kind("input") if len(e.shape) >= 2), ())
    logits = next((e.shape for e in reversed(trace.of_kind("activation"))), ())
    named = {"batch": batch[0] if batch else 0, "length": batch[1] if len(batch) > 1 else 0}
    if logits and logits[:2] == batch[:2]:
        named["vocabulary"] = logits[-1]
    heads = trace.settings.get("heads")
    if isinstance(heads, int):
        named["heads"] = heads
    for entry in trace.of_kind("weight"):
        for length in entry.shape:
            named.setdefault(f"the dimension {length}", length)
    items = [(name, number) for name, number in named.items() if number > 1]
    for i, (name, number) in enumerate(items):
        for other, second in items[: i + 1]:
            if not other.startswith("the dim"):
                found.setdefault(number * second, f"{other} x {name}")
    for name, number in reversed(items):
        found[number] = name
    if named["batch"] > 1 and named["length"] > 1:
        found[named["batch"] * named["length"]] = "batch x length, the number of targets"
    return found
