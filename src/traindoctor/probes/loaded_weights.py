"""Weights that were loaded and did not arrive, since the checkpoint has them under other names.

Names are paired by what they are, not by a list of known prefixes: those that the module missed with those that it did not
expect, of the same shape, which are equal after one prefix that is the same for all of them.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from traindoctor.events import BackwardBegin, Event, StepBegin, WeightsLoaded
from traindoctor.ground.names import Names, has_values
from traindoctor.ground.some_values import some_values
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Numbers of each tensor by which it is known again, should the script copy it in another way.
SOME = 8
# Calls that may have missed: of a script that loads so at every step the first ones say it all.
MOST_LOADS = 16

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Place:
    """Where a tensor stands: `load_state_dict(assign=True)` and `module.to()` may put another one there."""

    owner: weakref.ref[nn.Module]
    name: str

    @property
    def tensor(self) -> Tensor | None:
        owner = self.owner()
        if owner is None:
            return None
        found = owner._parameters.get(self.name)
        return found if found is not None else owner._buffers.get(self.name)


@dataclass
class Load:
    """A call that may have missed. `pairs`: where a tensor should have arrived, and some of its numbers."""

    module: weakref.ref[nn.Module]
    pairs: dict[Place, Tensor]
    row: dict[str, Any]


class LoadedWeights:
    """The fact `weights.loaded`: a row per call that left weights behind under other names, once they are used."""

    name: ClassVar[str] = "loaded_weights"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (WeightsLoaded, BackwardBegin, StepBegin)

    names: Names

    def __init__(self) -> None:
        self._waiting: list[Load] = []
        self._rows: list[dict[str, Any]] = []
        self._news = False
        self._calls = 0
        self._step = 0

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, WeightsLoaded):
            self._news = self._news or not self._calls
            self._calls += 1
            self._learn(event)
        elif self._waiting:
            self._look()

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._step = step + 1
        self._write(step, record)

    def finish(self, record: RecordWriter) -> None:
        """What was loaded last may have been evaluated alone."""
        self._look()
        self._write(self._step, record)

    def _write(self, step: int, record: RecordWriter) -> None:
        if self._news:
            for row in self._rows:
                row.setdefault("step", step)
            record.fact("weights.loaded", self._rows)
            self._news = False

    def _learn(self, event: WeightsLoaded) -> None:
        if not self._waiting and not event.amiss:
            return
        places = dict(places_of(event.module))
        arrived = {place for name, place in places.items() if name not in event.missing}
        for load in self._waiting:
            load.pairs = {at: some for at, some in load.pairs.items() if at not in arrived}
        if event.amiss and len(self._waiting) + len(self._rows) < MOST_LOADS:
            load_amiss = amiss(event, places)
            if load_amiss is not None:
                self._waiting.append(load_amiss)

    def _look(self) -> None:
        """Before the next step changes them: which weights that were loaded have other numbers?"""
        waiting, self._waiting = self._waiting, []
        for load in waiting:
            first = next((t for at in load.pairs if (t := at.tensor) is not None), None)
            if load.module() is None or first is None:
                continue  # it is gone, or all of it has arrived since
            if not self.names.has(first):
                self._waiting.append(load)  # nobody has used it yet
                continue
            left = [at for at, some in load.pairs.items() if not stands_at(at, some)]
            # A forward pass moves buffers that have arrived (BatchNorm): parameters decide where there are any.
            if left and any(map(is_parameter, left)) == any(map(is_parameter, load.pairs)):
                self._rows.append(load.row | {"left": len(left)})
                self._news = True


def amiss(event: WeightsLoaded, places: Mapping[str, Place]) -> Load | None:
    """The pairs of a call. None: what is missing is nowhere in the checkpoint."""
    tensors = {name: value for name, value in event.given.items() if isinstance(value, Tensor)}
    given = {n: tuple(t.shape) for n, t in tensors.items() if n in event.unexpected and readable(t)}
    own = {
        name: tuple(tensor.shape)
        for name, place in places.items()
        if name in event.missing and (tensor := place.tensor) is not None and readable(tensor)
    }
    prefixes = common_prefixes(own, given)
    if prefixes is None:
        return None
    pairs = paired(own, given, *prefixes)
    asked = [name for name in places if name in event.missing or name in event.given]
    row = {
        "module": type(event.module).__name__,
        "line": event.line,
        "asked": len(asked),
        "given": len(tensors),
        "loaded": sum(name not in event.missing for name in asked),
        "pairs": len(pairs),
        "own_prefix": prefixes[0],
        "given_prefix": prefixes[1],
    }
    kept = {places[name]: some_values(tensors[other], SOME).cpu() for name, other in pairs.items()}
    return Load(weakref.ref(event.module), kept, row)


def places_of(root: nn.Module) -> Iterator[tuple[str, Place]]:
    """Each parameter and buffer by its name in a state dict. Tied ones have several."""
    for path, module in root.named_modules(remove_duplicate=False):
        owner, prefix = weakref.ref(module), f"{path}." if path else ""
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield prefix + name, Place(owner, name)


def common_prefixes(own: Shapes, given: Shapes) -> tuple[str, str] | None:
    """What most names begin with that are equal after it: `("", "module.")`, `("encoder.", "backbone.")`."""
    ends = defaultdict(list)
    for name, shape in given.items():
        for prefix, end in cuts(name):
            ends[end, shape].append(prefix)
    votes: Counter[tuple[str, str]] = Counter()
    for name, shape in own.items():
        for prefix, end in cuts(name):
            if (end, shape) in ends:
                votes.update((prefix, other) for other in ends[end, shape])
                break
    return max(votes, key=lambda prefixes: votes[prefixes], default=None)


def cuts(name: str) -> Iterator[tuple[str, str]]:
    """`a.b.c` as `("", "a.b.c")`, `("a.", "b.c")` and `("a.b.", "c")`: the longest end first."""
    start = 0
    while start >= 0:
        yield name[:start], name[start:]
        start = name.find(".", start) + 1 or -1


def paired(own: Shapes, given: Shapes, own_prefix: str, given_prefix: str) -> dict[str, str]:
    """The module's names with the checkpoint's, which are equal after these two prefixes."""
    others = {
        name: given_prefix + name.removeprefix(own_prefix)
        for name in own
        if name.startswith(own_prefix)
    }
    return {name: other for name, other in others.items() if given.get(other) == own[name]}


def readable(tensor: Tensor) -> bool:
    """Sharded and quantised ones are classes of their own."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return plain and has_values(tensor)


def is_parameter(place: Place) -> bool:
    return isinstance(place.tensor, nn.Parameter)


def stands_at(place: Place, some: Tensor) -> bool:
    """Whether these numbers are there, whoever wrote them."""
    tensor = place.tensor
    if tensor is None or not readable(tensor):
        return True  # it is not known to be another one
    now = some_values(tensor, SOME).cpu()
    return torch.equal(now, some.to(now.dtype))
