"""Is the model given the same numbers at every step, and does the script hold more of such rows?

They may be the whole data set, held or cut from it anew at each step: then nothing in memory has its rows among many
others.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from traindoctor.events import Event, ForwardBegin
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# So many steps in a row with the same tensors, then the script's other data are looked at, once.
STEPS = 8
# Training and held-out rows are often cut from one tensor, a tenth to a half for either; a batch out of a data set is
# less than this part of it.
PART = 8
# Rows that must all be found; shorter rows must lie in a table of their own width, or chance would find them.
ROWS, LONG = 4, 8
MOST_NUMBERS = 50_000_000
# Other tensors with the same numbers: so many steps are looked at, batches of so many numbers.
LOOKS, MOST_LOOKED_AT = 2 * STEPS, 2_000_000
COMPARED = frozenset({torch.float32, torch.float64, torch.int64, torch.int32})

Numbers = NDArray[Any]
Place = tuple[OurRef, int, int | torch.SymInt, tuple[int, ...], tuple[int, ...]]


class HeldBatch:
    """The fact `batch.held`: since which step the tensors are the same, and how many times the rows a store has."""

    name: ClassVar[str] = "held_batch"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin,)

    def __init__(self) -> None:
        self._last: list[Place] = []
        self._now: list[Place] = []
        self._data: Numbers | None = None
        self._numbers: tuple[Numbers | None, Numbers | None] = (None, None)
        """Sorted, of the step before and of this one: the rows of a batch may come in another order."""
        self._looks = 0
        self._in_a_row = 1
        self._done = False

    def on(self, event: Event, *, due: bool) -> None:
        if self._done or self._now or not isinstance(event, ForwardBegin) or not event.wants_grad:
            return
        given = data_tensors(event)
        self._now = [place_of(tensor) for tensor in given]
        if self._looks < LOOKS:
            self._looks += 1
            self._numbers = self._numbers[1], in_order(given)
        if self._in_a_row == STEPS - 1 and self._same():
            self._data = largest(given)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._done or not self._now:
            return
        self._in_a_row = self._in_a_row + 1 if self._same() else 1
        self._last, self._now = self._now, []
        if self._in_a_row >= STEPS:
            times = times_as_many(self._data) if self._data is not None else None
            record.fact("batch.held", {"since": step - STEPS + 1, "times": times})
            self._data, self._done, self._numbers = None, True, (None, None)

    def _same(self) -> bool:
        before, now = self._numbers
        equal = before is not None and now is not None and np.array_equal(before, now)
        return same(self._now, self._last) or equal


def data_tensors(event: ForwardBegin) -> list[Tensor]:
    """Tensors with rows among a module's arguments."""
    return [
        item
        for item in tensors_in((event.args, event.kwargs))
        # Places at which derivatives are taken ask for a gradient and are data all the same.
        if item.ndim and (item.is_leaf or not item.requires_grad) and item.layout == torch.strided
    ]


def largest(given: list[Tensor]) -> Numbers | None:
    """The numbers of the tensor that has most of them: the data, not a mask beside them."""
    known = [tensor for tensor in given if tensor.dtype in COMPARED]
    return max(known, key=Tensor.numel).detach().cpu().numpy() if known else None


def in_order(given: list[Tensor]) -> Numbers | None:
    """The numbers of the largest tensor, sorted; None where there are too many."""
    known = [t for t in given if t.dtype in COMPARED and t.numel() <= MOST_LOOKED_AT]
    numbers = (
        largest(known) if len(known) == len([t for t in given if t.dtype in COMPARED]) else None
    )
    return np.sort(numbers, axis=None) if numbers is not None else None


def place_of(tensor: Tensor) -> Place:
    """Which tensor it is, or is cut from, in which version, and where in it."""
    base = tensor if tensor._base is None else tensor._base
    version = 0 if tensor.is_inference() else tensor._version
    return OurRef(base), version, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def same(now: list[Place], last: list[Place]) -> bool:
    """An address may be given out again: only a tensor that is still alive is the same one."""
    if not now or len(now) != len(last):
        return False
    return all(
        a[0]() is not None and a[0]() is b[0]() and a[1:] == b[1:] for a, b in zip(now, last)
    )


def times_as_many(batch: Numbers) -> float | None:
    """How many times as many numbers the largest store has that these rows stand in; None: there is none."""
    best = None
    for store in stores(batch):
        times = store.size / batch.size
        if (best is None or times > best) and holds(store, batch):
            best = times
    return best


def stores(batch: Numbers) -> Iterator[Numbers]:
    """Numbers of the same sort, many more than the batch's: tensors of the process, arrays and lists of the script."""
    least = PART * batch.size
    for thing in gc.get_objects():
        # Subclasses hold no numbers of their own (a compiler's, a sharded tensor) or are parameters.
        if type(thing) is Tensor and thing.numel() >= least and readable(thing, batch):
            yield thing.detach().cpu().numpy()
    script = sys.modules.get("__main__")
    for value in list(vars(script).values()) if script is not None else ():
        if type(value) is list and len(value) >= least and type(value[0]) in (int, float):
            try:
                value = np.asarray(value[:MOST_NUMBERS])
            except (ValueError, OverflowError):  # a list of this and that
                continue
        if isinstance(value, np.ndarray) and value.size >= least:
            if value.dtype.kind == batch.dtype.kind:
                yield value


def readable(tensor: Tensor, batch: Numbers) -> bool:
    """Whether it can be compared; of a device only tokens are fetched, its activations and moments are many."""
    sort = "f" if tensor.is_floating_point() else "i"
    if tensor.dtype not in COMPARED or sort != batch.dtype.kind or tensor.requires_grad:
        return False
    return tensor.layout is torch.strided and (tensor.device.type == "cpu" or sort == "i")


def holds(store: Numbers, batch: Numbers) -> bool:
    """Whether rows of the batch stand in the store, each as one run of numbers."""
    rows = batch.reshape(len(batch), -1) if batch.ndim > 1 else batch.reshape(1, -1)
    width = rows.shape[1]
    step = width if store.ndim > 1 and store[0].size == width else 1
    if step == 1 and (width < LONG or len(np.unique(rows[0])) < LONG // 2):
        return False
    flat = store.reshape(-1)[:MOST_NUMBERS]
    chosen = rows[:: max(1, len(rows) // ROWS)][:ROWS]
    return all(stands_in(flat, row, step) for row in chosen)


def stands_in(flat: Numbers, row: Numbers, step: int) -> bool:
    last = len(flat) - len(row) + 1
    starts = np.flatnonzero(flat[: max(0, last) : step] == row[0]) * step
    for place, number in enumerate(row):
        starts = starts[flat[starts + place] == number]
        if not len(starts):
            return False
    return True
