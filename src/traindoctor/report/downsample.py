"""Fewer points for a picture, without hiding what matters: extremes and non-finite values survive."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from traindoctor.record import LayerSeries, Record, Series

Keep = Literal["max", "min"]

# Rows that are read at once while a long layer series is reduced: 4096 x 200 layers are 3 MB.
CHUNK = 4096
# Made here: update by weight, layer by layer, where the record has both but not their ratio.
RATIO = "update.ratio"
# A picture needs no more digits, and they are most of what travels.
DIGITS = 6
# Numbers that can be rounded by a scale of 10 to some power.
SMALLEST = 1e-290


def round_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values with six significant digits; zero and non-finite ones as they are."""
    values = np.asarray(values, dtype=np.float64)
    # At the ends of the range the scale itself would leave it: such numbers stay as they came.
    size = np.abs(values)
    plain = np.isfinite(values) & (size >= SMALLEST) & (size <= 1 / SMALLEST)
    exponent = np.zeros_like(values)
    np.log10(np.abs(values), out=exponent, where=plain)
    places = DIGITS - 1 - np.floor(exponent)
    scale = 10.0 ** np.abs(places)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.where(
            places >= 0, np.round(values * scale) / scale, np.round(values / scale) * scale
        )
    return np.where(plain, rounded, values)


def window(series: Series, start: float | None, stop: float | None) -> Series:
    """The points between two steps, with one more on each side so that the line enters and leaves."""
    low = 0 if start is None else int(np.searchsorted(series.steps, start, side="left"))
    high = len(series) if stop is None else int(np.searchsorted(series.steps, stop, side="right"))
    low, high = max(0, low - 1), min(len(series), high + 1)
    return Series(series.name, series.steps[low:high], series.values[low:high])


def min_max(series: Series, points: int) -> Series:
    """At most about `points` points: of each bucket the smallest, the largest and a non-finite value."""
    count = len(series)
    buckets = max(1, points // 2)
    if count <= 2 * buckets:
        return series
    edges = np.linspace(0, count, buckets + 1).astype(np.int64)
    starts = edges[:-1]
    finite = np.isfinite(series.values)
    lowest = _arg(np.where(finite, series.values, np.inf), starts, np.minimum)
    highest = _arg(np.where(finite, series.values, -np.inf), starts, np.maximum)
    ends = np.array([0, count - 1], dtype=np.int64)
    chosen = [lowest, highest, ends]
    if not finite.all():
        bad = np.flatnonzero(~finite)
        bucket = np.searchsorted(starts, bad, side="right")
        chosen.append(bad[np.unique(bucket, return_index=True)[1]])
    index = np.unique(np.concatenate(chosen))
    return Series(series.name, series.steps[index], series.values[index])


def _arg(values: NDArray[np.float64], starts: NDArray[np.int64], reduce: Any) -> NDArray[np.int64]:
    """For each bucket the index of its extreme value."""
    extreme = reduce.reduceat(values, starts)
    lengths = np.diff(np.append(starts, len(values)))
    hits = np.flatnonzero(values == np.repeat(extreme, lengths))
    bucket = np.searchsorted(starts, hits, side="right")
    return hits[np.unique(bucket, return_index=True)[1]]


def mean(series: Series, points: int) -> Series:
    """Bucket means: for shares (which part of the steps was clipped), where extremes say nothing."""
    if len(series) <= points:
        return series
    starts = np.linspace(0, len(series), points + 1).astype(np.int64)[:-1]
    lengths = np.diff(np.append(starts, len(series)))
    return Series(
        series.name, series.steps[starts], np.add.reduceat(series.values, starts) / lengths
    )


@dataclass
class HeatMap:
    """Columns of time, rows of layers. `bad` marks cells with a NaN or an infinite value."""

    layers: tuple[str, ...]
    steps: NDArray[np.int64]  # first step of each column
    values: NDArray[np.float32]  # (columns, layers); NaN where nothing was measured
    bad: NDArray[np.bool_]


def reduce_rows(series: LayerSeries, columns: int, keep: Keep) -> HeatMap:
    """At most `columns` columns: of each cell the largest (or smallest) finite value."""
    count = len(series)
    starts = np.linspace(0, count, min(count, columns) + 1).astype(np.int64)[:-1]
    return reduce_at(series.layers, series.steps, series.values, starts, keep)


def reduce_at(
    layers: tuple[str, ...],
    steps: NDArray[np.int64],
    values: NDArray[np.float32],
    starts: NDArray[np.int64],
    keep: Keep,
) -> HeatMap:
    if len(starts) == 0:
        empty = np.empty((0, len(layers)), np.float32)
        return HeatMap(layers, np.empty(0, np.int64), empty, empty.astype(bool))
    # Infinite is an event to be shown; NaN alone means that a layer had nothing to measure.
    infinite = np.isinf(values)
    clean = np.where(infinite, np.nan, values) if infinite.any() else values
    extreme = (np.fmax if keep == "max" else np.fmin).reduceat(clean, starts, axis=0)
    bad = np.logical_or.reduceat(infinite, starts, axis=0)
    return HeatMap(layers, steps[starts], extreme, bad)


def layer_names(record: Record) -> list[str]:
    """The layer series of a record and those that can be made from them."""
    names = list(record.layer_names)
    if {"update.rms", "weight.rms"} <= set(names) and RATIO not in names:
        names.append(RATIO)
    return names


def layer_span(record: Record, name: str) -> tuple[tuple[str, ...], int, int, int]:
    """Layers, number of rows, first and last step."""
    stored = "update.rms" if made_here(record, name) else name
    return record.layer_span(stored)


def made_here(record: Record, name: str) -> bool:
    return name == RATIO and RATIO not in record.layer_names


def layer_rows(
    record: Record, name: str, *, start: int = 0, stop: int | None = None, limit: int = -1
) -> LayerSeries:
    """Rows of steps start..stop, both included, at most `limit` of them."""
    if made_here(record, name):
        update = layer_rows(record, "update.rms", start=start, stop=stop, limit=limit)
        if not len(update):
            return update
        last = int(update.steps[-1])
        return ratio(update, layer_rows(record, "weight.rms", start=start, stop=last))
    return record.layer_rows(name, start=start, stop=stop, limit=limit)


def ratio(update: LayerSeries, weight: LayerSeries) -> LayerSeries:
    """Update by weight at the steps of the updates; NaN where a weight was not measured then."""
    known = {layer: column for column, layer in enumerate(weight.layers)}
    result = np.full(update.values.shape, np.nan, np.float32)
    _, at_update, at_weight = np.intersect1d(update.steps, weight.steps, return_indices=True)
    shared = [column for column, layer in enumerate(update.layers) if layer in known]
    mine = np.array(shared, dtype=np.int64)
    theirs = np.array([known[update.layers[column]] for column in shared], dtype=np.int64)
    with np.errstate(divide="ignore", invalid="ignore"):
        result[np.ix_(at_update, mine)] = (
            update.values[np.ix_(at_update, mine)] / weight.values[np.ix_(at_weight, theirs)]
        )
    # A weight that is exactly zero (a fresh bias) has no meaningful ratio.
    result[np.isinf(result)] = np.nan
    return LayerSeries(RATIO, update.layers, update.steps, result)


def heat_map(record: Record, name: str, *, columns: int, keep: Keep = "max") -> HeatMap | None:
    """The whole of a layer series in at most `columns` columns, read piece by piece."""
    if name not in layer_names(record):
        return None
    layers, count, _, _ = layer_span(record, name)
    size = max(1, -(-count // columns))
    pieces = [
        reduce_at(layers, piece.steps, piece.values, np.arange(0, len(piece), size), keep)
        for piece in chunks(record, name, rows=max(1, CHUNK // size) * size)
    ]
    empty = np.empty((0, len(layers)), np.float32)
    pieces = pieces or [HeatMap(layers, np.empty(0, np.int64), empty, empty.astype(bool))]
    return HeatMap(
        layers,
        np.concatenate([p.steps for p in pieces]),
        np.concatenate([p.values for p in pieces]),
        np.concatenate([p.bad for p in pieces]),
    )


def chunks(
    record: Record, name: str, *, rows: int = CHUNK, start: int = 0
) -> Iterator[LayerSeries]:
    """A layer series from a step on, `rows` rows at a time."""
    while len(piece := layer_rows(record, name, start=start, limit=rows)):
        yield piece
        start = int(piece.steps[-1]) + 1
