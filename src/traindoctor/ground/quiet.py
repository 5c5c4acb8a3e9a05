"""One switch that says: what runs now is ours, not the user's. Taps look at it and make no event."""

from __future__ import annotations

import threading

_depth = 0


class _Mine(threading.local):
    depth = 0


_mine = _Mine()


def active() -> bool:
    """True while traindoctor itself calls torch (replays, exams)."""
    return _depth > 0


def active_here() -> bool:
    """The same of this thread alone: other threads of the script go on meanwhile."""
    return _mine.depth > 0


def reset_in_child() -> None:
    """A forked child runs nothing of ours, whatever its parent was at."""
    global _depth
    _depth = _mine.depth = 0


class quiet:
    """`with quiet():` at every event: a generator would cost thrice as much."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth
        _depth += 1
        _mine.depth += 1

    def __exit__(self, *_: object) -> None:
        global _depth
        _depth -= 1
        _mine.depth -= 1
