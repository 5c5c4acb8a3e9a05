"""One side in the other's terms: B's tensors under A's names and in A's layout."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.matching import Match, Modules, match_weights
from traindoctor.compare.trace import Entry, Trace

OF_WEIGHTS = ("weight", "gradient", "update")


@dataclass(frozen=True)
class Aligned:
    """Both sides under A's names, in the order of A."""

    a: Trace
    b: Trace
    matches: tuple[Match, ...]
    only_a: tuple[str, ...]
    """Weights that B has no partner for."""
    only_b: tuple[str, ...]


def weight_shapes(trace: Trace) -> dict[str, tuple[int, ...]]:
    """Of every weight; a dump may hold gradients or updates of them alone."""
    found = {entry.name: entry.shape for entry in trace.of_kind("weight")}
    for entry in trace.of_kind("update"):
        found.setdefault(entry.name, entry.shape)
    activations = {entry.name for entry in trace.of_kind("activation")}
    for entry in trace.of_kind("gradient"):
        if entry.name not in activations:
            found.setdefault(entry.name, entry.shape)
    return found


def align(a: Trace, b: Trace, given: Mapping[str, Any] | None = None) -> Aligned:
    """Finds partners and puts B into A's terms. Where A has the parts of what is one in B, A is joined."""
    a, b = calls_joined(a, b), calls_joined(b, a)
    shapes_a, shapes_b = weight_shapes(a), weight_shapes(b)
    matches = match_weights(shapes_a, shapes_b, given)
    modules = Modules([e.name for e in a.of_kind("activation")], matches, given)
    by_part_a = {part: match for match in matches for part in match.a}
    by_part_b = {part: match for match in matches for part in match.b}
    matched = {name for match in matches for name in match.a}
    return Aligned(
        a=replace(a, entries=tuple(_joined(a, by_part_a, "a"))),
        b=replace(b, entries=tuple(_renamed(b, by_part_b, modules, a))),
        matches=tuple(matches),
        only_a=tuple(name for name in shapes_a if name not in matched),
        only_b=tuple(name for name in shapes_b if name not in by_part_b),
    )


def calls_joined(trace: Trace, other: Trace) -> Trace:
    """Where a side works through the batch in parts (`name`, `name#2`, ...) and the other at once: the parts in a row."""
    calls: dict[tuple[str, int, str], list[Entry]] = defaultdict(list)
    for entry in trace.entries:
        if entry.kind in ("activation", "gradient"):
            calls[entry.kind, entry.step, entry.name.partition("#")[0]].append(entry)
    parts = {}
    for key, found in calls.items():
        whole = other.by_key.get(key)
        again = other.by_key.get((*key[:2], f"{key[2]}#2"))
        if len(found) < 2 or whole is None or again is not None:
            continue
        found = sorted(found, key=lambda e: int(e.name.partition("#")[2] or 1))
        rows = sum(entry.shape[0] for entry in found if entry.shape)
        fits = all(e.shape[1:] == whole.shape[1:] and e.rows is None for e in found)
        if fits and whole.shape[:1] == (rows,):
            parts[key] = found
    entries, last = [], {key: found[-1].key for key, found in parts.items()}
    for entry in trace.entries:
        key = (entry.kind, entry.step, entry.name.partition("#")[0])
        if key not in parts:
            entries.append(entry)
        elif entry.key == last[key]:
            found = parts[key]
            shape = (sum(e.shape[0] for e in found), *entry.shape[1:])
            read = _reader(found, 0, turned=False)
            entries.append(replace(entry, name=key[2], shape=shape, read=read))
    return replace(trace, entries=tuple(entries))


def _joined(trace: Trace, by_part: Mapping[str, Match], side: str) -> list[Entry]:
    """The entries, weights that stand for one on the other side put together where the last of them is."""
    entries = []
    for entry in trace.entries:
        match = by_part.get(entry.name) if entry.kind in OF_WEIGHTS else None
        parts = () if match is None else (match.a if side == "a" else match.b)
        if match is None or len(parts) == 1:
            entries.append(entry)
        elif entry.name == _last(trace, entry, parts):
            whole = _put_together(trace, entry, match, parts, turned=False)
            if whole is not None:
                entries.append(whole)
    return entries


def _last(trace: Trace, entry: Entry, parts: Sequence[str]) -> str:
    names = [e.name for e in trace.of_kind(entry.kind, entry.step) if e.name in parts]
    return names[-1]


def _renamed(b: Trace, by_part: Mapping[str, Match], modules: Modules, a: Trace) -> list[Entry]:
    entries = []
    mine, theirs = ([e.name for e in side.of_kind("input", 0)] for side in (a, b))
    # Batches are matched by name or, where one side has a dictionary and the other a pair, in order.
    batch = {} if set(theirs) <= set(mine) else dict(zip(theirs, mine))
    for entry in b.entries:
        match = by_part.get(entry.name) if entry.kind in OF_WEIGHTS else None
        if match is not None:
            if entry.name == _last(b, entry, match.b):
                whole = _put_together(b, entry, match, match.b, turned=match.layout != "same")
                if whole is not None:
                    entries.append(whole)
        elif entry.kind == "input":
            entries.append(replace(entry, name=batch.get(entry.name, entry.name)))
        elif entry.kind == "loss":
            entries.append(entry)
        elif (meant := modules.of(entry.name)) is not None:
            entries.append(replace(entry, name=meant))
    return entries


def _put_together(
    trace: Trace, entry: Entry, match: Match, parts: Sequence[str], *, turned: bool
) -> Entry | None:
    """The parts as one tensor in A's layout; None where one is missing or only some rows of it were kept."""
    found = [trace.by_key.get((entry.kind, entry.step, part)) for part in parts]
    whole = [one for one in found if one is not None]
    if len(whole) < len(parts):
        return None
    simple = len(whole) == 1 and not turned
    if not simple and any(one.rows is not None for one in whole):
        return None
    shapes = [one.shape[::-1] if turned else one.shape for one in whole]
    shape = shapes[0]
    if len(whole) > 1:
        d = match.dimension
        shape = (*shape[:d], sum(s[d] for s in shapes), *shape[d + 1 :])
    name = match.a[0] if len(match.a) == 1 else " + ".join(match.a)
    return replace(
        entry,
        name=name,
        shape=shape,
        read=whole[0].read if simple else _reader(whole, match.dimension, turned),
    )


def _reader(parts: Sequence[Entry], dimension: int, turned: bool) -> Callable[[], NDArray[Any]]:
    def read() -> NDArray[Any]:
        arrays = [part.read().T if turned else part.read() for part in parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=dimension)

    return read


def converted(
    match: Match, held: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, to: str
) -> dict[str, NDArray[Any]]:
    """The numbers that one side holds in the parts and the layout of the other: `to` is "a" or "b"."""
    turned = match.layout == "transposed"
    source, target = (match.b, match.a) if to == "a" else (match.a, match.b)
    arrays = [np.asarray(held[name]) for name in source]
    if turned and to == "a":
        arrays = [array.T for array in arrays]
    whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=match.dimension)
    found, place = {}, 0
    for name in target:
        shape = shapes[name][::-1] if turned and to == "b" else shapes[name]
        part = whole
        if len(target) > 1:
            length = shape[match.dimension]
            part = np.take(whole, range(place, place + length), axis=match.dimension)
            place += length
        found[name] = part.T if turned and to == "b" else part
    return found
