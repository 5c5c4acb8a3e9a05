"""What our work costs on a CUDA device: kernels run on after the call that queued them, where no host clock sees them."""

from __future__ import annotations

from collections import deque

import torch

from traindoctor.ground.torch_private import uses_cuda

# Pairs of events that wait for the device; more than that are not worth their memory.
MOST_WAITING = 256


class DeviceClock:
    """`begin()` and `end()` around our work; `extra()` is what the device took beyond the host's own time.

    Between two events lies our kernels' time where the device is behind, and the host's where it waits for us: that
    is on the account already, so the larger of the two counts.
    """

    def __init__(self) -> None:
        self._began: torch.cuda.Event | None = None
        self._waiting: deque[tuple[torch.cuda.Event, torch.cuda.Event, float]] = deque(
            maxlen=MOST_WAITING
        )

    def begin(self) -> None:
        self._began = _marked() if uses_cuda() else None

    def end(self, host_seconds: float) -> None:
        if self._began is not None:
            self._waiting.append((self._began, _marked(), host_seconds))
            self._began = None

    def extra(self) -> float:
        """Seconds, of the work whose end the device has reached; nothing is waited for."""
        extra = 0.0
        while self._waiting and self._waiting[0][1].query():
            began, ended, host = self._waiting.popleft()
            extra += max(0.0, began.elapsed_time(ended) / 1e3 - host)
        return extra


def _marked() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
