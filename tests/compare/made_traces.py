"""Traces made by hand: the tensors of a small transformer in their order, and dumps of them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.answer import Answer, answer
from traindoctor.compare.dump import DumpWriter
from traindoctor.compare.terms import align
from traindoctor.compare.tolerance import Tolerance
from traindoctor.compare.trace import Entry, Trace

Values = NDArray[Any]
BATCH, LENGTH, WIDTH, VOCABULARY = 2, 5, 8, 11
WEIGHTS = {"norm.weight": (WIDTH,), "mlp.up.weight": (16, WIDTH), "mlp.down.weight": (WIDTH, 16)}
OUTPUTS = {"norm": WIDTH, "mlp.up": 16, "mlp.down": WIDTH, "mlp": WIDTH}


def entry(
    name: str,
    kind: str,
    values: Values,
    *,
    step: int = 0,
    dtype: str = "float32",
    about: Mapping[str, Any] | None = None,
) -> Entry:
    """One tensor of a trace."""
    held = np.asarray(values)
    dtype = dtype if held.dtype.kind == "f" else held.dtype.name
    return Entry(name, kind, step, held.shape, dtype, lambda: held, about=about or {})


def trace(entries: Iterable[Entry], title: str = "a", **settings: object) -> Trace:
    return Trace(tuple(entries), title, settings)


def transformer(seed: int = 0, *, layers: int = 2, steps: int = 1) -> list[Entry]:
    """Random numbers under the names, shapes and order of a real one."""
    rng = np.random.default_rng(seed)

    def made(name: str, kind: str, step: int, *shape: int) -> Entry:
        return entry(name, kind, rng.standard_normal(shape).astype(np.float32), step=step)

    names = {"embedding.weight": (VOCABULARY, WIDTH)}
    for layer in range(layers):
        names |= {f"blocks.{layer}.{name}": shape for name, shape in WEIGHTS.items()}
    found = [made(name, "weight", 0, *shape) for name, shape in names.items()]
    rows = BATCH, LENGTH
    outputs = {"embedding": WIDTH}
    for layer in range(layers):
        outputs |= {f"blocks.{layer}.{name}": width for name, width in OUTPUTS.items()}
    outputs["head"] = VOCABULARY
    for step in range(steps):
        found.append(entry("tokens", "input", rng.integers(0, VOCABULARY, rows), step=step))
        found += [made(name, "activation", step, *rows, width) for name, width in outputs.items()]
        found.append(made("loss", "loss", step))
        backwards = list(outputs.items())[::-1]
        found += [made(name, "gradient", step, *rows, width) for name, width in backwards]
        for kind in ("gradient", "update"):
            found += [made(name, kind, step, *shape) for name, shape in names.items()]
    return found


def changed(
    entries: Iterable[Entry], change: Callable[[Entry, Values], Values | None]
) -> list[Entry]:
    """The other side: every tensor as `change` gives it, left out where that is None."""
    found = []
    for one in entries:
        values = change(one, one.read())
        if values is not None:
            found.append(entry(one.name, one.kind, values, step=one.step, about=one.about))
    return found


def wrong_from(name: str, kind: str = "activation", *, by: float = 3.0) -> Callable[..., Values]:
    """Rounding everywhere, and from one tensor on what grows out of an error there."""
    rng = np.random.default_rng(1)
    state = {"size": 1e-7}

    def change(one: Entry, values: Values) -> Values:
        if one.kind in ("input", "weight"):
            return values
        if (one.name, one.kind) == (name, kind) and state["size"] < 1e-4:
            state["size"] = 2e-3
            return (values * by).astype(np.float32)
        noise = rng.standard_normal(values.shape) * state["size"] * rng.uniform(0.3, 1.5)
        return (values * (1 + noise)).astype(np.float32)

    return change


def write(folder: Path, entries: Iterable[Entry], **settings: object) -> Path:
    """As a dump."""
    with DumpWriter(folder, settings=settings) as dump:
        for one in entries:
            dump.write(one.name, one.kind, step=one.step, values=one.read(), about=one.about)
    return folder


def answered(a: Iterable[Entry], b: Iterable[Entry], **more: Any) -> Answer:
    """The answer to two sides; the tolerance is the estimate from the dtypes."""
    aligned = align(trace(a, "good/"), trace(b, "dump/"))
    return answer(aligned, more.pop("tolerance", Tolerance({}, 0)), **more)


def renamed(found: Answer, name: str) -> Answer:
    """The answer with another name for its first difference."""
    assert found.first is not None
    place = replace(found.first, entry=replace(found.first.entry, name=name))
    places = tuple(place if one == found.first else one for one in found.places)
    return replace(found, places=places, first=place)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond a page of memory."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
