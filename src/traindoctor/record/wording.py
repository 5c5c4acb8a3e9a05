"""How counts, long lists and long lines are said, the same everywhere."""

import textwrap
from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """'1 step', '12 steps'"""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def some_of(names: Sequence[str], most: int) -> str:
    """'a, b, c and 4 more'"""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def wrapped(text: str, width: int, lead: str = "", rest: str = "") -> list[str]:
    """Slugs stay whole; a path or a parameter name longer than the window is broken all the same."""
    lines = textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=lead,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return lines or [lead]
