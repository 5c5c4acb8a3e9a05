"""500 spoilt records: tables that are something else, cells of every wrong kind, bytes changed at random."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

Spoil = Callable[[Path], None]

NUMBER = 500
COLUMNS = {
    "meta": ("key", "value"),
    "series": ("id", "name"),
    "points": ("series", "steps", "numbers"),
    "layers": ("id", "name", "columns"),
    "layer_rows": ("layers", "step", "numbers"),
    "facts": ("time", "name", "value"),
    "exams": ("exam", "step", "outcome", "numbers", "reason", "seconds"),
    "notes": ("time", "level", "text"),
}
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
CELLS: dict[str, object] = {
    "text": "spoilt",
    "empty": "",
    "nul": "a\0b",
    "escape": '"\x1b]0;owned\x07"',
    "huge whole number": 2**62,
    "negative": -5,
    "infinite": float("inf"),
    "fraction": 0.5,
    "odd bytes": b"\x01\x02\x03",
    "bytes of NaN": struct.pack("d", float("nan")),
    "bytes of a far step": struct.pack("q", 2**61),
    "not UTF-8": b"\xff\xfe",
    "deep": "[" * 30_000 + "]" * 30_000,
    "long number": "9" * 5000,
    "lone surrogate": '"\\ud800"',
    "long": '"' + "x" * 200_000 + '"',
}
FACTS = (
    "run.steps run.seconds run.ended run.total_steps self.listener_seconds stages.taped doctor.proven doctor.unmade "
    "doctor.asked verdict loss.site text.samples model.parameters schedule ranks optimizer.groups env script"
).split()
VALUES = (
    "null",
    "[]",
    "{}",
    "-1",
    "1e400",
    '"nan"',
    '[[1], {"a": "b"}, null]',
    '{"verdict": 3, "causes": {"a": 1}, "classes": "x", "a": {"b": [null]}}',
    "1" + "0" * 400,
    '"</script><script>alert(1)</script>"',
)


def variants(seed: int = 0) -> Iterator[tuple[str, Spoil]]:
    """Name and action; the same 500 every time."""
    written = [*tables(), *cells(), *facts(), *meta(), *numbers(), *files()]
    yield from written
    rng = random.Random(seed)
    kinds = (flipped, cut_short, page_swapped, zeroed)
    for number in range(NUMBER - len(written)):
        kind = kinds[number % len(kinds)]
        yield f"{kind.__name__} {number}", kind(random.Random(rng.random()))


def sql(*statements: str, values: tuple[object, ...] = ()) -> Spoil:
    def spoil(file: Path) -> None:
        with sqlite3.connect(file) as database:
            database.execute("PRAGMA writable_schema=ON")
            for statement in statements:
                database.execute(statement, values if "?" in statement else ())
        database.close()

    return spoil


def tables() -> Iterator[tuple[str, Spoil]]:
    for table, columns in COLUMNS.items():
        names = ", ".join(columns)
        aside = f"ALTER TABLE {table} RENAME TO aside"
        endless = ", ".join(f"x AS {c}" for c in columns)
        yield f"{table} is gone", sql(f"DROP TABLE {table}")
        yield f"{table} is empty", sql(f"DELETE FROM {table}")
        view = f"CREATE VIEW {table} AS"
        yield f"{table} is an endless view", sql(aside, f"{view} {ENDLESS} {endless} FROM c")
        yield f"{table} is a view", sql(aside, f"{view} SELECT rowid, {names} FROM aside")
        yield f"{table} has another column", sql(f"ALTER TABLE {table} ADD COLUMN more BLOB")
        computed = "more AS (hex(randomblob(100000000)))"
        yield f"{table} computes a column", sql(f"ALTER TABLE {table} ADD COLUMN {computed}")
        trigger = f"CREATE TRIGGER t_{table} AFTER INSERT ON {table} BEGIN DELETE FROM facts; END"
        yield f"{table} has a trigger", sql(trigger)
        renamed = f"ALTER TABLE {table} RENAME COLUMN {columns[-1]} TO another"
        yield f"{table} has a column of another name", sql(renamed)
        text = f"UPDATE sqlite_master SET sql = 'CREATE TABLE nonsense (' WHERE name = '{table}'"
        yield f"{table} is described as nonsense", sql(text)
        root = f"UPDATE sqlite_master SET rootpage = 1 WHERE name = '{table}'"
        yield f"{table} begins at page 1", sql(root)


def cells() -> Iterator[tuple[str, Spoil]]:
    for table, columns in COLUMNS.items():
        kinds = (
            CELLS
            if table in ("points", "facts", "exams", "layers")
            else dict(list(CELLS.items())[::2])
        )
        for column in columns:
            if column == "id":
                continue
            for kind, value in list(kinds.items())[:: 1 if column in ("value", "numbers") else 3]:
                change = f"UPDATE OR IGNORE {table} SET {column} = ?"
                yield f"{table}.{column} is {kind}", sql(change, values=(value,))


def facts() -> Iterator[tuple[str, Spoil]]:
    for number, fact in enumerate(FACTS):
        for value in VALUES[number % 2 :: 2]:
            insert = f"INSERT INTO facts (time, name, value) VALUES (0, '{fact}', ?)"
            yield f"{fact} = {value[:40]}", sql(insert, values=(value,))


def meta() -> Iterator[tuple[str, Spoil]]:
    for key in ("format", "rank", "created"):
        for value in ("999", "-1", "1.5", '"x"', "null", '"inf"', "1e300", "[1]"):
            change = f"UPDATE meta SET value = ? WHERE key = '{key}'"
            yield f"{key} = {value}", sql(change, values=(value,))


def numbers() -> Iterator[tuple[str, Spoil]]:
    floats = {"NaN": float("nan"), "infinity": float("inf"), "huge": 1.7e308, "tiny": -5e-324}
    for name, value in floats.items():
        blob = struct.pack("30d", *[value] * 30)
        yield f"all numbers are {name}", sql("UPDATE points SET numbers = ?", values=(blob,))
    steps = {
        "backwards": range(30, 0, -1),
        "all 0": [0] * 30,
        "far": range(10**15, 10**15 + 30),
        "before 0": range(-40, -10),
        "wide apart": range(0, 30 * 10**10, 10**10),
    }
    for name, row in steps.items():
        blob = struct.pack("30q", *row)
        yield f"steps are {name}", sql("UPDATE points SET steps = ?", values=(blob,))


def files() -> Iterator[tuple[str, Spoil]]:
    yield "an empty file", lambda file: file.write_bytes(b"")
    yield "a text", lambda file: file.write_bytes(b"not a record\n" * 50)
    yield "the first page alone", lambda file: os.truncate(file, 4096)
    yield "a folder", _replaced(lambda file: file.mkdir())
    yield "a pipe", _replaced(lambda file: os.mkfifo(file))
    yield "a link to itself", _replaced(lambda file: file.symlink_to(file))
    yield "a link to nothing", _replaced(lambda file: file.symlink_to("/nonexistent"))
    yield "a device", _replaced(lambda file: file.symlink_to("/dev/zero"))
    for ending in ("-wal", "-journal", "-shm"):
        yield f"a pipe as {ending}", _beside(ending, os.mkfifo)
        yield f"garbage as {ending}", _beside(ending, lambda f: Path(f).write_bytes(b"\x37" * 9000))
    yield "a rank without a number", lambda f: _copied(f, "record-x.sqlite")
    yield "a rank of many digits", lambda f: _copied(f, "record-" + "9" * 40 + ".sqlite")
    yield "a second rank that is spoilt", lambda f: _text(f.with_name("record-1.sqlite"))


def _replaced(make: Callable[[Path], object]) -> Spoil:
    def spoil(file: Path) -> None:
        file.unlink()
        make(file)

    return spoil


def _beside(ending: str, make: Callable[[str], object]) -> Spoil:
    def spoil(file: Path) -> None:
        make(str(file) + ending)

    return spoil


def _copied(file: Path, name: str) -> None:
    shutil.copy(file, file.with_name(name))


def _text(file: Path) -> None:
    file.write_bytes(b"SQLite format 3\0" + b"x" * 5000)


def flipped(rng: random.Random) -> Spoil:
    """Some bits, anywhere."""

    def spoil(file: Path) -> None:
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice([1, 3, 30])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)

    return spoil


def cut_short(rng: random.Random) -> Spoil:
    return lambda file: os.truncate(file, rng.randrange(file.stat().st_size))


def page_swapped(rng: random.Random) -> Spoil:
    """One page in the place of another: a tree that leads back to itself."""

    def spoil(file: Path) -> None:
        data = bytearray(file.read_bytes())
        pages = len(data) // 4096
        source, target = rng.randrange(pages), rng.randrange(1, pages)
        data[target * 4096 : (target + 1) * 4096] = data[source * 4096 : (source + 1) * 4096]
        file.write_bytes(data)

    return spoil


def zeroed(rng: random.Random) -> Spoil:
    def spoil(file: Path) -> None:
        data = bytearray(file.read_bytes())
        start = rng.randrange(len(data))
        length = rng.choice([4, 64, 2000])
        data[start : start + length] = bytes(len(data[start : start + length]))
        file.write_bytes(data)

    return spoil
