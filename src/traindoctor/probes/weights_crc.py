"""A checksum of the weights, to compare ranks bit for bit without a collective."""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from traindoctor.events import Event, StepBegin
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


class WeightsCrc:
    """`weights.crc` after the step, `weights.crc_before` and the norm of each rank's gradient before it.

    Only where there are several ranks; on one there is nothing to compare with.
    """

    name: ClassVar[str] = "weights_crc"
    gives: ClassVar[tuple[str, ...]] = ("weights.crc", "weights.crc_before", "grad.crc")
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (StepBegin,)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._told = False
        self._before: Tensor | None = None
        self._gradient: Tensor | None = None
        self._looked = False

    def on(self, event: Event, *, due: bool) -> None:
        if not isinstance(event, StepBegin) or self._looked or not sampled(event.step):
            return
        self._looked = True
        parameters = [local(p).detach() for _, p in parameters_of(self.names)]
        gradients = [
            local(p.grad).detach()
            for _, p in parameters_of(self.names)
            if p.grad is not None and not p.grad.is_sparse
        ]
        if event.step == 0:
            self._before = slices(parameters)
        self._gradient = slices(gradients)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._looked:
            after = slices([local(p).detach() for _, p in parameters_of(self.names)])
            for name, numbers in (
                ("weights.crc_before", self._before),
                ("grad.crc", self._gradient),
                ("weights.crc", after),
            ):
                if numbers is not None:
                    self._later.put(step, numbers, partial(write, record, name, step))
            if not self._told:
                record.fact("ranks", facts(self.names))
                self._told = True
        self._before, self._gradient, self._looked = None, None, False
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def sampled(step: int) -> bool:
    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return several and (step < FIRST_STEPS or step % EVERY == 0)


def slices(tensors: list[Tensor]) -> Tensor | None:
    """The first values of each tensor, one behind the other."""
    parts = [t.flatten()[:SLICE].float() for t in tensors if t.numel()]
    if not parts:
        return None
    return torch.cat([part.to(parts[0].device) for part in parts])


def write(record: RecordWriter, name: str, step: int, numbers: Tensor) -> None:
    record.scalar(name, step, zlib.crc32(numbers.float().numpy().tobytes()))


def facts(names: Names) -> dict[str, object]:
    """How many ranks there are, and whether parameters are sharded: then equal weights are not to be expected."""
    sharded = sum(hasattr(p, "placements") for _, p in parameters_of(names))
    return {"rank": dist.get_rank(), "world": dist.get_world_size(), "sharded": sharded}
