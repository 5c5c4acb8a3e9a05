"""The ranks of a run beside each other, as one heat map: a row for each rank, or for a few of them where there are many."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from traindoctor.record import Record, Series
from traindoctor.report.downsample import HeatMap, Keep

PREFIX = "ranks/"
WEIGHTS = "weights.crc"
"""Shown as 1 where it is not rank 0's, which says something of replicas only."""
SHOWN = (WEIGHTS, "loss.root", "grad.norm", "time.step", "memory.rss")
# Of more rows none would be as high as a finger is wide on a screen, nor as high as a point.
MOST_ROWS = 128


def rank_names(record: Record) -> list[str]:
    if len(record.ranks) < 2:
        return []
    shown = SHOWN[1:] if (record.fact("ranks") or {}).get("sharded") else SHOWN
    return [PREFIX + one for one in shown if (found := record.get(one)) is not None and len(found)]


def row_names(record: Record) -> tuple[str, ...]:
    return tuple(
        f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}"
        for group in _groups(len(record.ranks))
    )


def rank_maps(
    record: Record,
    names: Sequence[str],
    *,
    columns: int,
    keep: Keep = "max",
    start: float = 0,
    stop: float = np.inf,
) -> dict[str, HeatMap]:
    """One for each name; every rank's record is read once."""
    first = {name: record.get(name.removeprefix(PREFIX)) for name in names}
    edges = {
        name: _edges(series, columns, start, stop) if series is not None else _NO_STEPS
        for name, series in first.items()
    }
    rows: dict[str, list[NDArray[np.float32]]] = {name: [] for name in names}
    for rank in record.ranks:
        for name in names:
            series = rank.get(name.removeprefix(PREFIX))
            if name == PREFIX + WEIGHTS:
                series = _unlike(series, first[name])
            rows[name].append(_reduced(series, edges[name], stop, keep))
    return {name: _map(record, np.array(rows[name]), edges[name], keep) for name in names}


_NO_STEPS = np.empty(0, np.int64)


def _groups(ranks: int) -> Iterator[range]:
    size = -(-ranks // MOST_ROWS)
    return (range(begin, min(begin + size, ranks)) for begin in range(0, ranks, size))


def _edges(series: Series, columns: int, start: float, stop: float) -> NDArray[np.int64]:
    """The first step of each column: as many points of the series in each."""
    steps = np.unique(series.steps[(series.steps >= start) & (series.steps <= stop)])
    if not len(steps):
        return steps
    return steps[np.linspace(0, len(steps), min(len(steps), columns) + 1).astype(np.int64)[:-1]]


def _unlike(series: Series | None, first: Series | None) -> Series | None:
    if series is None or first is None:
        return None
    steps, mine, theirs = series.beside(first)
    return Series(series.name, steps, (mine != theirs).astype(np.float64))


def _reduced(
    series: Series | None, edges: NDArray[np.int64], stop: float, keep: Keep
) -> NDArray[np.float32]:
    """The largest (or smallest) value under each column; infinite where one was not finite, NaN where there is none."""
    row = np.full(len(edges), np.nan, np.float32)
    if series is None or not len(edges):
        return row
    inside = (series.steps >= edges[0]) & (series.steps <= stop)
    column = np.searchsorted(edges, series.steps[inside], side="right") - 1
    values = series.values[inside]
    extreme = np.fmax if keep == "max" else np.fmin
    extreme.at(row, column, values.astype(np.float32))
    row[column[~np.isfinite(values)]] = np.inf
    return row


def _map(
    record: Record, rows: NDArray[np.float32], edges: NDArray[np.int64], keep: Keep
) -> HeatMap:
    bad = np.isinf(rows)
    clean = np.where(bad, np.nan, rows)
    extreme = np.fmax if keep == "max" else np.fmin
    groups = list(_groups(len(rows)))
    values = np.array([extreme.reduce(clean[group[0] : group[-1] + 1]) for group in groups])
    worst = np.array([bad[group[0] : group[-1] + 1].any(axis=0) for group in groups])
    return HeatMap(row_names(record), edges, values.T, worst.T)
