"""The text of two scripts, line by line."""

import difflib
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from traindoctor.compare.run_rows import dict_of
from traindoctor.record import Record

# Longer texts, or those with more equal pairs of lines, take too long to be laid beside each other.
MOST_LINES, MOST_PAIRS = 4_000, 50_000
CONTEXT = 3


@dataclass(frozen=True)
class Scripts:
    """The text of both scripts."""

    state: Literal["same", "differ", "unknown"]
    said: str
    """In a sentence."""
    diff: tuple[str, ...] = ()
    """Lines of a unified diff."""


def scripts(a: Record, b: Record) -> Scripts:
    texts = [dict_of(record.fact("script.text")) for record in (a, b)]
    hashes = [one.get("sha256") for one in texts]
    without = [name for name, one in zip("AB", hashes) if not isinstance(one, str)]
    if without:
        whose = "either script" if len(without) == 2 else f"{without[0]}'s script"
        return Scripts("unknown", f"the record does not hold the text of {whose}")
    first, second = (one.get("text") for one in texts)
    if not isinstance(first, str) or not isinstance(second, str):
        if hashes[0] == hashes[1]:
            return Scripts("same", "the scripts are the same")
        return Scripts("differ", "the scripts differ; the text of one was too long to be recorded")
    hidden = any(one.get("redacted") for one in texts)
    if first == second:
        return Scripts(
            "same", "the scripts are the same" + (" as far as they were recorded" if hidden else "")
        )
    if first.endswith("\n") and second.endswith("\n"):
        first, second = first[:-1], second[:-1]
    lines = first.split("\n"), second.split("\n")
    if max(map(len, lines)) > MOST_LINES or _pairs(*lines) > MOST_PAIRS:
        return Scripts(
            "differ", "the scripts differ; they are too long to be compared line by line"
        )
    before, after = (f"{mark}: {one.get('path', 'script')}" for mark, one in zip("AB", texts))
    diff = difflib.unified_diff(lines[0], lines[1], before, after, n=CONTEXT, lineterm="")
    return Scripts("differ", "the scripts differ", tuple(diff))


def _pairs(a: list[str], b: list[str]) -> int:
    """Pairs of equal lines that difflib would go through; lines that are everywhere are none."""
    often = len(b) // 100 + 1 if len(b) >= 200 else len(b)
    counts = Counter(b)
    return sum(n for line in a if (n := counts[line]) <= often)
