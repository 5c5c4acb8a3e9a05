"""The random state at the first training pass of a step: one that comes back was seeded again inside the loop."""

from __future__ import annotations

import random
import sys
import zlib
from typing import ClassVar

import torch

from traindoctor.events import Event, ForwardBegin
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# A state that comes back does so soon: later steps are not looked at.
STEPS = 256
# Words of a Mersenne twister that are compared.
WORDS = 4


class RandomState:
    """`random.crc`: a crc32 of the states that batches are drawn from (torch's, Python's, NumPy's)."""

    name: ClassVar[str] = "random_state"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin,)

    def __init__(self) -> None:
        self._crc: int | None = None
        self._done = False

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad:
            if self._crc is None and not self._done:
                self._crc = state_crc()

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._crc is not None:
            record.scalar("random.crc", step, float(self._crc))
        self._crc = None
        self._done = step >= STEPS


def state_crc() -> int:
    crc = zlib.crc32(torch.get_rng_state().numpy().tobytes())
    words = random.getstate()[1]
    # The first words tell one seed from another, the last one is the place in the sequence.
    crc = zlib.crc32(repr((*words[:WORDS], words[-1])).encode(), crc)
    if "numpy.random" in sys.modules:
        import numpy as np

        _, keys, place, *_ = np.random.get_state()
        crc = zlib.crc32(repr((*keys[:WORDS], place)).encode(), crc)
    return crc
