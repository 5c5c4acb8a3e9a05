"""What several fixes look up: the line of a finding, the one thing of a kind."""

from collections.abc import Iterable
from typing import TypeVar

from traindoctor.checks.base import Finding

Thing = TypeVar("Thing")


def line_of(finding: Finding) -> int:
    """The number in 'train.py:54'; 0 where there is none."""
    number = (finding.line or "").rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def only(things: Iterable[Thing]) -> Thing | None:
    """The one of them; None where there are none or several."""
    found = list(things)
    return found[0] if len(found) == 1 else None
