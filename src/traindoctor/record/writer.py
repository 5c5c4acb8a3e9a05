"""Writes a record: SQLite in WAL mode, one file per rank, buffered, flushed every half second."""

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.background import Background
from traindoctor.errors import RecordError
from traindoctor.private_files import make_private_file, make_private_folder
from traindoctor.record.opening import Database
from traindoctor.record.schema import FORMAT, ExamResult
from traindoctor.record.secrets import redact_arguments, redact_text
from traindoctor.record.tables import TABLES
from traindoctor.record.text import readable

# A record may lose 2 s when the process is killed, and the live page may be 1 s late: half of that
# leaves room for a slow disk and for the page's own way.
FLUSH_SECONDS = 0.5


def record_path(folder: Path, rank: int = 0) -> Path:
    return folder / f"record-{rank}.sqlite"


def to_json(value: Any) -> str:
    """JSON with the three numbers it lacks as strings ("nan", "inf", "-inf") and text that UTF-8 can hold."""

    def plain(x: Any) -> Any:
        if isinstance(x, float):
            if math.isfinite(x):
                return x
            return "nan" if math.isnan(x) else ("inf" if x > 0 else "-inf")
        if isinstance(x, Mapping):
            return {readable(str(k)): plain(v) for k, v in x.items()}
        if isinstance(x, (list, tuple, set, frozenset)):
            return [plain(v) for v in x]
        if isinstance(x, np.generic):
            return plain(x.item())
        if isinstance(x, np.ndarray):
            return plain(x.tolist())
        if x is None or isinstance(x, (bool, int)):
            return x
        return readable(str(x))

    return json.dumps(plain(value), ensure_ascii=False)


class RecordWriter:
    """Append-only. Cheap to call: numbers wait in memory and are written together."""

    def __init__(
        self, folder: Path, *, rank: int = 0, meta: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self.failed: str | None = None
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._points: dict[str, tuple[list[int], list[float]]] = {}
        self._rows: list[tuple[str, int, tuple[str, ...], bytes]] = []
        self._others: list[tuple[str, tuple[Any, ...]]] = []
        self._series_ids: dict[str, int] = {}
        self._layer_ids: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._pid = os.getpid()
        try:
            make_private_folder(self.folder)
            file = record_path(self.folder, rank)
            # SQLite gives its journal and that one's index the mode of the record.
            if not make_private_file(file) and file.stat().st_size:
                self._require_ours(file)
            self._db = sqlite3.connect(file, check_same_thread=False, timeout=5)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(TABLES)
            self._resume_ids()
        except (OSError, sqlite3.Error, ValueError) as error:
            raise RecordError(
                f"cannot write a record in {self.folder}: {error}; choose another folder with --out"
            ) from error
        for key, value in {
            "format": FORMAT,
            "rank": rank,
            "created": time.time(),
            **(meta or {}),
        }.items():
            self._db.execute(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", (str(key), to_json(value))
            )
        self._db.commit()
        self._background = Background(self.flush, every=FLUSH_SECONDS)

    @staticmethod
    def _require_ours(file: Path) -> None:
        """Nothing is added to a file with triggers: they would run."""
        there = Database(file)
        try:
            there.require_tables()
        finally:
            there.close()

    def thread_seconds(self) -> float:
        """CPU time that its thread has taken since this was last asked."""
        seconds, self._background.seconds = self._background.seconds, 0.0
        return seconds

    @property
    def busy(self) -> threading.Lock:
        """Held while a thread is inside SQLite: a process must not fork in that moment."""
        return self._writing

    def scalar(self, name: str, step: int, value: float) -> None:
        if self.failed:
            return
        with self._lock:
            steps, values = self._points.setdefault(name, ([], []))
            steps.append(step)
            values.append(value)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.scalar(name, step, value)

    def layers(
        self, name: str, step: int, columns: Sequence[str], values: Sequence[float] | np.ndarray
    ) -> None:
        blob = np.asarray(values, dtype=np.float32)
        if len(blob) != len(columns):
            raise ValueError(f"{name}: {len(columns)} layers but {len(blob)} values")
        if self.failed:
            return
        with self._lock:
            self._rows.append((name, step, tuple(columns), blob.tobytes()))

    def fact(self, name: str, value: Any) -> None:
        """The latest value of a name counts. Secrets in the script's arguments are left out."""
        if name == "script" and isinstance(value, Mapping):
            value = {**value, "argv": redact_arguments(map(str, value.get("argv") or ()))}
        self._later(
            "INSERT INTO facts (time, name, value) VALUES (?, ?, ?)",
            (time.time(), name, to_json(value)),
        )

    def exam(self, result: ExamResult) -> None:
        self._later(
            "INSERT INTO exams (time, exam, step, outcome, numbers, reason, seconds) VALUES (?,?,?,?,?,?,?)",
            (
                time.time(),
                result.exam,
                result.step,
                result.outcome,
                to_json(result.values),
                readable(result.reason),
                result.seconds,
            ),
        )

    def note(self, level: str, text: str) -> None:
        self._later(
            "INSERT INTO notes (time, level, text) VALUES (?, ?, ?)",
            (time.time(), level, readable(redact_text(text))),
        )

    def _later(self, statement: str, values: tuple[Any, ...]) -> None:
        if self.failed:
            return
        with self._lock:
            self._others.append((statement, values))

    def flush(self) -> None:
        """Writes all that waits. A full disk or a lost folder ends the recording, never the run."""
        if self.failed or os.getpid() != self._pid:
            return
        with self._writing:
            # The run's thread waits for the exchange of three lists, never for the disk.
            with self._lock:
                points, self._points = self._points, {}
                rows, self._rows = self._rows, []
                others, self._others = self._others, []
            try:
                self._insert(points, rows, others)
                self._db.commit()
            except (OSError, sqlite3.Error) as error:
                self._give_up(error)

    def _insert(
        self,
        points: dict[str, tuple[list[int], list[float]]],
        rows: list[tuple[str, int, tuple[str, ...], bytes]],
        others: list[tuple[str, tuple[Any, ...]]],
    ) -> None:
        for name, (steps, values) in points.items():
            self._db.execute(
                "INSERT INTO points VALUES (?, ?, ?)",
                (
                    self._series_id(readable(name)),
                    np.asarray(steps, dtype=np.int64).tobytes(),
                    np.asarray(values, dtype=np.float64).tobytes(),
                ),
            )
        for name, step, columns, blob in rows:
            self._db.execute(
                "INSERT INTO layer_rows VALUES (?, ?, ?)",
                (self._layers_id(readable(name), columns), step, blob),
            )
        for statement, values_ in others:
            self._db.execute(statement, values_)

    def _give_up(self, error: Exception) -> None:
        """What was committed stays readable; nothing more is kept in memory."""
        self.failed = str(error)
        with contextlib.suppress(sqlite3.Error):
            self._db.rollback()
        with self._lock:
            self._points, self._rows, self._others = {}, [], []

    def close(self) -> None:
        """Writes the rest and folds the journal in: one file per rank is left, fit to be copied."""
        if os.getpid() != self._pid:
            return
        self._background.stop()
        self.flush()
        try:
            if not self.failed:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._db.close()
        except sqlite3.Error as error:
            self.failed = self.failed or str(error)

    def _resume_ids(self) -> None:
        for number, name in self._db.execute("SELECT id, name FROM series"):
            self._series_ids[name] = number
        for number, name, columns in self._db.execute("SELECT id, name, columns FROM layers"):
            self._layer_ids[name] = (number, tuple(json.loads(columns)))

    def _series_id(self, name: str) -> int:
        if name not in self._series_ids:
            cursor = self._db.execute("INSERT INTO series (name) VALUES (?)", (name,))
            self._series_ids[name] = int(cursor.lastrowid or 0)
        return self._series_ids[name]

    def _layers_id(self, name: str, columns: tuple[str, ...]) -> int:
        known = self._layer_ids.get(name)
        if known is None:
            cursor = self._db.execute(
                "INSERT INTO layers (name, columns) VALUES (?, ?)", (name, to_json(columns))
            )
            known = self._layer_ids[name] = (int(cursor.lastrowid or 0), columns)
        if known[1] != columns:
            # A model that changed its layers starts a new table under a numbered name.
            base, _, count = name.partition("#")
            return self._layers_id(f"{base}#{int(count or 1) + 1}", columns)
        return known[0]
