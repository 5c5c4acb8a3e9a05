"""One switch that says: what runs now is ours, not the user's. Taps look at it and make no event."""

from __future__ import annotations

_depth = 0


def active() -> bool:
    """True while traindoctor itself calls torch (replays, exams)."""
    return _depth > 0


class quiet:
    """`with quiet():` at every event: a generator would cost thrice as much."""

    __slots__ = ()

    def __enter__(self) -> None:
        global _depth
        _depth += 1

    def __exit__(self, *_: object) -> None:
        global _depth
        _depth -= 1
