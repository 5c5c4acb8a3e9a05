"""How numbers and lists are said, the same in every text report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from traindoctor.checks.base import Clear, Evidence, Finding, NotApplicable, NotJudged


def number(value: float | str | None) -> str:
    """Four digits that matter: 3.142, 12800, 1.2e-07."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return str(int(value))
    return f"{value:.4g}"


def proof(item: Evidence) -> str:
    """'norm left over before backward: 3.2 (expected 0, noise 1e-07) at step 4'"""
    inside = []
    if item.expected is not None:
        inside.append(f"expected {number(item.expected)}")
    if item.noise:
        inside.append(f"noise {number(item.noise)}")
    text = f"{item.measure}: {number(item.value)}"
    if inside:
        text += f" ({', '.join(inside)})"
    return text if item.step is None else f"{text} at step {item.step}"


def place(finding: Finding) -> str | None:
    """Where it is: line of the script and module or parameter, as far as known."""
    line = finding.line
    if line is not None and "/" in line:
        line = Path(line).name
    parts = [part for part in (line, finding.where) if part]
    return ", ".join(parts) or None


def by_reason(items: Iterable[NotJudged | NotApplicable]) -> list[tuple[str, list[str]]]:
    """Causes gathered by the reason, in the order of their importance."""
    return _gathered((item.reason, item.cause) for item in items)


def by_test(items: Iterable[Clear]) -> list[tuple[str, list[str]]]:
    """Causes that are ruled out, gathered by what ruled them out, the largest group first."""
    groups = _gathered((item.by, item.cause) for item in items)
    return sorted(groups, key=lambda group: (-len(group[1]), group[0]))


def _gathered(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for reason, cause in pairs:
        groups.setdefault(reason, []).append(cause)
    return list(groups.items())


def listed(names: Sequence[str], most: int) -> str:
    """'a, b, c and 4 more'"""
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
