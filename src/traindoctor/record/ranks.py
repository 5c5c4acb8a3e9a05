"""Ranks beside each other: at how many steps do they agree, bit for bit?"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.record.schema import Record

# What is compared between ranks of every run: one number a step, the same on all ranks or not.
WEIGHTS, WEIGHTS_BEFORE, GRADIENTS = "weights.crc", "weights.crc_before", "grad.crc"
COMPARED = (WEIGHTS, WEIGHTS_BEFORE, GRADIENTS, "batch.fingerprint")
EMPTY = np.empty(0, np.int64), np.empty(0)
# Parts of the gradient along one direction: as backward left it on each rank, and as the optimizer gets it.
OWN, ARRIVED = "grad.along_own", "grad.along"
# Before the first step, by parameter: what is equal here is a replica.
AT_FIRST = (f"{WEIGHTS_BEFORE}_by_parameter", f"{GRADIENTS}_by_parameter")


@dataclass(frozen=True)
class Agreement:
    """How often all ranks have the same number at the same step."""

    steps: int
    equal: int
    first_difference: int | None = None
    last_equal: int | None = None
    equal_at_first: bool = False

    @property
    def share(self) -> float:
        return self.equal / self.steps if self.steps else float("nan")


@dataclass
class Column:
    """What one rank after the other has at each step, as far as all have a number: the first one's, and where all agree."""

    steps: NDArray[np.int64]
    values: NDArray[Any]
    same: NDArray[np.bool_]

    @classmethod
    def of(cls, steps: NDArray[np.int64], values: NDArray[Any]) -> Column:
        """The last value of a step counts."""
        kept, from_end = np.unique(steps[::-1], return_index=True)
        return cls(kept, values[::-1][from_end], np.ones(len(kept), np.bool_))

    def beside(self, other: Column) -> Column:
        steps, mine, theirs = np.intersect1d(
            self.steps, other.steps, assume_unique=True, return_indices=True
        )
        equal = self.values[mine] == other.values[theirs]
        if equal.ndim > 1:
            equal = equal.all(axis=1)
        return Column(steps, self.values[mine], self.same[mine] & equal)

    @property
    def agreement(self) -> Agreement:
        equal, other = self.steps[self.same], self.steps[~self.same]
        return Agreement(
            len(self.steps),
            len(equal),
            first_difference=int(other[0]) if len(other) else None,
            last_equal=int(equal[-1]) if len(equal) else None,
            equal_at_first=bool(len(self.same)) and bool(self.same[0]),
        )


@dataclass
class Beside:
    """What is compared of all ranks; each rank is read once."""

    columns: dict[str, Column]
    at_first: dict[str, dict[str, set[float]]]
    """By table and parameter, the values of all ranks before the first step."""
    sharded: bool = False
    shapes: set[Hashable] = field(default_factory=set)

    @classmethod
    def of(cls, record: Record) -> Beside:
        columns: list[dict[str, Column]] = []
        rows: dict[str, list[dict[str, float]]] = {table: [] for table in AT_FIRST}
        found = cls({}, {})
        for rank in record.ranks:
            found.sharded |= bool((rank.fact("ranks") or {}).get("sharded"))
            shape = ((p["name"], tuple(p["shape"])) for p in rank.fact("model.parameters") or [])
            found.shapes.add(tuple(shape))
            columns.append({n: _column(rank, n) for n in COMPARED})
            if len(columns) > 1:
                columns = [{n: columns[0][n].beside(columns[1][n]) for n in COMPARED}]
            for table in AT_FIRST:
                rows[table].append(_first_row(rank, table))
        found.columns = columns[0]
        for table, of_ranks in rows.items():
            if of_ranks[0] and len({tuple(row) for row in of_ranks}) == 1:
                found.at_first[table] = {n: {row[n] for row in of_ranks} for n in of_ranks[0]}
        return found


def agreement(record: Record, name: str) -> Agreement:
    """Steps that every rank has; the last value of a step counts. Where ranks hold different parts of a model, of the
    parameters alone that they all hold."""
    table = f"{name}_by_parameter"
    if held_by_all(record) and table in record.layer_names:
        return record.once(_of_shared, name).agreement
    found = record.once(Beside.of).columns.get(name) or record.once(_of_all, name)
    return found.agreement


def _of_all(record: Record, name: str) -> Column:
    return functools.reduce(Column.beside, (_column(rank, name) for rank in record.ranks))


def _of_shared(record: Record, name: str) -> Column:
    shared = held_by_all(record)
    tables = (_table_column(rank, name, shared) for rank in record.ranks)
    return functools.reduce(Column.beside, tables)


def _column(rank: Record, name: str) -> Column:
    series = rank.get(name)
    return Column.of(*((series.steps, series.values) if series is not None else EMPTY))


def _table_column(rank: Record, name: str, shared: Sequence[str]) -> Column:
    table = rank.layers(f"{name}_by_parameter")
    if table is None:
        return _column(rank, name)
    kept = [table.layers.index(one) for one in shared if one in table.layers]
    return Column.of(table.steps, np.nan_to_num(table.values[:, kept], nan=-1.0))


def _first_row(rank: Record, name: str) -> dict[str, float]:
    if name not in rank.layer_names:
        return {}
    table = rank.layer_rows(name, limit=1)
    return table.row(0) if len(table) else {}


def held_by_all(record: Record) -> list[str]:
    """Parameters that are replicas, where others are not: equal on all ranks before the first step, or with equal
    gradients at it. The others are parts of a model that is split over the ranks; none where nothing is split."""
    tables = record.once(Beside.of).at_first
    if len(tables) < len(AT_FIRST):
        return []
    weights, gradients = (
        {name: _alike(values) for name, values in tables[table].items()} for table in AT_FIRST
    )
    # Of weights that are all one number, gradients that differ say nothing: so they do where nobody averages them.
    told = [n for n in weights if weights[n] is not None or gradients.get(n)]
    shared = [n for n in told if weights[n] or gradients.get(n)]
    return [] if len(shared) == len(told) else shared


def _alike(values: set[float]) -> bool | None:
    """None where the values tell nothing (all one number)."""
    return None if any(map(math.isnan, values)) else len(values) == 1


def comparable(record: Record) -> tuple[str, str] | None:
    """None where ranks can be compared; else ("clear" or "not judged", why they cannot)."""
    if len(record.ranks) < 2:
        facts = record.fact("ranks")
        world = int((facts or {}).get("world", 1))
        if world > 1:
            return "not judged", f"of {world} ranks only one record is here"
        # A process that is watched says where it runs, and with several ranks that as well. A log says neither.
        if facts is None and record.fact("env") is None:
            return "not judged", "how many ranks the run had is not known"
        return "clear", "the run has one rank"
    found = record.once(Beside.of)
    if found.sharded:
        return "not judged", "the parameters are sharded over the ranks"
    if len(found.shapes) > 1:
        return "not judged", "the ranks hold different parts of a model"
    return None


def overwritten(record: Record) -> list[tuple[int, int]]:
    """Steps after which the ranks held different weights, and the rank whose weights all have before the next."""
    columns = record.once(Beside.of).columns
    after, before = columns[WEIGHTS], columns[WEIGHTS_BEFORE]
    then = dict(zip(before.steps[before.same].tolist(), before.values[before.same].tolist()))
    differ = [step for step in after.steps[~after.same].tolist() if step + 1 in then]
    if not differ:
        return []
    kept: dict[int, int] = {}
    for number, rank in enumerate(record.ranks):
        held = _column(rank, WEIGHTS)
        values = dict(zip(held.steps.tolist(), held.values.tolist()))
        for step in differ:
            if values[step] == then[step + 1]:
                kept.setdefault(step, number)
    return sorted(kept.items())


def exchange_factors(record: Record) -> list[float]:
    """What the optimizer gets, by the mean of what the ranks' own backward passes left: 1 at each step where the ranks
    average their gradients. Steps at which the ranks have one gradient; clipping by its norm is taken out."""
    arrived, mean = record.get(ARRIVED), record.once(_mean_over_ranks, OWN)
    shared = record.once(Beside.of).columns[GRADIENTS]
    if arrived is None:
        return []
    norms, clipped = (
        dict(series) if (series := record.get(name)) is not None else {}
        for name in ("grad.norm", "grad.norm_clipped")
    )
    factors = []
    for step in set(shared.steps[shared.same].tolist()) & mean.keys():
        here = arrived.at(step)
        left = clipped.get(step, 1.0) / norms[step] if norms.get(step) else 1.0
        if here is not None and mean[step] != 0 and left > 0:
            factors.append(here / mean[step] / left)
    return factors


def medians_by_rank(record: Record, name: str) -> list[float | None]:
    """The median of a series on each rank; None where there is none."""
    found = [rank.get(name) for rank in record.ranks]
    return [None if one is None or not len(one) else one.median() for one in found]


def _mean_over_ranks(record: Record, name: str) -> dict[int, float]:
    """At the steps at which every rank has a number."""
    sums: dict[int, float] = {}
    for number, rank in enumerate(record.ranks):
        column = _column(rank, name)
        here = dict(zip(column.steps.tolist(), column.values.tolist()))
        sums = {k: sums.get(k, 0.0) + v for k, v in here.items() if not number or k in sums}
    return {step: total / len(record.ranks) for step, total in sums.items()}


def unlike_the_others(record: Record, name: str, step: int) -> list[int]:
    """Ranks that have another number there than more than half of them; none where there is no such half."""
    values = [None if (s := rank.get(name)) is None else s.at(step) for rank in record.ranks]
    [(usual, count)] = Counter(values).most_common(1)
    if 2 * count <= len(values):
        return []
    return [number for number, value in enumerate(values) if value != usual]
