"""The traces of several ranks as one: what one process would have computed on the rows of all. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.trace import Entry, Trace

Array = NDArray[Any]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Together:
    """Of several ranks, in the terms of the other side."""

    trace: Trace
    notes: tuple[str, ...] = ()


def together(ranks: Sequence[Trace], like: Trace | None = None) -> Together:
    """`like` is the other side: its batch says in which order the ranks' rows stand there."""
    if len(ranks) == 1:
        return Together(ranks[0])
    outputs = {(e.step, e.name) for e in ranks[0].entries if e.kind == "activation"}
    known = [rank.by_key for rank in ranks]
    entries: list[Entry] = []
    notes: list[str] = []
    dealt: dict[int, list[Rows] | None] = {}
    for entry in ranks[0].entries:
        parts = [by_key[entry.key] for by_key in known if entry.key in by_key]
        if len(parts) < len(ranks):
            continue
        if entry.step not in dealt:
            dealt[entry.step] = deal(ranks, like, entry.step)
        of_weight = entry.kind in ("weight", "update") or (
            entry.kind == "gradient" and (entry.step, entry.name) not in outputs
        )
        found: Entry | None
        if of_weight:
            found = _shards(parts) if entry.about.get("shard") else entry
            if found is entry:
                notes += _apart(parts)
        elif not entry.shape:
            found = _mean(parts)
        else:
            there = like.by_key.get(entry.key) if like is not None else None
            found = _of_rows(parts, dealt[entry.step], there)
        if found is not None:
            entries.append(found)
    return Together(replace(ranks[0], entries=tuple(entries)), tuple(notes[:1]))


def side_by_side(
    a: Sequence[Trace], b: Sequence[Trace], *, steps: int
) -> tuple[Trace, Trace, list[str]]:
    """Both sides with all their ranks, up to the last step that both have, on the rows that both have kept."""
    first = together(a, b[0] if len(b) == 1 else None)
    second = together(b, first.trace)
    steps = min(steps, *(trace.steps for trace in (*a, *b)))
    whole = [
        replace(one.trace, entries=tuple(e for e in one.trace.entries if e.step < steps))
        for one in (first, second)
    ]
    return *on_same_rows(*whole), [*first.notes, *second.notes]


def deal(ranks: Sequence[Trace], like: Trace | None, step: int) -> list[Rows] | None:
    """Of each rank, where the rows of its batch stand in the whole: found by comparing them with the other side's batch.

    A sampler may deal them in blocks, in turn, or in any other way; where the rows are others, one rank stands behind another.
    """
    first = next((e for e in ranks[0].of_kind("input", step) if e.shape), None)
    if first is None:
        return None
    parts = [rank.by_key.get(first.key) for rank in ranks]
    arrays = [part.read() for part in parts if part is not None and part.rows is None]
    if len(arrays) < len(ranks):
        return None
    ends = np.cumsum([len(array) for array in arrays])
    blocks = [np.arange(end - len(array), end) for array, end in zip(arrays, ends)]
    there = like.by_key.get(first.key) if like is not None else None
    if there is None or there.rows is not None or there.shape[:1] != (ends[-1],):
        return blocks
    places: dict[bytes, list[int]] = {}
    for place, row in reversed(list(enumerate(there.read()))):
        places.setdefault(np.ascontiguousarray(row).tobytes(), []).append(place)
    found = []
    for array in arrays:
        own = [places.get(np.ascontiguousarray(row).tobytes(), []) for row in array]
        if not all(own):
            return blocks
        try:
            found.append(np.array([waiting.pop() for waiting in own], np.int64))
        except IndexError:
            return blocks
    return found


def _apart(parts: Sequence[Entry]) -> list[str]:
    """Weights, their gradients and updates are the same on all ranks, or the ranks were not kept together."""
    first = parts[0]
    for number, part in enumerate(parts[1:], start=1):
        if part.shape != first.shape or not np.array_equal(
            first.read(), part.read(), equal_nan=True
        ):
            what = {"weight": "weight", "gradient": "gradient of", "update": "update of"}
            return [
                f"rank {number} differs from rank 0 in the {what[first.kind]} {first.name} at step {first.step}"
            ]
    return []


def _shards(parts: Sequence[Entry]) -> Entry | None:
    """Put together along the dimension that they were cut along; a part that several ranks hold counts once."""
    dimension, _, count = parts[0].about["shard"]
    held = {part.about["shard"][1]: part for part in reversed(parts) if part.about.get("shard")}
    if len(held) != count or any(part.rows is not None for part in held.values()):
        return None
    ordered = [held[number] for number in sorted(held)]
    shape = list(parts[0].shape)
    shape[dimension] = sum(part.shape[dimension] for part in ordered)
    about = {key: value for key, value in parts[0].about.items() if key != "shard"}

    def read() -> Array:
        return np.concatenate([part.read() for part in ordered], axis=dimension)

    return replace(parts[0], shape=tuple(shape), read=read, about=about)


def _mean(parts: Sequence[Entry]) -> Entry:
    """A number that each rank has for itself: the loss is the mean over its own rows."""
    return replace(parts[0], read=lambda: np.mean([part.values() for part in parts], axis=0))


def _of_rows(parts: Sequence[Entry], dealt: list[Rows] | None, there: Entry | None) -> Entry | None:
    """Rows of the batch put where they stand in the whole. A gradient is that of each rank's own mean: `world` too high."""
    first = parts[0]
    share = 1 / len(parts) if first.kind == "gradient" else 1.0
    cut = None if dealt is None else _cut(parts, dealt)
    whole = None if cut is None else (sum(len(d) * c for d, c in zip(dealt or (), cut)),)
    if whole is None or (there is not None and there.shape[:1] != whole):
        # No rows of the batch, a table of positions for instance: the same on every rank, and its gradient a sum.
        if any(part.shape != first.shape or part.rows != first.rows for part in parts):
            return None
        return _mean(parts) if first.kind == "gradient" else first
    assert dealt is not None
    assert cut is not None
    shape = (*whole, *first.shape[1:])
    if len(shape) == 1:
        return replace(first, shape=shape, read=lambda: share * _flat(parts, dealt, cut))
    rows = [_places(part, places) for part, places in zip(parts, dealt)]
    order = np.argsort(np.concatenate(rows), kind="stable")
    kept = np.concatenate(rows)[order]
    complete = len(kept) == int(np.prod(shape[:-1]))

    def read() -> Array:
        values = np.concatenate([part.read().reshape(-1, shape[-1]) for part in parts])[order]
        values = values * values.dtype.type(share) if share != 1.0 else values
        return values.reshape(shape) if complete else values

    return replace(
        first, shape=shape, read=read, rows=None if complete else tuple(int(row) for row in kept)
    )


def _cut(parts: Sequence[Entry], dealt: Sequence[Rows]) -> list[int] | None:
    """How many entries of the first dimension one row of the batch has: tokens, where rows were flattened."""
    found = []
    for part, places in zip(parts, dealt):
        if not len(places) or part.shape[0] % len(places) or part.shape[1:] != parts[0].shape[1:]:
            return None
        found.append(part.shape[0] // len(places))
    return found if len(set(found)) == 1 else None


def _places(part: Entry, places: Rows) -> Rows:
    """Where the rows of the last dimension that were kept stand in the whole."""
    each = int(np.prod(part.shape[:-1])) // len(places)
    kept = np.arange(each * len(places)) if part.rows is None else np.array(part.rows, np.int64)
    found: Rows = places[kept // each] * each + kept % each
    return found


def _flat(parts: Sequence[Entry], dealt: Sequence[Rows], cut: Sequence[int]) -> Array:
    """One number a token."""
    total = sum(part.shape[0] for part in parts)
    whole = np.empty(total, parts[0].read().dtype)
    for part, places, each in zip(parts, dealt, cut):
        whole.reshape(-1, each)[places] = part.read().reshape(-1, each)
    return whole


def on_same_rows(a: Trace, b: Trace) -> tuple[Trace, Trace]:
    """Of large tensors each side has kept some rows: those that both have."""
    kept_a, kept_b = [], dict(b.by_key)
    for entry in a.entries:
        other = b.by_key.get(entry.key)
        if other is not None and other.shape == entry.shape and other.rows != entry.rows:
            common = np.intersect1d(_rows_of(entry), _rows_of(other))
            if not len(common):
                del kept_b[entry.key]
                continue
            kept_b[entry.key] = _restricted(other, common)
            entry = _restricted(entry, common)
        kept_a.append(entry)
    return (
        replace(a, entries=tuple(kept_a)),
        replace(b, entries=tuple(kept_b[e.key] for e in b.entries if e.key in kept_b)),
    )


def _rows_of(entry: Entry) -> Rows:
    if entry.rows is not None:
        return np.array(entry.rows, np.int64)
    return np.arange(int(np.prod(entry.shape[:-1])))


def _restricted(entry: Entry, rows: Rows) -> Entry:
    places = np.searchsorted(_rows_of(entry), rows)

    def read() -> Array:
        values: Array = entry.read().reshape(-1, entry.shape[-1])[places]
        return values

    return replace(entry, rows=tuple(int(row) for row in rows), read=read)
