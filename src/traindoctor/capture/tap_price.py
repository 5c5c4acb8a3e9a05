"""What a tap adds to a call that it only hands on. No clock of ours can stand around that: it is sampled beside it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

from torch import is_grad_enabled
from torch.compiler import is_compiling

from traindoctor.capture.hub import hub

SAMPLES = 31
"""A step gives one. In a loop the processor would know the code by heart, between torch's functions it does not."""

Call = Callable[[int, int], None]


class TapPrice:
    """Of one call in a step that is heard, and in one that passes in silence: the medians of what was seen so far."""

    def __init__(self) -> None:
        self._seen: dict[Call, deque[float]] = {}

    def heard(self) -> float:
        return self._sample(_tap)

    def asleep(self) -> float:
        return self._sample(_tap_asleep)

    def _sample(self, tap: Call) -> float:
        seen = self._seen.setdefault(tap, deque(maxlen=SAMPLES))
        began = time.perf_counter()
        _bare(1, 2)
        between = time.perf_counter()
        tap(1, 2)
        seen.append(max(0.0, time.perf_counter() - between - (between - began)))
        return median(seen)


def _bare(*args: int, **kwargs: int) -> None:
    """Stands for the function of torch."""


def _tap(*args: int, **kwargs: int) -> None:
    """Stands for the replacements in taps/module.py and taps/reads.py, which are called most often."""
    if is_compiling():
        return _bare(*args, **kwargs)
    if not hub.attentive:
        return _bare(*args, **kwargs)
    hub.num_inner += 1
    return _bare(*args, **kwargs)


def _tap_asleep(*args: int, **kwargs: int) -> None:
    """Stands for their shorter bodies."""
    if is_grad_enabled():
        return _bare(*args, **kwargs)
    return _tap(*args, **kwargs)
