"""How numbers and lists are said, the same in every text report."""

import math
from collections.abc import Iterable
from pathlib import Path

from traindoctor.checks.base import NOT_YET, Clear, Evidence, Finding, NotApplicable, NotJudged

# Noise under this share of what was measured is no error anybody would ask about.
NO_NOISE = 1e-9
# A measure that is a z-score: "labels within a batch are more alike than chance, z".
Z_SCORE = ", z"
# Ends the measure of an experiment: what stands beside it is the same run without the change.
AS_WITHOUT = " (expected: as without it)"


def number(value: float | str | None) -> str:
    """Three digits that matter: 3.14, 12800, 1.2e-7."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return str(int(value))
    return _rounded(float(value), 3)


def _rounded(value: float, digits: int) -> str:
    """No exponent between a ten-thousandth and ten million, and no zeros in one: 0.0833, 614, 1e-7."""
    if 100 <= abs(value) < 1e7:
        return f"{value:.0f}"
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def proof(item: Evidence) -> str:
    """'norm left over before backward: 3.2 (expected 0) at step 4'"""
    if item.measure.endswith(Z_SCORE):  # what chance gives needs no telling
        return f"{item.measure.removesuffix(Z_SCORE)} (z = {number(item.value)})"
    text = f"{item.measure.removesuffix(AS_WITHOUT)}: {number(item.value)}"
    if item.measure.endswith(AS_WITHOUT):
        text += f" (without this change: {number(item.expected)})"
    elif item.expected is not None:
        text += f" (expected {expected(item)})"
    return text if item.step is None else f"{text} at step {item.step}"


def expected(item: Evidence) -> str:
    """'0 ± 1e-6': what should have been measured and how far noise alone takes it, where that matters."""
    text = number(item.expected)
    if not item.noise or isinstance(item.value, str) or isinstance(item.expected, str):
        return text
    scale = max(abs(float(item.value or 0.0)), abs(float(item.expected or 0.0)))
    if item.noise < NO_NOISE * scale:
        return text
    return f"{text} ± {_rounded(item.noise, 1 if item.noise < 0.01 else 2)}"


def place(finding: Finding) -> str | None:
    """Where it is: line of the script and module or parameter, as far as known."""
    line = finding.line
    if line is not None and "/" in line:
        line = Path(line).name
    parts = [part for part in (line, finding.where) if part]
    return ", ".join(parts) or None


def by_reason(items: Iterable[NotJudged | NotApplicable]) -> list[tuple[str, list[str]]]:
    """Causes gathered by the reason, in the order of their importance."""
    return _gathered((reason(item), item.cause) for item in items)


def reason(item: NotJudged | NotApplicable) -> str:
    """Of what was put off until there was no time for it, that is the reason."""
    if isinstance(item, NotJudged) and item.why == "no-time":
        return "no time was left"
    return "the run ended first" if item.reason == NOT_YET else item.reason


def by_test(items: Iterable[Clear]) -> list[tuple[str, list[str]]]:
    """Causes that are ruled out, gathered by what ruled them out, the largest group first."""
    groups = _gathered((item.by, item.cause) for item in items)
    return sorted(groups, key=lambda group: (-len(group[1]), group[0]))


def _gathered(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for why, cause in pairs:
        groups.setdefault(why, []).append(cause)
    return list(groups.items())
