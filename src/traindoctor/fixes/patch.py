"""Unified diffs of one file: made from two texts, read as data, and laid over a text."""

import difflib
import re
from dataclasses import dataclass

from traindoctor.errors import TraindoctorError

HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
# Beginnings of lines by which git says more than that lines of a file change.
MORE_THAN_LINES = (
    "rename ",
    "copy ",
    "new file",
    "deleted file",
    "GIT binary",
    "Binary files",
    "old mode",
)
NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True)
class Hunk:
    """`old` at line `start` (from 0) becomes `new`; lines with their newline."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class Patch:
    """A change of one file, as it is named in the diff (without a/ and b/)."""

    file: str
    hunks: tuple[Hunk, ...]


def made(file: str, before: str, after: str) -> str:
    """The unified diff that `git apply` and `patch -p1` understand."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n" for line in lines)


def read(text: str, name: str = "the patch") -> Patch:
    """Raises a TraindoctorError where it is not a unified diff that changes lines of one file."""
    lines, at = text.replace("\r\n", "\n").removesuffix("\n").split("\n"), 0
    files: list[str] = []
    hunks: list[Hunk] = []
    while at < len(lines):
        line = lines[at]
        if line.startswith(MORE_THAN_LINES):
            raise TraindoctorError(f"{name} does more than change lines of a script: {line!r}")
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            files += [_named(line[4:]), _named(lines[at + 1][4:])]
            at += 2
        elif line.startswith("@@"):
            hunk, at = _hunk(lines, at, name)
            hunks.append(hunk)
        else:
            at += 1
    if not files or not hunks:
        raise TraindoctorError(f"{name} is not a unified diff: it needs lines ---, +++ and @@")
    if len(set(files)) > 1:
        both = " and ".join(dict.fromkeys(files))
        raise TraindoctorError(f"{name} names {both}: give a patch of the script alone")
    return Patch(files[0], tuple(hunks))


def applied(patch: Patch, text: str, name: str = "the patch") -> str:
    """The text with the patch. A hunk that moved is found where its lines stand, if they stand in one place only."""
    lines, shifted = _lines(text), 0
    for number, hunk in enumerate(patch.hunks, 1):
        at = _place(hunk, lines, hunk.start + shifted)
        if at is None:
            raise TraindoctorError(
                f"{name} does not apply to {patch.file}: the lines that its change {number} replaces "
                "are not there; make the patch from the script as it is now"
            )
        lines[at : at + len(hunk.old)] = hunk.new
        shifted += len(hunk.new) - len(hunk.old)
    return "".join(lines)


def _place(hunk: Hunk, lines: list[str], expected: int) -> int | None:
    size, old = len(hunk.old), list(hunk.old)
    if lines[expected : expected + size] == old and 0 <= expected <= len(lines):
        return expected
    if not old:
        return None
    found = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == old]
    return found[0] if len(found) == 1 else None


def _hunk(lines: list[str], at: int, name: str) -> tuple[Hunk, int]:
    found = HEADER.match(lines[at])
    if found is None:
        raise TraindoctorError(
            f"{name} is not a unified diff: {lines[at][:60]!r} is no hunk header"
        )
    start, num_old, _, num_new = (1 if part is None else int(part) for part in found.groups())
    old: list[str] = []
    new: list[str] = []
    head, at = lines[at], at + 1
    while len(old) < num_old or len(new) < num_new:
        if at >= len(lines):
            raise TraindoctorError(f"{name} ends in the middle of a change: {head}")
        line, at = lines[at], at + 1
        mark, rest = line[:1] or " ", line[1:] + "\n"
        if mark == "\\":
            continue
        if mark not in " +-":
            raise TraindoctorError(f"{name} is not a unified diff: {line[:60]!r} inside a change")
        if mark in " -":
            old.append(rest)
        if mark in " +":
            new.append(rest)
        if at < len(lines) and lines[at].startswith("\\"):
            for side, touched in ((old, mark in " -"), (new, mark in " +")):
                if touched:
                    side[-1] = side[-1].removesuffix("\n")
            at += 1
    if len(old) > num_old or len(new) > num_new:
        raise TraindoctorError(f"{name} has a change that is not as long as it says: {head}")
    # An empty old side counts from the line after which it inserts.
    return Hunk(start - 1 if num_old else start, tuple(old), tuple(new)), at


def _named(header: str) -> str:
    """`a/train.py` and `train.py<tab>2026-01-01` are both train.py."""
    file = header.partition("\t")[0].strip()
    return file[2:] if file[:2] in ("a/", "b/") else file


def _lines(text: str) -> list[str]:
    """With their newlines; only \\n ends a line, as for Python's own line numbers."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
