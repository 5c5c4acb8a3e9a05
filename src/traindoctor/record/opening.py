"""Opens a record that somebody else may have written. SQLite is a language: a file can hold views, triggers and
generated columns that compute for ever. A record has seven plain tables; anything else is refused before it is used.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traindoctor.plain_files import MEGABYTE, is_there, require_file
from traindoctor.record.tables import TABLES

# SQLite's own files beside a record. Each is opened with it: a pipe in its place would let us wait for ever.
BESIDE = ("-wal", "-shm", "-journal")
# Opcodes of SQLite's machine. One row takes about ten, and no row takes less than four bytes of the file: a query
# that needs more goes in circles. Counted, not timed: the answer is the same on a busy machine.
STEPS_PER_BYTE = 4
FEWEST_STEPS = 1_000_000
LOOK_EVERY = 10_000


class Database:
    """Read-only rows of a record: each query is bounded by the size of the file, in steps and in bytes."""

    def __init__(self, path: Path, *, immutable: bool = False) -> None:
        self.path = path
        require_file(path)
        for ending in BESIDE:
            beside = path.with_name(path.name + ending)
            if is_there(beside):
                require_file(beside)
        how = "mode=ro&immutable=1" if immutable else "mode=ro"
        uri = f"{path.resolve().as_uri()}?{how}"
        self._db = sqlite3.connect(uri, uri=True, check_same_thread=False, timeout=5)
        self._steps_left = 0
        self._db.execute("PRAGMA trusted_schema=OFF")
        self._db.execute("PRAGMA cell_size_check=ON")
        self._db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._db.set_progress_handler(self._goes_in_circles, LOOK_EVERY)

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query of ours."""
        size = self._size()
        self._steps_left = FEWEST_STEPS + STEPS_PER_BYTE * size
        bytes_left = MEGABYTE + 2 * size
        for row in self._db.execute(query, values):
            for cell in row:
                if isinstance(cell, (str, bytes)):
                    bytes_left -= len(cell)
            if bytes_left < 0:
                raise ValueError("it gives more than it can hold")
            yield row

    def require_tables(self, *names: str) -> None:
        """The tables (all of them, without names) are there as the writer makes them, and nothing else is."""
        wanted = {name: sql for name, sql in _SCHEMA.items() if not names or name in names}
        found = {}
        for kind, name, sql in self.rows("SELECT type, name, sql FROM sqlite_master"):
            if kind == "index" and sql is None and str(name).startswith("sqlite_autoindex_"):
                continue
            if name in wanted or not names:
                found[name] = _plain(str(sql))
        if missing := sorted(wanted.keys() - found.keys()):
            raise ValueError(f"it has no table {missing[0]!r}")
        if odd := sorted(name for name, sql in found.items() if wanted.get(name) != sql):
            raise ValueError(f"{odd[0]!r} in it is not what a record holds")

    def version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        self._db.close()

    def _size(self) -> int:
        """Of the record and its journal; a live run's grow."""
        wal = self.path.with_name(self.path.name + "-wal")
        return sum(file.stat().st_size for file in (self.path, wal) if is_there(file))

    def _goes_in_circles(self) -> bool:
        self._steps_left -= LOOK_EVERY
        return self._steps_left < 0


def _plain(sql: str) -> str:
    return " ".join(sql.replace("IF NOT EXISTS ", "").split()).rstrip(";")


_SCHEMA: dict[str, str] = {
    re.findall(r"\w+", statement.partition("IF NOT EXISTS")[2])[0]: _plain(statement)
    for statement in TABLES.split(";")
    if statement.strip()
}
