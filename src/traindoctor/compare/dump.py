"""Dump folders: a trace on disk, written by a program of any language (docs/dump-format.md). Nothing in them is executed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.trace import KINDS, Entry, Trace
from traindoctor.errors import TraindoctorError
from traindoctor.plain_files import parse_json, read_bytes, read_text, require_file

INDEX = "index.jsonl"
FORMAT = 1
# name in the index -> how the bytes are read; bfloat16 is the upper half of a float32
DTYPES = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "<i1",
    "uint8": "<u1",
    "bool": "<u1",
}
# What a safetensors file calls them.
SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
MOST_ELEMENTS = 1 << 36
MOST_DIMENSIONS = 16


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
        lines = read_text(index).splitlines()
    except (OSError, ValueError) as error:
        raise DumpError(f"{index} cannot be read: {error}") from None
    head = _parsed(lines[0], f"{index}, line 1") if lines else {}
    if head.get("format") != FORMAT:
        raise DumpError(
            f'{index} does not begin with {{"format": {FORMAT}}}, the first line of a dump (docs/dump-format.md)'
        )
    settings = head.get("settings") or {}
    entries, seen = [], set()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        entry = _entry(folder, _parsed(line, f"{index}, line {number}"), f"{index}, line {number}")
        if entry.key in seen:
            raise DumpError(
                f"{index}, line {number}: {entry.kind} {entry.name!r} of step {entry.step} stands there twice; "
                "add #2 to the name of a second call"
            )
        seen.add(entry.key)
        entries.append(entry)
    if not entries:
        raise DumpError(f"{index} lists no tensors")
    return Trace(
        tuple(entries), title=str(folder), settings=settings if isinstance(settings, dict) else {}
    )


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


def _entry(folder: Path, row: Mapping[str, Any], where: str) -> Entry:
    name, kind, step = row.get("name"), row.get("kind"), row.get("step")
    shape, dtype, file = row.get("shape"), row.get("dtype"), row.get("file")
    if not isinstance(name, str) or not name:
        raise DumpError(f"{where}: 'name' must be a text")
    if kind not in KINDS:
        raise DumpError(f"{where}: 'kind' must be one of {', '.join(KINDS)}, it is {kind!r}")
    if type(step) is not int or step < 0:
        raise DumpError(f"{where}: 'step' must be a whole number from 0 on, it is {step!r}")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMENSIONS
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(shape) > MOST_ELEMENTS
    ):
        raise DumpError(f"{where}: 'shape' must be a list of lengths, it is {str(shape)[:80]}")
    if dtype not in DTYPES:
        raise DumpError(f"{where}: 'dtype' must be one of {', '.join(DTYPES)}, it is {dtype!r}")
    rows = row.get("rows")
    if rows is not None and (
        not shape
        or not isinstance(rows, list)
        or not all(type(n) is int and 0 <= n < max(1, math.prod(shape[:-1])) for n in rows)
    ):
        raise DumpError(f"{where}: 'rows' must be a list of row numbers below {shape[:-1]}")
    about = row.get("about")
    read = _reader(
        folder, row, file, (len(rows), shape[-1]) if rows is not None else tuple(shape), where
    )
    return Entry(
        name=name,
        kind=str(kind),
        step=step,
        shape=tuple(shape),
        dtype=dtype,
        read=read,
        rows=tuple(rows) if rows is not None else None,
        about=about if isinstance(about, dict) else {},
    )


def _reader(
    folder: Path, row: Mapping[str, Any], file: Any, shape: tuple[int, ...], where: str
) -> Callable[[], NDArray[Any]]:
    """Checks what can be checked without reading the numbers."""
    if (
        not isinstance(file, str)
        or not file
        or Path(file).is_absolute()
        or ".." in Path(file).parts
    ):
        raise DumpError(f"{where}: 'file' must name a file inside the folder, it is {file!r}")
    path = folder / file
    try:
        size = require_file(path).st_size
    except (OSError, ValueError) as error:
        raise DumpError(f"{where}: {path} cannot be read: {error}") from None
    dtype = row["dtype"]
    if path.suffix == ".npy":
        return lambda: _of_npy(path, dtype, shape)
    if path.suffix == ".safetensors":
        key = row.get("key", row["name"])
        return lambda: _of_safetensors(path, str(key), dtype, shape)
    offset = row.get("offset", 0)
    needed = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if type(offset) is not int or offset < 0 or offset + needed > size:
        raise DumpError(
            f"{where}: {path} has {size} bytes, {row['name']!r} needs {needed} from {offset!r} on: "
            "the file is truncated, or shape, dtype or offset are wrong"
        )
    return lambda: _of_raw(path, dtype, shape, offset)


def _of_raw(path: Path, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
    if not math.prod(shape):
        return np.zeros(shape, np.float32)
    return widened(np.memmap(path, DTYPES[dtype], "r", offset, shape), dtype)


def _of_npy(path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        read = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DumpError(f"{path} is not a valid .npy file: {error}") from None
    return widened(_as_said(read, path, dtype, shape), dtype)


def _of_safetensors(path: Path, key: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    from safetensors import SafetensorError, deserialize

    try:
        parts = dict(deserialize(read_bytes(path, most=1 << 34)))  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError, ValueError) as error:
        raise DumpError(f"{path} is not a valid safetensors file: {error}") from None
    if key not in parts:
        raise DumpError(f"{path} has no tensor {key!r}")
    part = parts[key]
    stored = SAFETENSORS.get(part["dtype"], part["dtype"])
    if stored != dtype:
        raise DumpError(f"{path}: {key!r} is {stored}, the index says {dtype}")
    read = np.frombuffer(part["data"], DTYPES[dtype])
    return widened(_as_said(read.reshape(part["shape"]), path, dtype, shape), dtype)


def _as_said(read: NDArray[Any], path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if read.shape != shape:
        raise DumpError(f"{path} has the shape {read.shape}, the index says {shape}")
    expected = np.dtype(DTYPES[dtype])
    if read.dtype.itemsize != expected.itemsize:
        raise DumpError(f"{path} has the dtype {read.dtype}, the index says {dtype}")
    return read


def widened(read: NDArray[Any], dtype: str) -> NDArray[Any]:
    """NumPy knows no bfloat16: its bits are the upper half of a float32's."""
    if dtype != "bfloat16":
        return np.asarray(read)
    return (np.asarray(read).view("<u2").astype(np.uint32) << 16).view(np.float32)


class DumpWriter:
    """Writes a dump, one tensor after the other; what was written stays readable if the program dies.

    >>> with DumpWriter("dump", settings={"lr": 1e-3}) as dump:
    ...     dump.write("blocks.0.mlp", "activation", step=0, values=array)
    """

    def __init__(self, folder: str | Path, *, settings: Mapping[str, Any] | None = None) -> None:
        self.folder = Path(folder)
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
        row: dict[str, Any] = {
            "name": name,
            "kind": kind,
            "step": step,
            "shape": list(values.shape if shape is None else shape),
            "dtype": dtype or str(values.dtype),
            "file": "tensors.bin",
            "offset": self._data.tell(),
        }
        if rows is not None:
            row["rows"] = list(rows)
        if about:
            row["about"] = dict(about)
        self._data.write(np.ascontiguousarray(values).tobytes())
        self._data.flush()
        self._line(row)

    def _line(self, row: Mapping[str, Any]) -> None:
        self._index.write(json.dumps(row) + "\n")
        self._index.flush()

    def close(self) -> None:
        self._index.close()
        self._data.close()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
