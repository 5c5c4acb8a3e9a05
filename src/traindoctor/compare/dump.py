"""Dump folders: a trace on disk, written by a program of any language (docs/dump-format.md). Nothing in them is executed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.stored import DTYPES, Stored, in_npy, in_safetensors, safetensors_header
from traindoctor.compare.trace import KINDS, Entry, Trace
from traindoctor.errors import TraindoctorError
from traindoctor.plain_files import parse_json, read_text, require_file

INDEX = "index.jsonl"
FORMAT = 1
MOST_ELEMENTS = 1 << 36
MOST_DIMENSIONS = 16
# A dump is a few steps, counted from its first.
MOST_STEPS = 1000
# Characters of a name, and of a wrong value that a sentence repeats.
MOST_NAMED, MOST_SHOWN = 400, 80
# What explanations compute with, and what it must be; anything else may stand in `settings` too.
NUMBERS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "lr": ("a number", math.isfinite),
    "weight_decay": ("a number", math.isfinite),
    "beta1": ("a number from 0 to below 1", lambda value: 0 <= value < 1),
    "beta2": ("a number from 0 to below 1", lambda value: 0 <= value < 1),
    "eps": ("a number from 0 on", lambda value: 0 <= value < math.inf),
    "heads": ("a whole number from 1 on", lambda value: value >= 1 and float(value).is_integer()),
}


class DumpError(TraindoctorError):
    """A dump folder that is missing, truncated or not as its index says."""

    def __init__(self, message: str) -> None:
        super().__init__(message, slug="bad-dump")


def is_dump(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def read_dump(folder: Path) -> Trace:
    """The trace in a folder; every line of its index and every file's size is checked here, values are read later."""
    index = folder / INDEX
    try:
        # Not splitlines(): a name may hold what Python takes for the end of a line.
        lines = read_text(index).split("\n")
    except (OSError, ValueError) as error:
        raise DumpError(f"{index} cannot be read: {_reason(error)}") from None
    head = _parsed(lines[0], f"{index}, line 1") if lines[0].strip() else {}
    if type(head.get("format")) is not int or head["format"] != FORMAT:
        raise DumpError(
            f'{index} does not begin with {{"format": {FORMAT}}}, the first line of a dump (docs/dump-format.md)'
        )
    settings = head.get("settings") or {}
    if not isinstance(settings, dict):
        raise DumpError(f"{index}, line 1: 'settings' must be an object")
    _check_numbers(settings, f"{index}, line 1: 'settings'")
    files = _Files(folder)
    entries, seen = [], set()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        where = f"{index}, line {number}"
        entry = _entry(files, _parsed(line, where), where)
        if entry.key in seen:
            raise DumpError(
                f"{where}: {entry.kind} {entry.name!r} of step {entry.step} stands there twice; "
                "add #2 to the name of a second call"
            )
        seen.add(entry.key)
        entries.append(entry)
    if not entries:
        raise DumpError(f"{index} lists no tensors")
    return Trace(tuple(entries), title=str(folder), settings=settings)


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except ValueError as error:
        raise DumpError(
            f"{where} is not valid JSON ({error}): was the program stopped while it wrote?"
        ) from None
    if not isinstance(value, dict):
        raise DumpError(f"{where} must be a JSON object")
    return value


def _check_numbers(given: Mapping[str, Any], where: str) -> None:
    for name, (words, right) in NUMBERS.items():
        value = given.get(name)
        if value is not None and (type(value) not in (int, float) or not right(value)):
            raise DumpError(f"{where}: {name!r} must be {words}, it is {_cut(value)}")


def _entry(files: _Files, row: Mapping[str, Any], where: str) -> Entry:
    name, kind, step = row.get("name"), row.get("kind"), row.get("step")
    shape, dtype, rows = row.get("shape"), row.get("dtype"), row.get("rows")
    # A name is shown on terminals: no control characters, no halves of characters.
    if not _is_text(name):
        raise DumpError(
            f"{where}: 'name' must be a printable text of at most {MOST_NAMED} characters, it is {_cut(name)}"
        )
    if not isinstance(kind, str) or kind not in KINDS:
        raise DumpError(f"{where}: 'kind' must be one of {', '.join(KINDS)}, it is {_cut(kind)}")
    if type(step) is not int or not 0 <= step < MOST_STEPS:
        raise DumpError(
            f"{where}: 'step' must be a whole number from 0 to {MOST_STEPS - 1}, it is {_cut(step)}"
        )
    if not _is_shape(shape):
        raise DumpError(f"{where}: 'shape' must be a list of lengths, it is {_cut(shape)}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise DumpError(f"{where}: 'dtype' must be one of {', '.join(DTYPES)}, it is {_cut(dtype)}")
    if kind == "loss" and math.prod(shape) != 1:
        raise DumpError(f"{where}: the loss must be one number, its shape is {_cut(shape)}")
    if rows is not None and (
        not shape
        or not isinstance(rows, list)
        or not all(type(n) is int and 0 <= n < math.prod(shape[:-1]) for n in rows)
    ):
        raise DumpError(f"{where}: 'rows' must be a list of row numbers below {shape[:-1]}")
    about = row.get("about")
    about = about if isinstance(about, dict) else {}
    _check_numbers({"eps": about.get("eps")}, f"{where}: 'about'")
    kept = (len(rows), shape[-1]) if rows is not None else tuple(shape)
    return Entry(
        name=name,
        kind=kind,
        step=step,
        shape=tuple(shape),
        dtype=dtype,
        read=_reader(files.find(row, name, dtype, kept, where)),
        rows=tuple(rows) if rows is not None else None,
        about=about,
    )


def _is_shape(shape: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(shape, list)
        and len(shape) <= MOST_DIMENSIONS
        and all(type(n) is int and n >= 0 for n in shape)
        # NumPy wants the other lengths of an empty array to be possible too.
        and math.prod(n for n in shape if n) <= MOST_ELEMENTS
    )


def _is_text(value: Any) -> TypeGuard[str]:
    return (
        isinstance(value, str)
        and value.isprintable()
        and bool(value.strip())
        and len(value) <= MOST_NAMED
    )


def _cut(value: Any) -> str:
    """A value of the index in a sentence."""
    text = ascii(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."


def _reason(error: Exception) -> str:
    """Without the path, which the sentence names already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class _Files:
    """The files of a dump; headers are read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[Path, tuple[int, Mapping[str, Any]]] = {}

    def find(
        self, row: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...], where: str
    ) -> Stored:
        """Where the numbers of a line of the index stand; all that can be wrong but the numbers is told here."""
        file, offset, key = row.get("file"), row.get("offset", 0), row.get("key", name)
        if not _is_text(file) or Path(file).is_absolute() or ".." in Path(file).parts:
            raise DumpError(
                f"{where}: 'file' must name a file inside the folder, it is {_cut(file)}"
            )
        if not isinstance(key, str):
            raise DumpError(f"{where}: 'key' must be a text, it is {_cut(key)}")
        if type(offset) is not int or offset < 0:
            raise DumpError(f"{where}: 'offset' must be a number of bytes, it is {_cut(offset)}")
        path = self._folder / file
        try:
            size = require_file(path).st_size
            if path.suffix == ".npy":
                stored = in_npy(path, dtype)
            elif path.suffix == ".safetensors":
                if path not in self._headers:
                    self._headers[path] = safetensors_header(path)
                stored = in_safetensors(path, *self._headers[path], key)
            else:
                stored = Stored(path, dtype, shape, offset)
        except (OSError, ValueError) as error:
            raise DumpError(f"{where}: {path} cannot be used: {_reason(error)}") from None
        if (stored.dtype, stored.shape) != (dtype, shape):
            raise DumpError(
                f"{where}: {path} holds {stored.dtype} of shape {_cut(list(stored.shape))}, "
                f"the index says {dtype} of shape {_cut(list(shape))}"
            )
        if stored.offset + stored.bytes > size:
            raise DumpError(
                f"{where}: {path} has {size} bytes, {_cut(name)} needs {stored.bytes} from {stored.offset} on: "
                "the file is truncated, or shape, dtype or offset are wrong"
            )
        return stored


def _reader(stored: Stored) -> Callable[[], NDArray[Any]]:
    def read() -> NDArray[Any]:
        try:
            return stored.read()
        except (OSError, ValueError) as error:
            raise DumpError(f"{stored.file} cannot be read: {_reason(error)}") from None

    return read


class DumpWriter:
    """Writes a dump, one tensor after the other; what was written stays readable if the program dies.

    >>> with DumpWriter("dump", settings={"lr": 1e-3}) as dump:
    ...     dump.write("blocks.0.mlp", "activation", step=0, values=array)
    """

    def __init__(self, folder: str | Path, *, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        with self._said():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._index: IO[str] = (self.folder / INDEX).open("w", encoding="utf-8")
            self._data: IO[bytes] = (self.folder / "tensors.bin").open("wb")
        self._line({"format": FORMAT, "settings": dict(settings or {})})

    def write(
        self,
        name: str,
        kind: str,
        *,
        step: int,
        values: NDArray[Any],
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        rows: tuple[int, ...] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """`values` of a NumPy dtype of DTYPES; bfloat16 comes as its 16 bits (uint16) with `dtype="bfloat16"`."""
        dtype = dtype or values.dtype.name
        if dtype not in DTYPES or values.dtype.itemsize != np.dtype(DTYPES[dtype]).itemsize:
            raise ValueError(
                f"{name}: a dump cannot hold {values.dtype} as {dtype}; its dtypes are {', '.join(DTYPES)}"
            )
        if kind not in KINDS:
            raise ValueError(f"{name}: kind must be one of {', '.join(KINDS)}, not {kind!r}")
        row: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "step": step,
            "shape": list(values.shape if shape is None else shape),
            "dtype": dtype,
            "file": "tensors.bin",
            "offset": self._data.tell(),
        }
        if rows is not None:
            row["rows"] = list(rows)
        if about:
            row["about"] = dict(about)
        with self._said():
            self._data.write(values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
            self._data.flush()
        self._line(row)

    def _line(self, row: Mapping[str, Any]) -> None:
        with self._said():
            self._index.write(json.dumps(row) + "\n")
            self._index.flush()

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DumpError(f"cannot write {self.folder}: {_reason(error)}") from None

    def close(self) -> None:
        with self._said():
            try:
                self._index.close()
            finally:
                self._data.close()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What could not be written then cannot be written now either: the first error is the one to tell.
        with suppress(DumpError) if value is not None else nullcontext():
            self.close()
