"""200 spoilt run folders of `traindoctor train`: settings, tokenizer, state, weights, shards, tokens, TOML."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUMBER = 200
Spoil = Callable[[Path], None]
STEP = Path("checkpoints/step-00000002")
CONFIG, TOKENIZER, META = Path("config.json"), Path("tokenizer.json"), Path("data/meta.json")
STATE, BEST = STEP / "state.json", Path("checkpoints/best.json")
MODEL, OPTIMIZER = STEP / "model.safetensors", STEP / "optimizer.safetensors"
TRAIN, METRICS = Path("data/train.bin"), Path("metrics.csv")
FILES = (CONFIG, TOKENIZER, META, STATE, BEST, MODEL, OPTIMIZER, TRAIN, METRICS)

DEEP = "[" * 30_000 + "]" * 30_000
ODD: tuple[Any, ...] = (None, -1, 10**30, "x", [], {"a": 1}, 1.5)


def variants(seed: int = 0) -> Iterator[tuple[str, Spoil]]:
    """Name and action on a run folder; the same 200 every time."""
    written = [*places(), *settings(), *tokenizers(), *states(), *weights(), *tokens()]
    yield from written
    rng = random.Random(seed)
    for number in range(NUMBER - len(written)):
        file = FILES[number % len(FILES)]
        change = flipped if number % 3 else cut_short
        yield f"{file} {change.__name__} {number}", change(file, random.Random(rng.random()))


def places() -> Iterator[tuple[str, Spoil]]:
    for file in FILES:
        yield f"{file} is gone", lambda run, file=file: (run / file).unlink()
        yield f"{file} is a pipe", _replaced(file, os.mkfifo)
        yield f"{file} is a folder", _replaced(file, Path.mkdir)
        yield f"{file} leads to itself", _replaced(file, lambda f: f.symlink_to(f))
    for file in (CONFIG, META, STATE):
        yield f"{file} is deep", lambda run, file=file: _write(run / file, DEEP)
        yield f"{file} is not UTF-8", lambda run, file=file: _write(run / file, b"\xff\xfe{}")


def settings() -> Iterator[tuple[str, Spoil]]:
    changes: list[tuple[str, str, Any]] = [
        ("model", "layers", 10**9),
        ("model", "width", 2**40),
        ("model", "width", 10**9 + 7),
        ("model", "heads", 3),
        ("model", "block", 10**15),
        ("model", "block", 2**20),
        ("model", "norm", ["rms"]),
        ("model", "dropout", float("nan")),
        ("model", "hidden", -(10**40)),
        ("train", "batch", 10**18),
        ("train", "device", "cuda:99999999999999999999"),
        ("train", "device", "\0"),
        ("train", "seed", 2**80),
        ("train", "lr", float("inf")),
        ("train", "keep", True),
        ("data", "tokenizer", "evil"),
        ("data", "data", [1, 2]),
        ("data", "vocab_size", 10**20),
    ]
    for section, name, value in changes:
        label = f"{section}.{name} = {str(value)[:20]}"
        yield label, _json(CONFIG, lambda c, s=section, n=name, v=value: c[s].__setitem__(n, v))
    for value in ODD:
        yield f"format = {value!r:.20}", _json(CONFIG, lambda c, v=value: c.update(format=v))
        yield f"preset = {value!r:.20}", _json(CONFIG, lambda c, v=value: c.update(preset=v))
    yield "a list of settings", lambda run: _write(run / CONFIG, "[1, 2]")
    yield "a section that is none", _json(CONFIG, lambda c: c.update(model=3))
    yield "an unknown setting", _json(CONFIG, lambda c: c["model"].update(evil=1))


def tokenizers() -> Iterator[tuple[str, Spoil]]:
    evil = {
        "type": "Split",
        "pattern": {"Regex": "(a+)+$"},
        "behavior": "Isolated",
        "invert": False,
    }
    yield "a slow pattern", _json(TOKENIZER, lambda t: t.update(pre_tokenizer=evil))
    strip = {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""}
    yield "a slow normaliser", _json(TOKENIZER, lambda t: t.update(normalizer=strip))
    yield "no vocabulary", _json(TOKENIZER, lambda t: t["model"].update(vocab={}))
    yield "far numbers", _json(TOKENIZER, lambda t: t["model"]["vocab"].update(zz=4_000_000_000))
    yield "equal numbers", _json(TOKENIZER, lambda t: t["model"]["vocab"].update(zz=1))
    yield (
        "another kind",
        _json(TOKENIZER, lambda t: t.update(model={"type": "Unigram", "vocab": []})),
    )
    yield "merges of nothing", _json(TOKENIZER, lambda t: t["model"].update(merges=[["q", "zz"]]))
    yield "a deep vocabulary", lambda run: _write(run / TOKENIZER, DEEP)
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0}
    padding |= {"pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "a"}
    yield "endless padding", _json(TOKENIZER, lambda t: t.update(padding=padding))


def states() -> Iterator[tuple[str, Spoil]]:
    for name in ("step", "seconds", "best_loss", "best_step", "evals_since_best"):
        for value in ODD[::2] if name != "step" else ODD:
            change = _json(STATE, lambda s, n=name, v=value: s["state"].__setitem__(n, v))
            yield f"state.{name} = {value!r:.20}", change
    yield "sums of nothing", _json(STATE, lambda s: s.update(crc32=[1]))
    yield "a newer format", _json(STATE, lambda s: s.update(format=99))
    for value in ODD[:4]:
        yield f"best = {value!r:.20}", _json(BEST, lambda b, v=value: b.update(step=v))
    yield "a folder without a number", lambda run: (run / "checkpoints/step-x").mkdir()


def weights() -> Iterator[tuple[str, Spoil]]:
    """Headers that lie, with the right checksum."""

    def first(header: dict[str, Any]) -> dict[str, Any]:
        return next(entry for name, entry in header.items() if name != "__metadata__")

    for file in (MODEL, OPTIMIZER):
        changes: dict[str, Callable[[dict[str, Any]], object]] = {
            "offsets past the end": lambda h: first(h).update(data_offsets=[0, 2**40]),
            "offsets backwards": lambda h: first(h).update(data_offsets=[8, 0]),
            "another shape": lambda h: first(h).update(shape=[1, 1]),
            "a huge shape": lambda h: first(h).update(shape=[2**62, 2**62]),
            "another type": lambda h: first(h).update(dtype="I32"),
            "an unknown type": lambda h: first(h).update(dtype="EVIL"),
            "a tensor less": lambda h: h.pop(next(n for n in h if n != "__metadata__")),
        }
        for what, change in changes.items():
            yield f"{file.name}: {what}", _header(file, change)
        yield (
            f"{file.name}: a long header",
            _summed(file, lambda d: struct.pack("<Q", 2**62) + d[8:]),
        )
        yield f"{file.name}: an empty file", _summed(file, lambda d: b"")
        nan = struct.pack("<f", float("nan"))
        yield f"{file.name}: NaN", _summed(file, lambda d, nan=nan: d[:-4000] + nan * 1000)
        yield f"{file.name}: a pickle", _summed(file, lambda d: b"\x80\x04N.")
    yield "no shards", lambda run: (run / STEP / "sharded").mkdir()


def tokens() -> Iterator[tuple[str, Spoil]]:
    for dtype in ("object", "O8", "float64", "uint32", [["a", "O"]], None):
        yield f"tokens of {dtype}", _json(META, lambda m, d=dtype: m.update(dtype=d))
    for value in ODD:
        yield f"train = {value!r:.20}", _json(META, lambda m, v=value: m.update(train=v))
    yield "unknown words", _json(META, lambda m: m.update(unknown_share="many"))
    yield "unknown tokens", lambda run: _write(run / TRAIN, b"\xff" * (run / TRAIN).stat().st_size)
    yield "steps of many digits", lambda run: _write(run / METRICS, "step\n" + "9" * 9000 + ",1\n")
    yield "metrics of bytes", lambda run: _write(run / METRICS, bytes(range(256)) * 20)


def flipped(file: Path, rng: random.Random) -> Spoil:
    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(rng.choice([1, 4, 40])):
            # The beginning of a file is what says how the rest is read.
            changed[rng.randrange(min(len(data), 2000))] = rng.randrange(256)
        return bytes(changed)

    return _summed(file, change)


def cut_short(file: Path, rng: random.Random) -> Spoil:
    return _summed(file, lambda data: data[: rng.randrange(len(data))])


def _write(file: Path, content: str | bytes) -> None:
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def _replaced(name: Path, make: Callable[[Path], object]) -> Spoil:
    def spoil(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return spoil


def _json(name: Path, change: Callable[[Any], object]) -> Spoil:
    def spoil(run: Path) -> None:
        value = json.loads((run / name).read_text())
        change(value)
        _write(run / name, json.dumps(value))

    return spoil


def _summed(name: Path, change: Callable[[bytes], bytes]) -> Spoil:
    """Changes a file and, where the state knows its checksum, that as well: a hostile hand would."""

    def spoil(run: Path) -> None:
        data = change((run / name).read_bytes())
        _write(run / name, data)
        state = json.loads((run / STATE).read_text()) if name != STATE else {"crc32": {}}
        if name.name in state["crc32"]:
            state["crc32"][name.name] = zlib.crc32(data)
            _write(run / STATE, json.dumps(state))

    return spoil


def _header(name: Path, change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoilt(data: bytes) -> bytes:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    return _summed(name, spoilt)
