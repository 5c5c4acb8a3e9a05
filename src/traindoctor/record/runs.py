"""The folder of runs: which runs there are, and how far each one came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traindoctor.errors import RecordError
from traindoctor.plain_files import is_there
from traindoctor.record.progress import last_loss, num_steps
from traindoctor.record.reader import open_record, record_files


@dataclass(frozen=True)
class Run:
    """One line of `traindoctor runs`."""

    path: Path
    created: float
    steps: int
    ranks: int
    loss: float | None
    """The latest one; NaN where the run has blown up."""
    ended: Any
    """Exit status, the name of an exception, or None while it runs (or was killed)."""
    verdict: str | None
    causes: tuple[str, ...] = ()
    problem: str | None = None
    """Why its record cannot be read; then nothing else is known."""


def find_runs(folder: Path, allowed: Callable[[Path], bool] = lambda path: True) -> list[Run]:
    """Runs in a folder and below, newest first; one whose record cannot be read is listed as such.

    `allowed`: whether a record may be opened at all (it may be a link).
    """
    if not is_there(folder):
        raise RecordError(f"there is no folder {folder}: give one that holds runs")
    if not folder.is_dir():
        raise RecordError(f"{folder} is a file: give a folder that holds runs")
    found = []
    for path in sorted({file.parent for file in folder.rglob("record-*.sqlite")}):
        if not all(map(allowed, path.glob("record-*.sqlite*"))):
            continue
        if any(part.startswith("earlier-") for part in path.relative_to(folder).parts):
            continue
        if not record_files(path):
            continue
        try:
            found.append(describe(path))
        except RecordError as error:
            found.append(unreadable(path, str(error)))
    return sorted(found, key=lambda run: run.created, reverse=True)


def unreadable(path: Path, problem: str) -> Run:
    created = max((file.lstat().st_mtime for file in record_files(path)), default=0.0)
    return Run(path, created, 0, 0, None, None, None, problem=problem)


def describe(path: Path) -> Run:
    record = open_record(path)
    loss = last_loss(record)
    verdict = record.fact("verdict") or {}
    return Run(
        path=path,
        created=float(record.meta.get("created", 0.0)),
        steps=num_steps(record),
        ranks=len(record.ranks),
        loss=None if loss is None else loss.value,
        ended=record.fact("run.ended"),
        verdict=verdict.get("verdict"),
        causes=tuple(cause["cause"] for cause in verdict.get("causes", [])),
    )
