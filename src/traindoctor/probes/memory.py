"""Memory of the process and of the device."""

from __future__ import annotations

import os
import sys
from typing import ClassVar

import torch

from traindoctor.events import Event, RunEnded
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Memory:
    """`memory.rss` and, where CUDA is in use, `memory.cuda` (bytes allocated by torch)."""

    name: ClassVar[str] = "memory"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (RunEnded,)

    def __init__(self) -> None:
        # Kept open: one pread is a microsecond, opening the file ten.
        self._statm = os.open("/proc/self/statm", os.O_RDONLY) if sys.platform == "linux" else None
        self._pid = os.getpid()

    def on(self, event: Event, *, due: bool) -> None:
        """Nothing to hear: memory is read when a step closes."""

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        rss = self._rss()
        if rss is not None:
            record.scalar("memory.rss", step, rss)
        if torch.cuda.is_initialized():
            record.scalar("memory.cuda", step, torch.cuda.memory_allocated())

    def _rss(self) -> int | None:
        if self._statm is None:
            return None
        if self._pid != os.getpid():  # a forked child reads its own
            self._pid, self._statm = os.getpid(), os.open("/proc/self/statm", os.O_RDONLY)
        return int(os.pread(self._statm, 64, 0).split()[1]) * PAGE

    def finish(self, record: RecordWriter) -> None:
        if self._statm is not None:
            os.close(self._statm)
            self._statm = None
