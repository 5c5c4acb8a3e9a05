"""The memory bound: what our copies and tests may take beyond what the script takes itself.

    if nbytes(tensor) <= memory.room(): copy()

A share of the process (its resident memory and torch's on devices), or a size that the user gave. Whoever keeps
copies says how much (`holders`), so a tape that is dropped makes room for a snapshot.
"""

from __future__ import annotations

import contextlib
import ctypes
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
    """The most that the script was seen to take of one memory, our copies and tests not counted."""

    script: int = 0
    process: int = 0
    """Of the process when our last test was over: what lies above it is the script's own."""
    held: int = 0
    """Of that our copies."""

    def left(self, peak: int, used: int, held: int, bound: int) -> int:
        """Bytes up to the script's own peak and the bound above it. What we hold, and what tests left behind, is used."""
        self.script += max(0, peak - self.process - max(0, held - self.held))
        self.process, self.held = peak, held
        return max(0, self.script + bound - used)


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

    @property
    def held(self) -> int:
        return sum(holder() for holder in self.holders)

    def room(self) -> int:
        """Bytes that may still be copied."""
        return max(0, self.bound - self.held)

    def working_room(self) -> tuple[float, float]:
        """(host, devices): bytes that a test may take for a moment, above what is used now.

        What a step needs for its activations is free between two steps: a replay in that place takes nothing more.
        """
        host = self._host.left(host_peak(), host_bytes_used(), self.held, self.bound)
        device = self._device.left(_device_peak(), device_bytes_used(), 0, self.bound)
        return (
            min(host, SHARE_OF_MACHINE * host_bytes_left()),
            min(device, SHARE_OF_MACHINE * device_bytes_left()),
        )

    def given_back(self) -> None:
        """A test is over: a higher peak than before is its own, and what it freed goes back to the system."""
        self._host.process, self._device.process = host_peak(), _device_peak()
        if host_bytes_used() > self._host.script + self.bound // 2:
            trim()


def trim() -> None:
    """Memory that was freed and that the C library keeps for later, back to the system."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def nbytes(tensor: Tensor) -> int:
    """What a copy takes."""
    return tensor.numel() * tensor.element_size()


def _device_peak() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.max_memory_allocated(n) for n in range(torch.cuda.device_count()))


memory = Memory()
