"""Where the numbers of a tensor stand in a file: raw, .npy or .safetensors. Headers are read as text and never evaluated."""

import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from traindoctor.plain_files import parse_json, require_file

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
# What a .npy file calls those that NumPy has under another name, or not at all.
NPY = {"bfloat16": ("u2", "i2", "V2"), "bool": ("b1", "u1")}
# Bytes of a header: NumPy's own limit, and that of the safetensors library.
MOST_NPY_HEADER, MOST_SAFETENSORS_HEADER = 10_000, 100_000_000


@dataclass(frozen=True)
class Stored:
    """The place of some numbers in a file."""

    file: Path
    dtype: str
    """One of DTYPES."""
    shape: tuple[int, ...]
    offset: int = 0
    order: str = "<"
    fortran: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize

    def read(self) -> NDArray[Any]:
        """The numbers; ValueError or OSError where the file is no longer what it was.

        They are read and not mapped: a mapped file that somebody truncates ends the process.
        """
        with opened(self.file) as file:
            dtype = np.dtype(DTYPES[self.dtype]).newbyteorder(self.order)  # type: ignore[arg-type]
            count = math.prod(self.shape)
            try:
                found = np.fromfile(file, dtype, count, offset=self.offset)
            except MemoryError:
                raise ValueError(f"{self.bytes} bytes do not fit into memory") from None
        if len(found) < count:
            raise ValueError("it is shorter than it was when the index was read")
        shaped = found.reshape(self.shape, order="F" if self.fortran else "C")
        return widened(shaped.astype(dtype.newbyteorder("="), copy=False), self.dtype)


def opened(path: Path) -> BinaryIO:
    """A regular file; one that somebody replaced by a pipe is opened without waiting, and refused."""
    require_file(path)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError("it is not a regular file")
    return file


def in_npy(path: Path, dtype: str) -> Stored:
    """What a .npy file holds; ValueError where that is not `dtype`, or no array at all."""
    with opened(path) as file:
        start = file.read(12)
        if start[:6] != b"\x93NUMPY" or len(start) < 12 or start[6] not in (1, 2, 3):
            raise ValueError("it does not begin as a .npy file does")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(start[8 : 8 + width], "little")
        if length > MOST_NPY_HEADER:
            raise ValueError(f"its header has {length} bytes")
        file.seek(8 + width)
        header = file.read(length).decode("latin-1")
    described = re.search(r"""["']descr["']\s*:\s*["']([<>|=])(\w+)["']""", header)
    fortran = re.search(r"""["']fortran_order["']\s*:\s*(True|False)""", header)
    shaped = re.search(r"""["']shape["']\s*:\s*\(([\d\s,]*)\)""", header)
    if len(header) < length or not (described and fortran and shaped):
        raise ValueError("its header does not describe an array of plain numbers")
    if described[2] not in NPY.get(dtype, (DTYPES[dtype][1:],)):
        raise ValueError(f"its dtype is {described[2]}, the index says {dtype}")
    lengths = [text.strip() for text in shaped[1].split(",") if text.strip()]
    if not all(text.isdigit() and len(text) <= 15 for text in lengths):
        raise ValueError("its shape is not a shape")
    return Stored(
        path,
        dtype,
        tuple(map(int, lengths)),
        offset=8 + width + length,
        order=">" if described[1] == ">" else "<",
        fortran=fortran[1] == "True",
    )


def safetensors_header(path: Path) -> tuple[int, Mapping[str, Any]]:
    """Where the data of a .safetensors file begin, and its list of tensors."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, MOST_SAFETENSORS_HEADER):
            raise ValueError("it does not begin as a .safetensors file does, or it is truncated")
        found = parse_json(file.read(length))
    if not isinstance(found, dict):
        raise ValueError("its header is not a JSON object")
    return 8 + length, found


def in_safetensors(path: Path, start: int, header: Mapping[str, Any], key: str) -> Stored:
    """One tensor of a .safetensors file; ValueError where it has none of this name."""
    found = header.get(key)
    if found is None or key == "__metadata__":
        raise ValueError(f"it has no tensor {key!r}")
    dtype, shape, place = (
        (found.get("dtype"), found.get("shape"), found.get("data_offsets"))
        if isinstance(found, dict)
        else (None, None, None)
    )
    if not isinstance(dtype, str) or dtype not in SAFETENSORS:
        raise ValueError(f"{key!r} has the dtype {dtype!r}, which a dump cannot hold")
    if not _lengths(shape) or not _lengths(place) or len(place) != 2:
        raise ValueError(f"what its header says of {key!r} is not a shape and two offsets")
    stored = Stored(path, SAFETENSORS[dtype], tuple(shape), start + place[0])
    if place[1] - place[0] != stored.bytes:
        raise ValueError(f"{key!r} has {place[1] - place[0]} bytes, its shape needs {stored.bytes}")
    return stored


def _lengths(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def widened(read: NDArray[Any], dtype: str) -> NDArray[Any]:
    """NumPy knows no bfloat16: its bits are the upper half of a float32's."""
    if dtype != "bfloat16":
        return np.asarray(read)
    return (np.asarray(read).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
