"""Opens a record, whole or while it grows. Series are read when they are asked for."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.errors import RecordError
from traindoctor.record.schema import FORMAT, ExamResult, LayerSeries, Note, Record, Series

_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def from_json(text: str) -> Any:
    def restore(x: Any) -> Any:
        if isinstance(x, str):
            return _NUMBERS.get(x, x)
        if isinstance(x, list):
            return [restore(v) for v in x]
        if isinstance(x, dict):
            return {k: restore(v) for k, v in x.items()}
        return x

    return restore(json.loads(text))


class StoredRecord(Record):
    """A Record over a SQLite file: as it was at the last `refresh()`. Nothing is read twice."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.is_file():
            raise RecordError(f"there is no record at {self.path}")
        try:
            self._db = self._connected("mode=ro")
            try:
                self._read_meta()
            except sqlite3.OperationalError:
                # A folder that may not be written (a mounted archive) cannot hold the journal's index.
                self._db = self._connected("mode=ro&immutable=1")
                self._read_meta()
            self._seen = {"exams": 0, "notes": 0, "facts": 0}
            self._chunks: dict[str, tuple[int, list[Any], list[Any]]] = {}
            self._rows: dict[str, tuple[int, list[int], list[Any]]] = {}
            self._read: dict[str, Series] = {}
            self._read_layers: dict[str, LayerSeries] = {}
            """What was asked for since the last refresh: one look at a record asks for a series many times."""
            self.refresh()
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise RecordError(f"{self.path} is no readable record: {error}") from error

    def _connected(self, how: str) -> sqlite3.Connection:
        uri = f"{self.path.resolve().as_uri()}?{how}"
        return sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=5)

    def _read_meta(self) -> None:
        self.meta = {k: from_json(v) for k, v in self._db.execute("SELECT key, value FROM meta")}
        if int(self.meta["format"]) > FORMAT:
            raise RecordError(
                f"{self.path} has record format {self.meta['format']}, this traindoctor reads up to "
                f"{FORMAT}; install a newer traindoctor"
            )

    def refresh(self) -> None:
        """Facts, exams and notes that came since; series follow when they are asked for."""
        self._read.clear()
        self._read_layers.clear()
        exams, notes = list(self.exam_results), list(self.notes)
        for number, name, value in self._db.execute(
            "SELECT id, name, value FROM facts WHERE id > ? ORDER BY id", (self._seen["facts"],)
        ):
            self.facts[name] = from_json(value)
            self._seen["facts"] = number
        for number, exam, step, outcome, numbers, reason, seconds in self._db.execute(
            "SELECT id, exam, step, outcome, numbers, reason, seconds FROM exams WHERE id > ? ORDER BY id",
            (self._seen["exams"],),
        ):
            exams.append(ExamResult(exam, step, outcome, from_json(numbers), reason or "", seconds))
            self._seen["exams"] = number
        for number, time, level, text in self._db.execute(
            "SELECT id, time, level, text FROM notes WHERE id > ? ORDER BY id",
            (self._seen["notes"],),
        ):
            notes.append(Note(time, level, text))
            self._seen["notes"] = number
        self.exam_results, self.notes = tuple(exams), tuple(notes)
        self._series_ids = dict(self._db.execute("SELECT name, id FROM series"))
        self._layer_ids = {
            name: (number, tuple(json.loads(columns)))
            for name, number, columns in self._db.execute("SELECT name, id, columns FROM layers")
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._series_ids))

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._layer_ids))

    def get(self, name: str) -> Series | None:
        if name not in self._series_ids:
            return None
        if name in self._read:
            return self._read[name]
        last, steps, values = self._chunks.get(name, (0, [], []))
        for rowid, step_blob, value_blob in self._db.execute(
            "SELECT rowid, steps, numbers FROM points WHERE series = ? AND rowid > ? ORDER BY rowid",
            (self._series_ids[name], last),
        ):
            steps.append(np.frombuffer(step_blob, dtype=np.int64))
            values.append(np.frombuffer(value_blob, dtype=np.float64))
            last = rowid
        if len(steps) > 1:
            steps, values = [np.concatenate(steps)], [np.concatenate(values)]
        self._chunks[name] = (last, steps, values)
        if not steps:
            steps, values = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
        found = self._read[name] = Series(name, steps[0], values[0])
        return found

    def layers(self, name: str) -> LayerSeries | None:
        if name not in self._layer_ids:
            return None
        if name in self._read_layers:
            return self._read_layers[name]
        number, columns = self._layer_ids[name]
        last, steps, rows = self._rows.get(name, (0, [], []))
        for rowid, step, blob in self._db.execute(
            "SELECT rowid, step, numbers FROM layer_rows WHERE layers = ? AND rowid > ? ORDER BY rowid",
            (number, last),
        ):
            steps.append(step)
            rows.append(np.frombuffer(blob, dtype=np.float32))
            last = rowid
        table = np.stack(rows) if rows else np.empty((0, len(columns)), np.float32)
        self._rows[name] = (last, steps, list(table))  # views: the numbers are held once
        made = LayerSeries(name, columns, np.asarray(steps, dtype=np.int64), table)
        self._read_layers[name] = made
        return made

    def layer_span(self, name: str) -> tuple[tuple[str, ...], int, int, int]:
        """Columns, number of rows, first and last step of a layer series, without reading its numbers."""
        number, columns = self._layer_ids[name]
        count, first, last = self._db.execute(
            "SELECT COUNT(*), MIN(step), MAX(step) FROM layer_rows WHERE layers = ?", (number,)
        ).fetchone()
        return columns, count, first or 0, last or 0

    def layer_rows(
        self, name: str, *, start: int, stop: int | None = None, limit: int = -1
    ) -> LayerSeries:
        """The rows of steps start..stop (both included), at most `limit`; nothing is kept in memory."""
        number, columns = self._layer_ids[name]
        rows = self._db.execute(
            "SELECT step, numbers FROM layer_rows WHERE layers = ? AND step BETWEEN ? AND ? "
            "ORDER BY step LIMIT ?",
            (number, start, 2**62 if stop is None else stop, limit),
        ).fetchall()
        table = np.frombuffer(b"".join(blob for _, blob in rows), dtype=np.float32)
        steps = np.array([step for step, _ in rows], dtype=np.int64)
        return LayerSeries(name, columns, steps, table.reshape(len(rows), len(columns)))

    def version(self) -> int:
        """Changes whenever another connection has written: what a live view polls."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._db.close()


def open_record(run: Path | str) -> Record:
    """The record of a run folder (rank 0's, with every rank's in `.ranks`) or of one file."""
    path = Path(run)
    if path.is_file():
        return StoredRecord(path)
    files = sorted(
        path.glob("record-*.sqlite"), key=lambda file: int(file.stem.partition("-")[2] or 0)
    )
    if not files:
        raise RecordError(f"{path} holds no record: give the folder of a run")
    records = [StoredRecord(file) for file in files]
    for record in records:
        record.ranks = tuple(records)
    return records[0]
