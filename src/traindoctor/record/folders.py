"""The folder of a run: when it was written last, whether a process still writes, renaming and deleting it.

Deleted is what traindoctor makes in such a folder and nothing else: `--out .` records a run beside somebody's sources.
"""

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from traindoctor.errors import RecordError, TraindoctorError
from traindoctor.record.stored_ranks import open_record
from traindoctor.record.text import readable
from traindoctor.record.wording import some_of

# A run that has not said that it ended counts as running until it has written nothing for so long.
SILENT_SECONDS = 120
# File systems take no more bytes in one name.
LONGEST_NAME = 255
# Windows refuses these, and a slash would be another folder.
NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')
# What a run, the trainer and a report leave in the folder; records of an earlier run, of a further process.
OURS = re.compile(
    r"record-\d{1,9}\.sqlite(-wal|-shm|-journal)?|report\.html|verdict\.json|config\.json|tokenizer\.json"
    r"|metrics\.csv|data|checkpoints|samples|tensorboard|earlier-\d+|process-\d+"
)
# Parts of a run that are runs as well; they go with it.
PARTS = re.compile(r"(earlier|process)-\d+")
MOST_NAMED = 3


class NotDone(TraindoctorError):
    """A run that stays as it is, and why."""


@dataclass(frozen=True)
class Contents:
    """What would be deleted."""

    files: int
    bytes: int
    entries: tuple[str, ...]
    """The names in the folder, as they are."""


def contents(folder: Path) -> Contents:
    files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    entries = tuple(sorted(entry.name for entry in folder.iterdir()))
    return Contents(len(files), sum(file.stat().st_size for file in files), entries)


def rename_run(folder: Path, name: str) -> Path:
    """Gives the folder another name beside the others; it stays where it is."""
    _require_name(name)
    _require_idle(folder, "renamed")
    target = folder.with_name(name)
    # Windows and macOS take "Run" for "run": such a change is no clash with itself.
    if target.exists() and not target.samefile(folder):
        raise NotDone(f"there is already something called {readable(name)!r}: choose another name")
    try:
        folder.rename(target)
    except OSError as error:
        raise NotDone(f"{readable(folder.name)} cannot be renamed: {error.strerror}") from None
    return target


def delete_run(folder: Path) -> None:
    """Removes the folder of a run that has ended, if it holds nothing but what belongs to the run."""
    _require_idle(folder, "deleted")
    if folder.is_symlink():
        raise NotDone(f"{readable(folder.name)} is a link to another folder: remove it by hand")
    others = sorted(
        f"{entry.name}/" if entry.is_dir() else entry.name
        for entry in folder.iterdir()
        if not OURS.fullmatch(entry.name)
    )
    if others:
        named = some_of([readable(name) for name in others], MOST_NAMED)
        raise NotDone(
            f"{readable(folder.name)} also holds {named}, which traindoctor did not make: "
            "move that away, or delete the folder by hand"
        )
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise NotDone(f"{readable(folder.name)} cannot be deleted: {error.strerror}") from None


def is_running(folder: Path) -> bool:
    """Whether a process may still write here: one of its ranks has no end, and they wrote a short while ago."""
    return any(_is_written(one) for one in (folder, *_parts(folder)))


def _is_written(folder: Path) -> bool:
    written = last_written(folder)
    if not written or time.time() - written > SILENT_SECONDS:
        return False
    try:
        return any(rank.fact("run.ended") is None for rank in open_record(folder).ranks)
    except RecordError:
        return False  # what cannot be read is not being written


def _parts(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if PARTS.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink():
            yield entry


def fingerprint(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of each record and its write-ahead log. An empty log is a reader's, not the run's."""
    found = []
    for file in sorted([*folder.glob("record-*.sqlite"), *folder.glob("record-*.sqlite-wal")]):
        try:
            status = file.stat()
        except OSError:  # a log vanishes when its writer closes
            continue
        if status.st_size:
            found.append((file.name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def last_written(folder: Path) -> float:
    """When a record in the folder changed last, in seconds since 1970; 0 without one."""
    return max((nanoseconds for _, nanoseconds, _ in fingerprint(folder)), default=0) / 1e9


def _require_idle(folder: Path, done: str) -> None:
    if is_running(folder):
        raise NotDone(
            f"{readable(folder.name)} is still running: it can be {done} when it has ended"
        )


def _require_name(name: str) -> None:
    wrong = NOT_IN_A_NAME.search(name)
    if not name.strip():
        raise NotDone("the new name is empty: give one")
    if wrong:
        shown = repr(wrong[0]) if wrong[0].isprintable() else "a control character"
        raise NotDone(f"a run's name cannot contain {shown}: choose another name")
    if name != name.strip() or name.startswith((".", "-", "~")) or name.endswith("."):
        raise NotDone(
            "a run's name cannot begin with a dot, a dash or ~, end with a dot, or have spaces around it: "
            "choose another name"
        )
    if PARTS.fullmatch(name):
        raise NotDone(f"{name} is what traindoctor calls a part of a run: choose another name")
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise NotDone("the new name is not valid text: choose another name") from None
    if length > LONGEST_NAME:
        raise NotDone(f"the new name has {length} bytes, {LONGEST_NAME} are possible: shorten it")
