"""One switch that says: what runs now is ours, not the user's. Taps look at it and make no event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_depth = 0


def active() -> bool:
    """True while traindoctor itself calls torch (replays, exams)."""
    return _depth > 0


@contextmanager
def quiet() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
