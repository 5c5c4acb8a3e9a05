"""What ranks are compared by, without a collective: checksums of weights and gradients, bit for bit, and how much gradient
each rank has before and after the ranks exchange theirs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from traindoctor.events import BackwardEnd, Event, StepBegin
from traindoctor.ground.names import local
from traindoctor.probes.base import Cost, Later, parameters_of
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

# Values of each parameter that go into the checksum: replicas that differ, differ everywhere.
SLICE = 256
# Ranks can be compared only at steps that all of them sample: chosen by number, never by credit.
FIRST_STEPS = 4
EVERY = 10
# Before so many first steps the weights are compared one by one: ranks that average them now and then agree there.
IN_A_ROW = 64
# The fixed direction along which gradients are measured: numbers between -1 and 1 without a period, the same on every rank.
TURN = 2.399963


class WeightsCrc:
    """`weights.crc` after the step, `weights.crc_before` and `grad.crc`, of the gradient that it gets, before it; each also
    by parameter. `grad.along` of that gradient and `grad.along_own`, as backward left it: their parts along one direction,
    which add up over ranks as gradients do.

    Only where there are several ranks; on one there is nothing to compare with.
    """

    name: ClassVar[str] = "weights_crc"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (BackwardEnd, StepBegin)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._told = False
        self._before: Slices | None = None
        self._gradient: Slices | None = None
        self._own: Slices | None = None
        self._looked = False
        self._next = 0

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BackwardEnd) and sampled(self._next) and several_ranks():
            self._own = self._gradients()
        if not isinstance(event, StepBegin) or self._before is not None or not several_ranks():
            return
        self._looked = sampled(event.step)
        if not self._looked and event.step >= IN_A_ROW:
            return
        self._before = Slices.of({n: p.detach() for n, p in parameters_of(self.names)})
        if self._looked:
            self._gradient = self._gradients()

    def _gradients(self) -> Slices | None:
        return Slices.of(
            {
                n: None if p.grad is None or p.grad.is_sparse else p.grad.detach()
                for n, p in parameters_of(self.names)
            }
        )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        after = None
        if self._looked:
            after = Slices.of({n: p.detach() for n, p in parameters_of(self.names)})
            if not self._told:
                record.fact("ranks", facts(self.names))
                self._told = True
        for name, cut in (
            ("weights.crc_before", self._before),
            ("grad.crc", self._gradient),
            ("weights.crc", after),
        ):
            if cut is not None:
                self._later.put(step, cut.numbers, partial(write, record, name, step, cut.lengths))
        if self._looked:
            for name, cut in (("grad.along_own", self._own), ("grad.along", self._gradient)):
                if cut is not None:
                    put = partial(write_along, record, name, step, cut.lengths)
                    self._later.put(step, cut.numbers, put)
        self._before, self._gradient, self._own, self._looked = None, None, None, False
        self._next = step + 1
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


@dataclass(frozen=True)
class Slices:
    """The first values of each tensor, one behind the other."""

    lengths: Mapping[str, int]
    numbers: Tensor

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor | None]) -> Slices | None:
        parts = {
            name: torch.empty(0) if t is None else local(t).flatten()[:SLICE].float()
            for name, t in tensors.items()
        }
        some = [part for part in parts.values() if part.numel()]
        if not some:
            return None
        joined = torch.cat([part.to(some[0].device) for part in some])
        return cls({name: part.numel() for name, part in parts.items()}, joined)


def several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sampled(step: int) -> bool:
    return step < FIRST_STEPS or step % EVERY == 0


def write(
    record: RecordWriter, name: str, step: int, lengths: Mapping[str, int], numbers: Tensor
) -> None:
    values = numbers.float().numpy()
    record.scalar(name, step, zlib.crc32(values.tobytes()))
    ends = np.cumsum(list(lengths.values()))
    each = [telling_crc(part) for part in np.split(values, ends[:-1])]
    record.layers(f"{name}_by_parameter", step, list(lengths), each)


def write_along(
    record: RecordWriter, name: str, step: int, lengths: Mapping[str, int], numbers: Tensor
) -> None:
    """A parameter without gradient, as on a rank that did not use it, moves no other one's place in the direction."""
    places = [number * SLICE + np.arange(length) for number, length in enumerate(lengths.values())]
    direction = np.cos(1 + TURN * np.concatenate(places))
    record.scalar(name, step, float(numbers.double().numpy() @ direction))


def telling_crc(values: np.ndarray) -> float:
    """Of a single tensor, as far as a float32 holds it; NaN where all its values are one: equal zeros prove nothing."""
    if not values.size or (values == values[0]).all():
        return math.nan
    return float(zlib.crc32(values.tobytes()) & 0xFFFFFF)


def facts(names: Names) -> dict[str, object]:
    """How many ranks there are, and whether parameters are sharded: then equal weights are not to be expected."""
    sharded = sum(hasattr(p, "placements") for _, p in parameters_of(names))
    return {"rank": dist.get_rank(), "world": dist.get_world_size(), "sharded": sharded}
