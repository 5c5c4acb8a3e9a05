"""Files that are either whole or not there: write beside, fsync, rename."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traindoctor.errors import TraindoctorError

TEMPORARY = ".tmp-"


@contextlib.contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turns a full disk, a read-only folder or a lost one into a sentence."""
    try:
        yield
    except OSError as error:
        raise TraindoctorError(
            f"cannot write {what}: {error.strerror or error}; what was saved before is whole: "
            "free some space or give another folder",
            slug="cannot-write",
        ) from error


def write_text(file: Path, text: str) -> None:
    """Replaces `file` by `text` at once, or leaves it as it was."""
    beside = file.with_name(f"{TEMPORARY}{file.name}")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(file)
        sync_folder(file.parent)


def write_json(file: Path, value: Any) -> None:
    write_text(file, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; at the end it is on the disk and becomes `folder`, or is removed."""
    beside = folder.with_name(f"{TEMPORARY}{folder.name}")
    with writing(folder):
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            yield beside
            for file in [f for f in beside.rglob("*") if f.is_file()]:
                with file.open("rb+") as handle:
                    os.fsync(handle.fileno())
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
