"""Do the parts of a batch keep the order of the examples it was joined of? By value, in the first batches.

Each part of an example (a picture, tokens, a label) is looked for in the rows of each tensor of the batch. Where one
part comes in one order and another part in another, rows of the batch are no examples any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from traindoctor.events import BatchFetched, Event
from traindoctor.ground.nested import tensors_in
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Fewer examples come into the same order by chance; of more the first ones tell.
FEWEST, MOST = 4, 64
# Numbers that are compared at the begin and at the end of a part; more would tell no more examples apart.
NUMBERS = 64
# Parts of one example, and tensors of a batch.
MOST_PARTS, MOST_TENSORS = 8, 8

Found = NDArray[np.bool_]
"""Which row (first axis) is which example (second axis)."""


@dataclass(frozen=True)
class Placed:
    """A part of the examples, as one tensor of the batch has it."""

    part: int
    found: Found

    @property
    def in_order(self) -> bool:
        return bool(self.found.diagonal().all())

    def fits(self, other: Placed) -> Found:
        """The rows that can be of one example in both."""
        fits: Found = np.any(self.found & other.found, axis=1)
        return fits


class Collated:
    """The fact `batch.collated`: batches looked at, and in how many of them two parts are in different orders."""

    name: ClassVar[str] = "collated"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (BatchFetched,)

    def __init__(self) -> None:
        self._looked = self._dealt = 0
        self._moved: list[float] = []
        self._told = 0

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BatchFetched) and FEWEST <= len(event.examples) <= MOST:
            self._looked += 1
            moved = moved_share(event.examples, event.batch)
            if moved:
                self._dealt += 1
                self._moved.append(moved)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._looked > self._told:
            self._told = self._looked
            moved = float(np.mean(self._moved)) if self._moved else 0.0
            fact = {"batches": self._looked, "dealt": self._dealt, "moved": moved}
            record.fact("batch.collated", fact)


def moved_share(examples: Sequence[Any], batch: Any) -> float:
    """Share of the rows in which two parts cannot be of one example; 0 where all parts are in one order."""
    count = len(examples)
    parts = [list(numbers_in(example)) for example in examples]
    if len({len(one) for one in parts}) != 1:
        return 0.0
    tensors = [t for t in tensors_in(batch) if t.dim() and len(t) == count][:MOST_TENSORS]
    placed = [
        one
        for part in range(min(MOST_PARTS, len(parts[0])))
        for tensor in tensors
        if (one := place(part, [of[part] for of in parts], tensor)) is not None
    ]
    # The order may be undone later, by whoever is told of it.
    if any(is_an_order(tensor) for tensor in tensors):
        return 0.0
    worst = 0.0
    for one in placed:
        for part in {p.part for p in placed} - {one.part}:
            others = [p for p in placed if p.part == part]
            same = [p for p in placed if p.part == one.part]
            if any(a.fits(b).all() for a in same for b in others):
                continue
            worst = max(worst, min(1 - float(one.fits(b).mean()) for b in others))
    return worst


def numbers_in(example: Any) -> Iterator[Tensor]:
    """Each part of an example, flat; words and objects are left out, as nothing."""
    if isinstance(example, dict):
        for value in example.values():
            yield from numbers_in(value)
    elif isinstance(example, Tensor):
        yield example.detach().reshape(-1)
    elif isinstance(example, bool | int | float | np.ndarray | np.generic):
        yield from _as_tensor(example)
    elif isinstance(example, list | tuple):
        if all(isinstance(one, int | float) for one in example) and isinstance(example, list):
            yield from _as_tensor(example)
        else:
            for value in example:
                yield from numbers_in(value)


def _as_tensor(value: Any) -> Iterator[Tensor]:
    flat = np.asarray(value).reshape(-1)
    if flat.dtype.kind in "biuf":
        yield torch.from_numpy(flat.astype(np.float64))


def place(part: int, values: Sequence[Tensor], tensor: Tensor) -> Placed | None:
    """Where every example of this part is found in the tensor's rows, each once, at the begin or the end of a row."""
    rows = tensor.detach().reshape(len(tensor), -1)
    begins, ends = plain(rows[:, :NUMBERS]), plain(rows[:, -NUMBERS:])
    parts = [(plain(value[:NUMBERS]), plain(value[-NUMBERS:])) for value in values]
    found = np.zeros((len(rows), len(values)), bool)
    for number, (first, last) in enumerate(parts):
        length = len(first)
        if not length or values[number].numel() > rows.shape[1]:
            return None
        found[:, number] = (begins[:, :length] == first).all(1) | (ends[:, -length:] == last).all(1)
    distinct = len({(first.tobytes(), last.tobytes()) for first, last in parts})
    if distinct < 2 or not (found.any(axis=0).all() and found.any(axis=1).all()):
        return None
    # As many rows as there are examples of the same value: dealt anew, nothing else.
    if not np.array_equal(np.sort(found.sum(axis=0)), np.sort(found.sum(axis=1))):
        return None
    return Placed(part, found)


def plain(values: Tensor) -> NDArray[np.float64]:
    return values.cpu().double().numpy()


def is_an_order(tensor: Tensor) -> bool:
    """The numbers of the rows in some order: by which they were sorted, or can be put back."""
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex():
        return False
    return bool(torch.equal(tensor.detach().cpu().sort().values.long(), torch.arange(len(tensor))))
