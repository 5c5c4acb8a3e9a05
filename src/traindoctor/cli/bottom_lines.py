"""A few lines at the bottom of the terminal that stay while a script writes above them.

The terminal itself keeps the two apart: its scrolling region ends above our lines, so whatever the script (or a
program it starts) prints scrolls there. Its streams are not wrapped: isatty, bytes and order stay its own.
"""

import os
import sys
from typing import IO

# DEC control sequences that every terminal of today knows.
SAVE, RESTORE = "\x1b7", "\x1b8"
DOWN = "\x1bD"  # one line down in the same column; scrolls at the bottom
WHOLE_SCREEN = "\x1b[r"
CLEAR_LINE, CLEAR_BELOW = "\x1b[2K", "\x1b[J"
# A smaller window belongs to the script alone.
FEWEST_ROWS = 8


def can_stay(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal that has a scrolling region."""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown") or sys.platform == "win32":
        return False
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).lines >= FEWEST_ROWS
    except (OSError, ValueError, AttributeError):
        return False


class BottomLines:
    """`show(lines)` draws them; `close()` gives the terminal back as it was."""

    def __init__(self, stream: IO[str], count: int) -> None:
        # A copy: the script may redirect or close its own.
        self._handle = os.dup(stream.fileno())
        self._count = count
        self._size: os.terminal_size | None = None

    @property
    def width(self) -> int:
        return self._measured().columns

    def show(self, lines: list[str]) -> None:
        """Draws `lines`, no wider than the terminal, in one write."""
        size = self._measured()
        if size.lines < FEWEST_ROWS:
            self._release()
            return
        out = ""
        if size != self._size:
            self._release()
            # Make room, then let everything scroll above it. Setting the region moves the cursor: it is put back.
            below = size.lines - self._count
            out = DOWN * self._count + f"\x1b[{self._count}A{SAVE}\x1b[1;{below}r{RESTORE}"
            self._size = size
        first = size.lines - self._count + 1
        drawn = (f"\x1b[{first + i};1H{CLEAR_LINE}{line}" for i, line in enumerate(lines))
        self._write(out + SAVE + "".join(drawn) + RESTORE)

    def close(self) -> None:
        self._release()
        os.close(self._handle)

    def _release(self) -> None:
        if self._size is not None:
            first = self._size.lines - self._count + 1
            self._size = None
            self._write(f"{SAVE}{WHOLE_SCREEN}\x1b[{first};1H{CLEAR_BELOW}{RESTORE}")

    def _measured(self) -> os.terminal_size:
        return os.get_terminal_size(self._handle)

    def _write(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[os.write(self._handle, data) :]
