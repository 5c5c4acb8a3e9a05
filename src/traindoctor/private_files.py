"""Folders and files that only their owner may read: 0700 and 0600, from the first moment on and whatever the umask is.

A folder or a file that is already there keeps the mode that its owner chose.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER, FILE = 0o700, 0o600


def make_private_folder(folder: Path) -> None:
    """Makes `folder` where there is none; folders above it that are missing as well are ordinary ones."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=FOLDER)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return
    # The umask could only take more away.
    folder.chmod(FOLDER)


def make_private_file(file: Path) -> bool:
    """Makes an empty `file`; False where there is one already."""
    try:
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE)
    except FileExistsError:
        return False
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(handle, FILE)
    finally:
        os.close(handle)
    return True
