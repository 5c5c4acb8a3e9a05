"""The memory bound: what our copies and tests may take beyond what the script takes itself.

    if nbytes <= memory.room(): copy()

A share of the process (its resident memory and what torch holds on devices), or a size that the user gave. Whoever
keeps copies says how much (`holders`), so a tape that is dropped makes room for a snapshot.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch

SHARE, LEAST = 0.10, 256 << 20
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Memory:
    """One for the process, as the border is."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """What the user allows, in bytes."""
        self.holders: list[Callable[[], int]] = []
        self._peak = 0
        """The most that the script was seen to take, without us."""
        self._after_ours = 0
        """The process's peak when we last gave our own memory back: what lies above it is the script's."""

    @property
    def bound(self) -> int:
        if self.limit is not None:
            return self.limit
        return max(LEAST, int(SHARE * (resident() + on_devices())))

    @property
    def held(self) -> int:
        return sum(holder() for holder in self.holders)

    def room(self) -> int:
        """Bytes that may still be copied."""
        return max(0, self.bound - self.held)

    def working_room(self) -> int:
        """Bytes above what the process has now that a test may take for a moment: up to the script's own peak, and the bound.

        What a step needs for its activations is free between two steps: a replay of it takes nothing more.
        """
        highest = peak()
        if highest > self._after_ours:
            self._peak = highest
        return max(0, self._peak - resident() - on_devices()) + self.room()

    def given_back(self) -> None:
        """A test is over: a higher peak than before is its own."""
        self._after_ours = peak()


def resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    return _status_of("VmRSS")


def peak() -> int:
    """The most this process ever had, devices included."""
    devices = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else 0
    return _status_of("VmHWM") + devices


def on_devices() -> int:
    """Bytes that torch holds on the current CUDA device: nothing is asked where CUDA is not in use."""
    return torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0


def _status_of(field: str) -> int:
    if sys.platform != "linux":
        return 0
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field):
                return int(line.split()[1]) << 10
    return 0


memory = Memory()
