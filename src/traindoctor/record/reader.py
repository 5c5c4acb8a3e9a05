"""Opens a record, whole or while it grows. Series are read when they are asked for."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from traindoctor.errors import RecordError
from traindoctor.plain_files import is_there
from traindoctor.record import valid
from traindoctor.record.opening import Database
from traindoctor.record.schema import FORMAT, LayerSeries, Record, Series


class StoredRecord(Record):
    """A Record over a SQLite file: as it was at the last `refresh()`. Nothing is read twice.

    The file may be anybody's: what is not a record as the writer makes it raises a RecordError, at once
    or when the series that is damaged is asked for.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = Path(path)
        if not is_there(self.path):
            raise RecordError(f"there is no record at {self.path}")
        with self._told():
            self._db = Database(self.path)
            try:
                self._read_meta()
            except sqlite3.OperationalError:
                # A folder that may not be written (a mounted archive) cannot hold the journal's index.
                self._db = Database(self.path, immutable=True)
                self._read_meta()
            self._db.require_tables()
        self._seen = {"exams": 0, "notes": 0, "facts": 0}
        self._points: dict[str, tuple[int, Series]] = {}
        self._rows: dict[str, tuple[int, list[int], list[Any]]] = {}
        self._read: dict[str, Series] = {}
        self._read_layers: dict[str, LayerSeries] = {}
        """What was asked for since the last refresh: one look at a record asks for a series many times."""
        self.refresh()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Whatever is wrong with the file becomes one sentence."""
        try:
            yield
        except (OSError, sqlite3.Error, ValueError, KeyError) as error:
            reason = "a query does not come to an end" if "interrupted" in str(error) else error
            raise RecordError(
                f"{self.path} is not a readable record ({reason}): restore it from a copy, or remove it"
            ) from error

    def _read_meta(self) -> None:
        self._db.require_tables("meta")
        rows = self._db.rows("SELECT key, value FROM meta")
        self.meta = dict(valid.meta_value(key, value) for key, value in rows)
        if self.meta["format"] > FORMAT:
            raise RecordError(
                f"{self.path} has record format {self.meta['format']}, this traindoctor reads up to "
                f"{FORMAT}; install a newer traindoctor"
            )

    def refresh(self) -> None:
        """Facts, exams and notes that came since; series follow when they are asked for."""
        self._read.clear()
        self._read_layers.clear()
        self._made.clear()
        with self._told():
            self._refresh()

    def _refresh(self) -> None:
        exams, notes = list(self.exam_results), list(self.notes)
        for number, name, value in self._db.rows(
            "SELECT id, name, value FROM facts WHERE id > ? ORDER BY id", (self._seen["facts"],)
        ):
            key, fact = valid.fact_value(name, value)
            self.facts[key] = fact
            self._seen["facts"] = number
        for number, *cells in self._db.rows(
            "SELECT id, exam, step, outcome, numbers, reason, seconds FROM exams WHERE id > ? ORDER BY id",
            (self._seen["exams"],),
        ):
            exams.append(valid.exam_result(*cells))
            self._seen["exams"] = number
        for number, *cells in self._db.rows(
            "SELECT id, time, level, text FROM notes WHERE id > ? ORDER BY id",
            (self._seen["notes"],),
        ):
            notes.append(valid.note(*cells))
            self._seen["notes"] = number
        self.exam_results, self.notes = tuple(exams), tuple(notes)
        self._series_ids = {
            valid.name_of(name): number
            for name, number in self._db.rows("SELECT name, id FROM series")
        }
        self._layer_ids = {
            valid.name_of(name): (number, valid.layer_columns(columns))
            for name, number, columns in self._db.rows("SELECT name, id, columns FROM layers")
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
        last, known = self._points.get(name, (0, None))
        with self._told():
            rows = list(
                self._db.rows(
                    "SELECT rowid, steps, numbers FROM points WHERE series = ? AND rowid > ? ORDER BY rowid",
                    (self._series_ids[name], last),
                )
            )
            at, numbers = valid.points([row[1] for row in rows], [row[2] for row in rows])
        if known is not None:
            at = np.concatenate([known.steps, at])
            numbers = np.concatenate([known.values, numbers])
        found = self._read[name] = Series(name, at, numbers)
        self._points[name] = (rows[-1][0] if rows else last, found)
        return found

    def layers(self, name: str) -> LayerSeries | None:
        """With what came after the layers had become others (`name#2`, ...: another model, new parameters)."""
        parts = [name]
        while f"{name}#{len(parts) + 1}" in self._layer_ids:
            parts.append(f"{name}#{len(parts) + 1}")
        tables = [table for one in parts if (table := self._table(one)) is not None]
        return joined(tables) if len(tables) > 1 else tables[0] if tables else None

    def _table(self, name: str) -> LayerSeries | None:
        if name not in self._layer_ids:
            return None
        if name in self._read_layers:
            return self._read_layers[name]
        number, columns = self._layer_ids[name]
        last, steps, rows = self._rows.get(name, (0, [], []))
        with self._told():
            for rowid, step, blob in self._db.rows(
                "SELECT rowid, step, numbers FROM layer_rows WHERE layers = ? AND rowid > ? ORDER BY rowid",
                (number, last),
            ):
                at, row = valid.layer_row(step, blob, len(columns))
                steps.append(at)
                rows.append(row)
                last = rowid
        table = np.stack(rows) if rows else np.empty((0, len(columns)), np.float32)
        self._rows[name] = (last, steps, list(table))  # views: the numbers are held once
        made = LayerSeries(name, columns, np.asarray(steps, dtype=np.int64), table)
        self._read_layers[name] = made
        return made

    def layer_span(self, name: str) -> tuple[tuple[str, ...], int, int, int]:
        """Without reading its numbers."""
        number, columns = self._layer_ids[name]
        with self._told():
            [(count, first, last)] = self._db.rows(
                "SELECT COUNT(*), MIN(step), MAX(step) FROM layer_rows WHERE layers = ?", (number,)
            )
            return columns, count, valid.step_number(first or 0), valid.step_number(last or 0)

    def layer_rows(
        self, name: str, *, start: int = 0, stop: int | None = None, limit: int = -1
    ) -> LayerSeries:
        """Nothing is kept in memory."""
        number, columns = self._layer_ids[name]
        with self._told():
            rows = [
                valid.layer_row(step, blob, len(columns))
                for step, blob in self._db.rows(
                    "SELECT step, numbers FROM layer_rows WHERE layers = ? AND step BETWEEN ? AND ? "
                    "ORDER BY step LIMIT ?",
                    (number, start, 2**62 if stop is None else stop, limit),
                )
            ]
        table = (
            np.stack([row for _, row in rows]) if rows else np.empty((0, len(columns)), np.float32)
        )
        steps = np.array([step for step, _ in rows], dtype=np.int64)
        return LayerSeries(name, columns, steps, table)

    def version(self) -> int:
        """Changes whenever another connection has written: what a live view polls."""
        with self._told():
            return self._db.version()

    def close(self) -> None:
        self._db.close()


def joined(tables: Sequence[LayerSeries]) -> LayerSeries:
    """One table of all their layers, in the order of steps; NaN where a layer was not there."""
    layers = tuple(dict.fromkeys(layer for table in tables for layer in table.layers))
    column = {layer: number for number, layer in enumerate(layers)}
    values = np.full((sum(map(len, tables)), len(layers)), np.nan, np.float32)
    begin = 0
    for table in tables:
        rows = slice(begin, begin + len(table))
        values[rows, [column[layer] for layer in table.layers]] = table.values
        begin += len(table)
    steps = np.concatenate([table.steps for table in tables])
    order = np.argsort(steps, kind="stable")
    return LayerSeries(tables[0].name, layers, steps[order], values[order])
