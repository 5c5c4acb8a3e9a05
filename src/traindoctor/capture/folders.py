"""Where a run is recorded. Imports nothing heavy: the script's own imports come first."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from traindoctor.capture import launchers
from traindoctor.errors import RecordError, TraindoctorError
from traindoctor.private_files import make_private_file, make_private_folder

RUNS = Path("runs")
# No mistake in the path, so no reason to keep the script from running.
DISK_SAYS_NO = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
)


def new_folder(name: str, out: str | None) -> Path:
    """The folder of a new run: `out`, or a new one under `runs/`. Older records in it are moved aside.

    A path that cannot be a folder is a mistake; a disk that is full or read-only is a RecordError, and a run may do without.
    """
    if out is None:
        # Each rank runs this line.
        stamp = launchers.job() or time.strftime("%Y%m%d-%H%M%S")
        folder = RUNS / f"{name}-{stamp}"
    else:
        folder = Path(out)
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise TraindoctorError(f"--out must be a folder, {folder} is a file; choose another")
    try:
        make_private_folder(folder)
        if launchers.rank() == 0:
            _move_aside(folder)
    except OSError as error:
        raise (RecordError if error.errno in DISK_SAYS_NO else TraindoctorError)(
            f"cannot make the folder {folder}: {error.strerror}; choose another with --out"
        ) from None
    return folder


def _move_aside(folder: Path) -> None:
    """A run never writes into the record of another one."""
    old = sorted(folder.glob("record-*.sqlite*"))
    if not old:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    (folder / f"earlier-{number}").mkdir()
    for file in old:
        file.rename(folder / f"earlier-{number}" / file.name)


def claim(folder: Path, rank: int) -> Path:
    """The folder to record in: the run's, or one of its own where another process of this rank was first."""
    from traindoctor.record import record_path

    try:
        make_private_folder(folder)
        made = make_private_file(record_path(folder, rank))
        return folder if made else folder / f"process-{os.getpid()}"
    except OSError:
        return folder  # the writer says what is wrong
