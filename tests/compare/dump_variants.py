"""Spoilt dumps: every field of the index and every kind of file with what does not belong there."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from compare.made_traces import transformer, write

NPY, SAFETENSORS, RAW, INDEX = "head.npy", "mlp.safetensors", "tensors.bin", "index.jsonl"
# Lines of the index: what is stored in which file.
OF_RAW, OF_NPY, OF_SAFETENSORS = "blocks.0.norm", "head", "blocks.0.mlp"
HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 5, 11), }"
DEEP = "[" * 30_000 + "]" * 30_000
MISSING = object()


class Variant(NamedTuple):
    name: str
    spoil: Callable[[Path], object]
    outcome: str
    """refused: exit status 2 and one sentence; read: an answer; any: one of both."""


class Harmful:
    """Unpickled, it makes a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.where),)


def make_dump(folder: Path, seed: int = 0) -> Path:
    """A small dump, one output of which is stored as .npy and one as .safetensors."""
    entries = transformer(seed, layers=1)
    write(folder, entries, lr=0.1, heads=2)
    kept = {one.name: one.read() for one in entries if one.kind == "activation"}
    np.save(folder / NPY, kept[OF_NPY])
    save_file({OF_SAFETENSORS: kept[OF_SAFETENSORS]}, folder / SAFETENSORS)
    change(folder, OF_NPY, file=NPY, offset=MISSING)
    change(folder, OF_SAFETENSORS, file=SAFETENSORS, offset=MISSING)
    return folder


def change(folder: Path, output: str, /, **fields: Any) -> None:
    """Other values in the line of an output."""
    lines = (folder / INDEX).read_text().split("\n")
    for number, line in enumerate(lines[1:-1], start=1):
        row = json.loads(line)
        if (row["name"], row["kind"]) == (output, "activation"):
            row = {key: value for key, value in {**row, **fields}.items() if value is not MISSING}
            lines[number] = json.dumps(row)
    (folder / INDEX).write_text("\n".join(lines))


def variants(mark: Path) -> Iterator[Variant]:
    """The same ones every time; whatever they hold that could run makes `mark`."""
    yield from fields()
    yield from heads()
    yield from indices(mark)
    for name in (RAW, NPY, SAFETENSORS, INDEX):
        yield from files(name)
    yield from npy(mark)
    yield from safetensors(mark)
    yield from numbers()
    yield from random_ones()


def fields() -> Iterator[Variant]:
    """Of one line of the index."""
    wrong: dict[str, list[Any]] = {
        "name": [MISSING, None, 3, "", " ", [], {}, "a\nb", "\x1b[31m", "\ud800", "\0", "x" * 9000],
        "kind": [MISSING, None, 3, "", "weights", [], {}],
        "step": [MISSING, None, -1, 1.5, "0", True, 1000, 10**17, 10**30, 1e300, [0], float("nan")],
        "shape": [
            *(MISSING, None, 3, "2, 5, 8", {}, [-2, -5, 8], [2.0, 5, 8], [True, 80], [None], [[2]]),
            *([1] * 20, [2**62, 2**62], [0, 2**62], [10**30], [1e9], [2, 5, 8000]),
        ],
        "dtype": [MISSING, None, 4, "float128", "<f4", "object", "Float32", [], {}],
        "file": [
            *(
                MISSING,
                None,
                "",
                3,
                [],
                "../good/tensors.bin",
                "a/../../good/tensors.bin",
                "/dev/zero",
            ),
            *("/etc/hostname", ".", "..", "none.bin", "a\0b", "tensors.bin\n", "\ud800", "x" * 300),
            *("tensors.bin/x", "index.jsonl/../tensors.bin"),
        ],
        "offset": [None, -1, 1.5, "0", True, 10**9, 2**63, 10**30, float("inf"), []],
        "rows": [3, "0", {}, [-1], [10], [1.5], [True], [None], [[0]], [10**30]],
        "about": [{"eps": "x"}, {"eps": -1}, {"eps": [1]}, {"eps": float("inf")}, {"eps": True}],
    }
    for field, values in wrong.items():
        for value in values:
            yield Variant(f"{field} is {_said(value)}", _changed(OF_RAW, field, value), "refused")
    for value in (MISSING, None, 3, [], {"op": 3}, {"eps": None}, {"eps": 1e-5}, {"a": {"b": []}}):
        yield Variant(f"about is {_said(value)}", _changed(OF_RAW, "about", value), "read")
    for value in (None, 3, [], "another", "__metadata__"):
        yield Variant(f"key is {_said(value)}", _changed(OF_SAFETENSORS, "key", value), "refused")
    for dtype in ("float16", "int32", "uint8", "bfloat16"):
        yield Variant(f"{dtype} in .npy", _changed(OF_NPY, "dtype", dtype), "refused")
        yield Variant(f"{dtype} of a key", _changed(OF_SAFETENSORS, "dtype", dtype), "refused")
    for shape in ([2, 5, 12], [110], [5, 2, 11], []):
        yield Variant(f"{shape} in .npy", _changed(OF_NPY, "shape", shape), "refused")
        yield Variant(f"{shape} of a key", _changed(OF_SAFETENSORS, "shape", shape), "refused")
    yield Variant("an unknown field", _changed(OF_RAW, "more", {"a": 1}), "read")
    yield Variant("no rows", _changed(OF_RAW, "rows", []), "read")
    yield Variant("some rows", _changed(OF_RAW, "rows", [0, 3]), "read")
    yield Variant("another shape", _changed(OF_RAW, "shape", [2, 5, 9]), "read")
    yield Variant("another dtype", _changed(OF_RAW, "dtype", "float64"), "read")
    yield Variant("the same numbers in another shape", _changed(OF_RAW, "shape", [10, 8]), "read")
    yield Variant("a number of no dimensions", _changed(OF_RAW, "shape", []), "read")
    yield Variant("an empty tensor", _changed(OF_RAW, "shape", [0, 5, 8]), "read")
    yield Variant("whole numbers for floats", _changed(OF_RAW, "dtype", "int32"), "read")
    yield Variant("a loss of many numbers", _changed(OF_RAW, "kind", "loss"), "refused")
    for kind in ("weight", "update", "gradient"):
        yield Variant(f"an output that is a {kind}", _changed(OF_RAW, "kind", kind), "any")


def heads() -> Iterator[Variant]:
    """The first line."""
    for value in ("2", '"1"', "1.0", "true", "null", "[]", "1e400"):
        yield Variant(f"format is {value}", _line(0, f'{{"format": {value}}}'), "refused")
    for settings in (
        *('"x"', "3", "[1]"),
        *('{"heads": 0}', '{"heads": -2}', '{"heads": 2.5}', '{"heads": "2"}', '{"heads": 1e400}'),
        *('{"heads": true}', '{"lr": NaN}', '{"lr": "fast"}', '{"lr": [0.1]}', '{"beta1": 1}'),
        *('{"beta2": 1.5}', '{"beta2": -0.1}', '{"eps": -1}', '{"weight_decay": Infinity}'),
    ):
        head = f'{{"format": 1, "settings": {settings}}}'
        yield Variant(f"settings are {settings}", _line(0, head), "refused")
    for settings in (
        *("null", "{}", '{"heads": 7}', '{"heads": 1000000}', '{"heads": 3.0}', '{"lr": 0}'),
        *('{"lr": 1e300, "weight_decay": 1e300}', '{"beta1": 0.0, "beta2": 0}', '{"lr": null}'),
        '{"heads": 1' + "0" * 40 + "}",
    ):
        head = f'{{"format": 1, "settings": {settings}}}'
        yield Variant(f"settings are {settings[:40]}", _line(0, head), "read")


def indices(mark: Path) -> Iterator[Variant]:
    """The text of the index."""
    texts = {
        "nothing": b"",
        "blank lines": b"\n\n\n",
        "the first line alone": b'{"format": 1}\n',
        "not UTF-8": b'{"format": 1}\n{"name": "\xff\xfe"}\n',
        "UTF-16": '{"format": 1}\n'.encode("utf-16"),
        "zeros": bytes(5000),
        "a list": b"[]\n",
        "deep": DEEP.encode(),
        "a deep line": b'{"format": 1}\n' + DEEP.encode(),
        "a long number": b'{"format": ' + b"9" * 5000 + b"}\n",
        "a pickle": pickle.dumps(Harmful(mark)),
        "NaN as a line": b'{"format": 1}\nNaN\n',
        "a line of words": b'{"format": 1}\nhello\n',
        "two objects in a line": b'{"format": 1}{"format": 1}\n',
    }
    for name, text in texts.items():
        yield Variant(f"the index is {name}", _written(INDEX, lambda _, text=text: text), "refused")
    yield Variant("a line stands there twice", _twice, "refused")
    yield Variant("a byte order mark", _written(INDEX, lambda old: b"\xef\xbb\xbf" + old), "read")
    crlf = _written(INDEX, lambda old: old.replace(b"\n", b"\r\n"))
    yield Variant("lines that end as on Windows", crlf, "read")
    yield Variant(
        "blank lines between", _written(INDEX, lambda o: o.replace(b"\n", b"\n\n")), "read"
    )
    separator = _written(INDEX, lambda o: o.replace(b"blocks.0.norm", b"blocks.0\xe2\x80\xa8norm"))
    yield Variant("a line separator in names", separator, "refused")
    yield Variant("the lines in another order", _reversed, "read")
    yield Variant("an empty folder", _emptied, "refused")
    for share in range(1, 20):
        cut = _written(INDEX, lambda old, share=share: old[: len(old) * share // 20])
        yield Variant(f"the index ends at {share} of 20", cut, "any")


def files(name: str) -> Iterator[Variant]:
    """A path that is no file, or another one."""

    def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
        def spoil(folder: Path) -> None:
            (folder / name).unlink()
            make(folder / name)

        return spoil

    yield Variant(f"{name} is gone", replaced(lambda _: None), "refused")
    yield Variant(f"{name} is a folder", replaced(lambda file: file.mkdir()), "refused")
    yield Variant(f"{name} is a pipe", replaced(os.mkfifo), "refused")
    for target in ("/dev/zero", "/dev/tty", "/nonexistent", name):
        link = replaced(lambda file, target=target: file.symlink_to(target))
        yield Variant(f"{name} is a link to {target}", link, "refused")
    yield Variant(f"{name} is a link to a pipe", replaced(_linked_pipe), "refused")
    yield Variant(f"{name} is a link to a file", lambda f: _linked(f / name), "read")
    yield Variant(f"{name} is empty", _written(name, lambda _: b""), "refused")
    yield Variant(f"{name} is text", _written(name, lambda _: b"text\n" * 9000), "any")
    for part in (1, 7, 9, 50):
        cut = _written(name, lambda old, part=part: old[: len(old) * part // 100])
        yield Variant(f"{name} ends at {part} %", cut, "refused")
    yield Variant(f"{name} lacks a byte", _written(name, lambda old: old[:-2]), "refused")
    if name != INDEX:
        yield Variant(f"{name} has more bytes", _written(name, lambda old: old + b"more"), "read")


def npy(mark: Path) -> Iterator[Variant]:
    """What may be in a .npy file."""

    def header(text: str, version: int = 1, length: int | None = None) -> Callable[[bytes], bytes]:
        def made(old: bytes) -> bytes:
            size = len(text) if length is None else length
            width = "<H" if version == 1 else "<I"
            start = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, size)
            return start + text.encode("latin-1") + old[128:]

        return made

    def saved(array: Any, **options: Any) -> Callable[[bytes], bytes]:
        file = io.BytesIO()
        np.save(file, array, **options)
        return lambda _: file.getvalue()

    def archived(_: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("head.npy", b"x")
            archive.writestr("archive/data.pkl", pickle.dumps(Harmful(mark)))
        return file.getvalue()

    run = f"__import__('os').mkdir({str(mark)!r})"
    wrong: dict[str, Callable[[bytes], bytes]] = {
        "a pickle": lambda _: pickle.dumps(Harmful(mark)),
        "an array of objects": saved(np.array([Harmful(mark)], dtype=object), allow_pickle=True),
        "an archive": archived,
        "of another shape": saved(np.zeros((2, 5, 12), np.float32)),
        "of another dtype": saved(np.zeros((2, 5, 11), np.int32)),
        "of records": saved(np.zeros((2, 5, 11), [("a", "<f4")])),
        "of dates": saved(np.zeros((2, 5, 11), "datetime64[s]")),
        "of text": saved(np.array(["x"])),
        "of another version": header(HEADER, version=9),
        "a header beyond the end": header(HEADER, version=2, length=2**31),
        "a longer header than there is": header(HEADER, version=1, length=9000),
        "a call for a header": header(run),
        "a call for a shape": header(HEADER.replace("(2, 5, 11)", run)),
        "a call for a dtype": header(HEADER.replace("'<f4'", run)),
        "a dtype of nonsense": header(HEADER.replace("<f4", "<f4000")),
        "a negative shape": header(HEADER.replace("5", "-5")),
        "a shape of names": header(HEADER.replace("5", "five")),
        "a huge shape": header(HEADER.replace("5", str(2**62))),
        "a shape of endless digits": header(HEADER.replace("5", "9" * 5000)),
        "a shape of shapes": header(HEADER.replace("(2, 5, 11)", "((2, 5, 11),)")),
        "a deep header": header("(" * 4000 + ")" * 4000),
        "no order": header(HEADER.replace("'fortran_order': False, ", "")),
        "no shape": header(HEADER.replace("shape", "form")),
        "no header": header("", length=0),
    }
    for name, content in wrong.items():
        yield Variant(f".npy: {name}", _written(NPY, content), "refused")
    right: dict[str, Callable[[bytes], bytes]] = {
        "the first version": header(HEADER),
        "the second version": header(HEADER, version=2),
        "the third version": header(HEADER, version=3),
        "written by hand": header('{"shape": (2,5,11), "fortran_order":False,"descr":"<f4"}'),
        "of the other byte order": saved(np.ones((2, 5, 11), ">f4")),
        "in the order of Fortran": saved(np.asfortranarray(np.ones((2, 5, 11), np.float32))),
    }
    for name, content in right.items():
        yield Variant(f".npy: {name}", _written(NPY, content), "read")


def safetensors(mark: Path) -> Iterator[Variant]:
    """What may be in a .safetensors file."""
    good = {"dtype": "F32", "shape": [2, 5, 8], "data_offsets": [0, 320]}

    def file(header: bytes, length: int | None = None) -> Callable[[bytes], bytes]:
        size = struct.pack("<Q", len(header) if length is None else length)
        return lambda _: size + header + bytes(320)

    def part(**fields: Any) -> Callable[[bytes], bytes]:
        return file(json.dumps({OF_SAFETENSORS: {**good, **fields}}).encode())

    wrong: dict[str, Callable[[bytes], bytes]] = {
        "a pickle": lambda _: pickle.dumps(Harmful(mark)),
        "a header beyond the end": file(b"{}", 10**6),
        "a header of 2^63 bytes": file(b"{}", 2**63),
        "a header of 0 bytes": file(b"", 0),
        "no JSON": file(b"hello"),
        "not UTF-8": file(b'{"\xff": 1}'),
        "a list": file(b"[]"),
        "a deep header": file(DEEP.encode()),
        "no tensors": file(b"{}"),
        "a list for a tensor": file(json.dumps({OF_SAFETENSORS: []}).encode()),
        "null for a tensor": file(json.dumps({OF_SAFETENSORS: None}).encode()),
        "another dtype": part(dtype="F16", data_offsets=[0, 160]),
        "an unknown dtype": part(dtype="F8_E4M3"),
        "a list for a dtype": part(dtype=[]),
        "another shape": part(shape=[2, 40]),
        "a negative shape": part(shape=[-2, -5, 8]),
        "a text for a shape": part(shape="2, 5, 8"),
        "fractions for a shape": part(shape=[2.0, 5, 8]),
        "a huge shape": part(shape=[2**62, 5, 8]),
        "offsets beyond the end": part(data_offsets=[320, 640]),
        "offsets the wrong way round": part(data_offsets=[320, 0]),
        "negative offsets": part(data_offsets=[-320, 0]),
        "one offset": part(data_offsets=[0]),
        "offsets of words": part(data_offsets=["0", "320"]),
        "too few bytes": part(data_offsets=[0, 319]),
        "no offsets": part(data_offsets=None),
    }
    for name, content in wrong.items():
        yield Variant(f".safetensors: {name}", _written(SAFETENSORS, content), "refused")
    yield Variant(".safetensors: by hand", _written(SAFETENSORS, part()), "read")


def numbers() -> Iterator[Variant]:
    """Numbers that are none, or too large to be squared."""
    for name in (RAW, NPY, SAFETENSORS):
        start = {RAW: 0, NPY: 128, SAFETENSORS: 8 + 88}[name]
        for value in (float("nan"), float("inf"), 3e38, 1e-45, 0.0):
            number = struct.pack("<f", value)

            def filled(old: bytes, number: bytes = number, start: int = start) -> bytes:
                count = (len(old) - start) // 4
                return old[:start] + number * count + old[start + 4 * count :]

            yield Variant(f"{name} full of {value}", _written(name, filled), "any")


def random_ones(count: int = 40) -> Iterator[Variant]:
    """Some bits, anywhere."""
    for number in range(count):
        rng = random.Random(number)
        name = (INDEX, NPY, SAFETENSORS, RAW)[number % 4]
        times = rng.choice([1, 4, 40])
        head = None if name in (INDEX, RAW) else 130

        def flipped(
            old: bytes, rng: random.Random = rng, times: int = times, head: int | None = head
        ) -> bytes:
            data = bytearray(old)
            for _ in range(times):
                data[rng.randrange(min(len(data), head or len(data)))] ^= 1 << rng.randrange(8)
            return bytes(data)

        yield Variant(f"{times} bits of {name}, number {number}", _written(name, flipped), "any")


def _said(value: Any) -> str:
    return "missing" if value is MISSING else ascii(value)[:40]


def _changed(name: str, field: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, name, **{field: value})


def _line(number: int, text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        lines = (folder / INDEX).read_text().split("\n")
        lines[number] = text
        (folder / INDEX).write_text("\n".join(lines))

    return spoil


def _written(name: str, content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content((folder / name).read_bytes()))


def _twice(folder: Path) -> None:
    lines = (folder / INDEX).read_text().split("\n")
    (folder / INDEX).write_text("\n".join([*lines[:5], lines[4], *lines[5:]]))


def _reversed(folder: Path) -> None:
    first, *rest = (folder / INDEX).read_text().rstrip("\n").split("\n")
    (folder / INDEX).write_text("\n".join([first, *rest[::-1]]))


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _linked_pipe(file: Path) -> None:
    os.mkfifo(file.with_name("pipe"))
    file.symlink_to("pipe")


def _linked(file: Path) -> None:
    file.rename(file.with_name("moved"))
    file.symlink_to("moved")
