"""The memory bound: what our copies and tests may take beyond what the script takes itself.

    if nbytes(tensor) <= memory.room(): copy()

A share of the process (its resident memory and torch's on devices), or a size that the user gave. Whoever keeps
copies says how much (`holders`), so a tape that is dropped makes room for a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.ground.memory_left import (
    device_bytes_left,
    device_bytes_used,
    host_bytes_left,
    host_bytes_used,
    host_peak,
)

SHARE, LEAST = 0.10, 256 << 20
# Of what the machine can still give a test may take so much, whatever the bound says.
SHARE_OF_MACHINE = 0.5


@dataclass
class Peak:
    """The most that the script was seen to take of one memory, our tests not counted."""

    script: int = 0
    process: int = 0
    """Of the process when our last test was over: what lies above it is the script's own."""

    def unused(self, peak: int, used: int) -> int:
        """Bytes that the script needs within a step and does not need now."""
        if peak > self.process:
            self.script = peak
        return max(0, self.script - used)


class Memory:
    """One for the process, as the border is."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """What the user allows, in bytes."""
        self.holders: list[Callable[[], int]] = []
        self._host, self._device = Peak(), Peak()

    @property
    def bound(self) -> int:
        if self.limit is not None:
            return self.limit
        return max(LEAST, int(SHARE * (host_bytes_used() + device_bytes_used())))

    def room(self) -> int:
        """Bytes that may still be copied."""
        return max(0, self.bound - sum(holder() for holder in self.holders))

    def working_room(self) -> tuple[float, float]:
        """(host, devices): bytes that a test may take for a moment, above what is used now.

        What a step needs for its activations is free between two steps: a replay in that place takes nothing more.
        """
        room = self.room()
        host = self._host.unused(host_peak(), host_bytes_used()) + room
        device = self._device.unused(_device_peak(), device_bytes_used()) + room
        return (
            min(host, SHARE_OF_MACHINE * host_bytes_left()),
            min(device, SHARE_OF_MACHINE * device_bytes_left()),
        )

    def given_back(self) -> None:
        """A test is over: a higher peak than before is its own."""
        self._host.process, self._device.process = host_peak(), _device_peak()


def nbytes(tensor: Tensor) -> int:
    """What a copy takes."""
    return tensor.numel() * tensor.element_size()


def _device_peak() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.max_memory_allocated(n) for n in range(torch.cuda.device_count()))


memory = Memory()
