"""Files that somebody else may have written, read as data: whatever they hold, the answer is a value, an OSError
or a ValueError. Nothing in them runs, none makes us wait, none is larger or deeper than it says it may be.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEGABYTE = 1 << 20
# Settings, states and indices of ours take kilobytes; a tokenizer of 10 million tokens some hundred megabytes.
MOST_BYTES = 512 * MEGABYTE
# What we write is nested four deep; Python's own limit is near 1000 and depends on who calls.
MOST_DEPTH = 64
# Longer numbers are floats to us: everything that we count fits 64 bits.
MOST_DIGITS = 18


def require_file(file: Path) -> os.stat_result:
    """The status of a regular file; a pipe, a socket or a device would let us wait for ever."""
    status = os.stat(file)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(file))
    return status


def is_there(path: Path) -> bool:
    """Whether something lies at a path that a user typed; what cannot be looked at counts as not there."""
    try:
        os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return False
    return True


def read_bytes(file: Path, *, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    try:
        require_file(file)
        # Between the look and the opening somebody may put a pipe there: then it is opened without waiting.
        handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), repr(file)) from error
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        content = opened.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most / MEGABYTE:.0f} MB", str(file))
    return content


def read_text(file: Path, *, most: int = MOST_BYTES) -> str:
    """The same as text; a byte order mark is left out."""
    try:
        return read_bytes(file, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error


def read_json(file: Path, *, most: int = MOST_BYTES) -> Any:
    return parse_json(read_text(file, most=most))


def parse_json(text: str | bytes) -> Any:
    """JSON of bounded depth; a whole number that no 64 bits hold becomes a float."""
    value = without_recursion(lambda: json.loads(text, parse_int=_whole))
    if _is_deeper(value, MOST_DEPTH):
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
    return value


def without_recursion(parse: Callable[[], Any]) -> Any:
    """What `parse` gives; where it goes too deep for Python, a ValueError as for any other nonsense."""
    try:
        return parse()
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep") from error


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


def _is_deeper(value: Any, most: int) -> bool:
    """Level by level, so that no depth is too deep for it."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(inner, (dict, list)) for inner in level)
