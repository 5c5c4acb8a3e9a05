"""The script's line that a finding names, with the lines around it: from the text that the record keeps.

No file is read: the script may have changed since, or lie on another machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Lines before and after the one that is named.
AROUND = 2


def excerpt(script: Any, line: str | None) -> list[tuple[int, str, bool]]:
    """Number, text and whether it is the line meant; empty where the record does not hold that file.

    `script`: the fact `script.text`; `line`: "train.py:54".
    """
    if not isinstance(script, Mapping) or line is None:
        return []
    name, _, number = line.rpartition(":")
    text, path = script.get("text"), script.get("path")
    if not isinstance(text, str) or not isinstance(path, str) or not number.isdigit():
        return []
    lines, at = text.split("\n"), int(number)
    if Path(name).name != Path(path).name or not 1 <= at <= len(lines):
        return []
    first, last = max(1, at - AROUND), min(len(lines), at + AROUND)
    shown = {n: lines[n - 1].expandtabs(4).rstrip() for n in range(first, last + 1)}
    filled = [len(one) - len(one.lstrip()) for one in shown.values() if one]
    indent = min(filled, default=0)
    return [(n, one[indent:], n == at) for n, one in shown.items() if one or n == at]
