"""Files that are either whole or not there: write beside, fsync, rename."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traindoctor.errors import TraindoctorError

TEMPORARY = ".tmp-"


# How a library written in Rust (safetensors, tokenizers) ends the message of its own error class.
RUST_ERROR = re.compile(r"\(os error (\d+)\)")


@contextlib.contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turns a full disk, a read-only folder or a lost one into a sentence."""
    try:
        yield
    except BaseException as error:
        reason = disk_refusal(error)
        if reason is None:
            raise
        raise TraindoctorError(
            f"cannot write {what}: {reason}; what was saved before is whole: "
            "free some space or give another folder",
            slug="cannot-write",
        ) from error


def disk_refusal(error: BaseException) -> str | None:
    """Why the disk did not take it, whatever a library made of it; None if something else went wrong."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if number := RUST_ERROR.search(str(error)):
        return os.strerror(int(number[1]))
    return None


def write_text(file: Path, text: str) -> None:
    """Replaces `file` by `text` at once, or leaves it as it was."""
    beside = file.with_name(f"{TEMPORARY}{file.name}")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("w", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            beside.replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
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
            sync_files(beside)
            shutil.rmtree(folder, ignore_errors=True)
            beside.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise


def sync_files(folder: Path) -> None:
    """Everything in `folder` is on the disk when this returns."""
    for file in [f for f in folder.rglob("*") if f.is_file()]:
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
