"""The folder of runs: which runs there are, and their records, opened once and read under a lock.

A run is named by its path below the folder. A name that the scan did not find is unknown, so no request
can reach a file outside: names are looked up, never joined to a path.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traindoctor.errors import RecordError
from traindoctor.record import StoredRecord, open_record
from traindoctor.record.folders import (
    PARTS,
    SILENT_SECONDS,
    Contents,
    NotDone,
    contents,
    delete_run,
    fingerprint,
    is_running,
    last_written,
    rename_run,
)
from traindoctor.record.progress import main_loss, num_steps
from traindoctor.report.payload import loss_payload

# runs/sweep/lr-1e-3 is three levels; deeper folders are checkpoints and data.
MAX_DEPTH = 4
# Each opened record is a file handle and some memory.
MAX_OPEN = 48
SPARK_POINTS = 48


@dataclass
class OpenRun:
    """One opened record (one rank's), with the lock that its single connection needs."""

    record: StoredRecord
    lock: threading.RLock = field(default_factory=threading.RLock)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class RunStore:
    """All runs below `root`; `root` may itself be a run."""

    root: Path
    _open: OrderedDict[tuple[str, int, str], OpenRun] = field(default_factory=OrderedDict)
    _cards: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.root = Path(self.root).resolve()

    def names(self) -> list[str]:
        """Newest first. The root itself, if it is a run, is named by its folder's name."""
        found = {self._name(folder): folder for folder in self._folders()}
        return sorted(found, key=lambda name: -last_written(found[name]))

    def _name(self, folder: Path) -> str:
        return folder.name if folder == self.root else folder.relative_to(self.root).as_posix()

    def _folders(self) -> Iterator[Path]:
        waiting = [(self.root, 0)]
        while waiting:
            folder, depth = waiting.pop()
            try:
                entries = sorted(folder.iterdir())
            except OSError:
                continue
            if any(is_record(entry) for entry in entries):
                yield folder
            if depth < MAX_DEPTH:
                # A link could lead out of the folder: it is not followed.
                waiting += [
                    (e, depth + 1)
                    for e in entries
                    if not e.name.startswith(".") and e.is_dir() and not e.is_symlink()
                ]

    def folder(self, name: str) -> Path:
        for folder in self._folders():
            if self._name(folder) == name:
                return folder
        raise UnknownRun(name)

    def open(self, name: str, *, rank: int = 0, use: str = "series") -> OpenRun:
        """The record of a run. `use` gives each kind of reader its own connection and lock."""
        key = (name, rank, use)
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return self._open[key]
            folder = self.folder(name)
            ranks = open_record(folder).ranks
            if not 0 <= rank < len(ranks):
                raise UnknownRun(f"{name}, rank {rank}")
            record = ranks[rank]
            assert isinstance(record, StoredRecord)
            self._open[key] = OpenRun(record)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            return self._open[key]

    @contextmanager
    def reading(self, name: str, *, rank: int = 0, use: str = "series") -> Iterator[OpenRun]:
        """The run, refreshed, for this thread alone. A record that turns out corrupt is forgotten."""
        run = self.open(name, rank=rank, use=use)
        with run.lock:
            try:
                run.record.refresh()
                yield run
            except RecordError:
                with self._lock:
                    self._open.pop((name, rank, use), None)
                raise

    def contents(self, name: str) -> Contents:
        return contents(self.folder(name))

    def running(self, name: str) -> bool:
        return is_running(self.folder(name))

    def rename(self, name: str, to: str) -> str:
        """Gives a run another name beside the others; the new name below the root."""
        folder = self._below_root(name, "renamed")
        self._forget(name)
        return self._name(rename_run(folder, to))

    def delete(self, name: str) -> None:
        folder = self._below_root(name, "deleted")
        inside = [other for other in self.names() if other.startswith(f"{name}/")]
        if others := [other for other in inside if not PARTS.fullmatch(other.split("/")[-1])]:
            raise NotDone(f"{name} holds other runs ({', '.join(others[:3])}): delete those first")
        for other in (name, *inside):
            self._forget(other)
        delete_run(folder)

    def _below_root(self, name: str, done: str) -> Path:
        folder = self.folder(name)
        if folder == self.root:
            raise NotDone(
                f"{name} is the folder that this page was opened on, so it cannot be {done} from here: "
                "open the page on the folder above"
            )
        return folder

    def _forget(self, name: str) -> None:
        """Closes the records of a run and drops what is known of it."""
        with self._lock:
            keys = [key for key in self._open if key[0] == name]
            opened = [self._open.pop(key) for key in keys]
            self._cards.pop(name, None)
        for run in opened:
            with run.lock:
                run.record.close()

    def card(self, name: str) -> dict[str, Any]:
        """What the list of runs shows of one run; read again only when its files have changed."""
        try:
            folder = self.folder(name)
            stamp = fingerprint(folder)
        except (OSError, UnknownRun):
            return {"name": name, "state": "gone"}
        age = time.time() - last_written(folder)
        known = self._cards.get(name)
        if known is None or known[0] != stamp:
            known = self._cards[name] = (stamp, self._read_card(name))
        card = {**known[1], "written": last_written(folder)}
        if card["state"] == "running" and age > SILENT_SECONDS:
            card["state"] = "silent"
        return card

    def _read_card(self, name: str) -> dict[str, Any]:
        try:
            with self.reading(name) as run:
                record = run.record
                loss = main_loss(record)
                verdict = record.fact("verdict")
                return {
                    "name": name,
                    "state": state_of(record),
                    "steps": num_steps(record),
                    "loss": loss_payload(record),
                    "spark": [] if loss is None else spark_line(loss.values),
                    "created": record.meta.get("created"),
                    "verdict": verdict.get("verdict") if isinstance(verdict, dict) else None,
                    "reason": verdict.get("reason") if isinstance(verdict, dict) else None,
                    "cause": first_cause(verdict),
                    "causes": root_causes(verdict),
                }
        except RecordError as error:
            return {"name": name, "state": "corrupt", "error": str(error)}

    def state(self, name: str, record: StoredRecord) -> str:
        state = state_of(record)
        if state == "running" and time.time() - last_written(record.path.parent) > SILENT_SECONDS:
            return "silent"
        return state


class UnknownRun(RecordError):
    """A name that the scan did not find."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no run called {name!r} in this folder")


def is_record(entry: Path) -> bool:
    """A file that is still empty is a run about to begin, not a broken one."""
    if not (entry.name.startswith("record-") and entry.suffix == ".sqlite"):
        return False
    try:
        return entry.is_file() and entry.stat().st_size > 0
    except OSError:
        return False


def state_of(record: StoredRecord) -> str:
    ended = record.fact("run.ended")
    if ended is None:
        return "running"
    if isinstance(ended, dict):
        ended = ended.get("status", ended.get("exit", 0))
    return "ended" if ended in (0, "0", None, "ok") else "failed"


def spark_line(values: Any) -> list[float | None]:
    """The course of the loss in few numbers; None where it was not finite."""
    step = max(1, len(values) // SPARK_POINTS)
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in values[::step].tolist()]


def root_causes(verdict: Any) -> list[str]:
    """What the list can be filtered by: the causes that are no consequence of another."""
    causes = verdict.get("causes") if isinstance(verdict, dict) else None
    found = [c for c in causes or [] if isinstance(c, dict) and not c.get("explained_by")]
    return [str(cause["cause"]) for cause in found if cause.get("cause")]


def first_cause(verdict: Any) -> str | None:
    causes = verdict.get("causes") if isinstance(verdict, dict) else None
    return causes[0].get("summary") or causes[0].get("cause") if causes else None
