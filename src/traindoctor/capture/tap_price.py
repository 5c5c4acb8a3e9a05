"""What a tap adds to a call that it only hands on. No clock of ours can stand around that: it is sampled beside it."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

from torch.compiler import is_compiling

from traindoctor.capture.hub import hub

SAMPLES = 31
"""A step gives one. In a loop the processor would know the code by heart, between torch's functions it does not."""

_seen: deque[float] = deque(maxlen=SAMPLES)


def tap_seconds() -> float:
    """Of one call; the median of what was seen so far."""
    began = time.perf_counter()
    _bare(1, 2)
    between = time.perf_counter()
    _tap(1, 2)
    _seen.append(max(0.0, time.perf_counter() - between - (between - began)))
    return median(_seen)


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
