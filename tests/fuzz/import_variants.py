"""300 spoilt logs: CSV, JSON lines, a Trainer's state, columns as JSON, TensorBoard events."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

NUMBER = 300
Make = Callable[[Path], Path]
"""Writes something into a folder and gives the path that a user would type."""

ROWS = [{"step": k, "loss": 3.0 - 0.05 * k, "lr": 1e-3, "grad_norm": 1.5} for k in range(30)]
CSV = "step,loss,lr,grad_norm\n" + "".join(
    f"{r['step']},{r['loss']},{r['lr']},{r['grad_norm']}\n" for r in ROWS
)
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
STATE = json.dumps({"log_history": ROWS, "global_step": 30, "best_metric": None})
LISTS = json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]})
BASES = {"log.csv": CSV, "log.jsonl": JSONL, "trainer_state.json": STATE, "lists.json": LISTS}

# What stands in place of a number, in each kind of file.
NUMBERS = (
    "NaN",
    "-Infinity",
    "1e999",
    "-1",
    "1e300",
    "9" * 5000,
    "0x10",
    "1_000",
    "true",
    "null",
    '"text"',
    "[1, 2]",
    "{}",
    "[" * 30_000,
    "",
)
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf",
    "spaces": b"  \n\t\n",
    "a NUL": b"\0",
    "NULs": b"\0" * 5000,
    "bytes": bytes(range(256)) * 8,
    "UTF-16": CSV.encode("utf-16"),
    "Latin-1": "étape,perte\n1,2\n".encode("latin-1"),
    "a gzip head": b"\x1f\x8b\x08\0" + b"x" * 300,
    "one line": b"step,loss",
    "no header": b"1,2\n3,4\n",
    "quotes that stay open": b'step,loss\n1,"2\n3,4\n',
    "a long field": b"step,loss\n1," + b"9" * 200_000 + b"\n",
    "a long name": b"step," + b"x" * 100_000 + b"\n1,2\n",
    "equal names": b"step,loss,loss,loss\n1,2,3,4\n",
    "names of nothing": b",,,\n1,2,3,4\n",
    "ragged rows": b"step,loss\n1\n2,3,4,5,6\n,\n7,8\n",
    "old line ends": b"step,loss\r1,2\r3,4\r",
    "semicolons": b"step;loss\n1;2,5\n",
    "escapes": b"step,\x1b]0;owned\x07loss\n1,2\n",
    "markup": b"step,<script>alert(1)</script>\n1,2\n",
    "a formula": b"step,=cmd|' /C calc'!A0\n1,2\n",
    "a number": b"5",
    "a list of numbers": b"[1, 2, 3]",
    "a list of lists": b"[[1], [2]]",
    "an object": b"{}",
    "an empty history": b'{"log_history": []}',
    "a history that is none": b'{"log_history": 3, "history": null}',
    "lists of two lengths": b'{"step": [1, 2], "loss": [1]}',
    "lists of nothing": b'{"step": [], "loss": []}',
    "rows of nothing": b"[{}, {}, {}]",
    "deep": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "half an object": b'{"log_history": [{"step": 1, "loss": ',
    "lone surrogates": b'[{"step": 1, "\\ud800": 2, "loss": 3}]',
    "names twice": b'[{"step": 1, "step": 2, "loss": 3}]',
    "a pickle": b"\x80\x04cposix\nsystem\n(S'touch EXECUTED'\ntR.",
}


def variants(seed: int = 0) -> Iterator[tuple[str, Make]]:
    """Name and action; the same 300 every time."""
    written = [*places(), *texts(), *numbers(), *events()]
    yield from written
    rng = random.Random(seed)
    bases = list(BASES.items())
    for number in range(NUMBER - len(written)):
        name, text = bases[number % len(bases)]
        change = flipped if number % 3 else cut_short
        yield f"{name} {change.__name__} {number}", _file(name, change(text, rng))


def texts() -> Iterator[tuple[str, Make]]:
    for number, (what, data) in enumerate(TEXTS.items()):
        names = list(BASES)[:3]
        for name in names if number % 2 else names[::2]:
            yield f"{name}: {what}", _file(name, data)


def numbers() -> Iterator[tuple[str, Make]]:
    for number in NUMBERS:
        label = number[:12]
        csv_row = f'step,loss\n0,1\n{number},{number}\n"{number}",2\n'
        yield f"CSV with {label!r}", _file("log.csv", csv_row.encode())
        row = f'{{"step": {number or "0"}, "loss": {number or "0"}}}\n'
        yield f"JSON lines with {label!r}", _file("log.jsonl", (JSONL + row).encode())
        yield f"a state with {label!r}", _file("trainer_state.json", f"[{row.strip()}]".encode())


def places() -> Iterator[tuple[str, Make]]:
    for name in BASES:
        yield f"{name} is a folder", _made(name, Path.mkdir)
        yield f"{name} is a pipe", _made(name, os.mkfifo)
        yield f"{name} leads to itself", _made(name, lambda file: file.symlink_to(file))
        yield f"{name} leads to a device", _made(name, lambda file: file.symlink_to("/dev/zero"))
        yield f"{name} is not there", lambda folder, name=name: folder / name
    yield "a name of dots", lambda folder: folder / "..." / ".." / "log.csv"
    yield "a name that is too long", lambda folder: folder / ("x" * 300 + ".csv")
    yield "a name that is not UTF-8", _file(os.fsdecode(b"log-\xff.csv"), CSV.encode())
    yield "a name with a line end", _file("log\nlog.csv", CSV.encode())
    yield "a file as a folder", lambda folder: _file("log.csv", b"")(folder) / "log.csv"


def events() -> Iterator[tuple[str, Make]]:
    """Folders of TensorBoard: the frame of a record is its length, a checksum, the data, a checksum."""
    name = "events.out.tfevents.1.host"
    frame = struct.pack("<QI", 24, 1234) + b"x" * 24 + struct.pack("<I", 1)
    contents = {
        "nothing": b"",
        "text": b"not events",
        "a wrong checksum": frame,
        "a length that lies": struct.pack("<Q", 2**63) + b"x" * 50,
        "half a frame": frame[:20],
    }
    for what, data in contents.items():
        yield f"events: {what}", _folder(_file(name, data))
    yield "events: a pipe", _folder(_made(name, os.mkfifo))
    yield "events: a folder", _folder(_made(name, Path.mkdir))
    yield "events: a link to itself", _folder(_made(name, lambda file: file.symlink_to(file)))


def flipped(text: str, rng: random.Random) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rng.choice([1, 4, 40])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def cut_short(text: str, rng: random.Random) -> bytes:
    return text.encode()[: rng.randrange(len(text))]


def _file(name: str, data: bytes) -> Make:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return make


def _made(name: str, create: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> Path:
        create(folder / name)
        return folder / name

    return make


def _folder(make: Make) -> Make:
    return lambda folder: make(folder).parent
