"""Ranks beside each other: at how many steps do they agree, bit for bit?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from traindoctor.record.schema import Record


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


def agreement(record: Record, name: str) -> Agreement:
    """Steps that every rank has; the last value of a step counts. Where ranks hold different parts of a model, of the
    parameters alone that they all hold."""
    shared = held_by_all(record)
    columns: list[dict[int, Any]] = []
    for rank in record.ranks:
        table = rank.layers(f"{name}_by_parameter")
        if shared and table is not None:
            kept = [table.layers.index(one) for one in shared if one in table.layers]
            rows = np.nan_to_num(table.values[:, kept], nan=-1.0)
            columns.append({int(k): tuple(row.tolist()) for k, row in zip(table.steps, rows)})
            continue
        series = rank.get(name)
        if series is None:
            return Agreement(0, 0)
        columns.append(dict(zip(series.steps.tolist(), series.values.tolist())))
    common = sorted(set.intersection(*(set(column) for column in columns)))
    same = [len({column[step] for column in columns}) == 1 for step in common]
    equal = [step for step, agrees in zip(common, same) if agrees]
    return Agreement(
        len(common),
        len(equal),
        first_difference=next((step for step, agrees in zip(common, same) if not agrees), None),
        last_equal=equal[-1] if equal else None,
        equal_at_first=equal[:1] == common[:1] != [],
    )


def held_by_all(record: Record) -> list[str]:
    """Parameters that are replicas, where others are not: equal on all ranks before the first step, or with equal
    gradients at it. The others are parts of a model that is split over the ranks; none where nothing is split."""
    equal = [
        _equal_at_first(record, name)
        for name in ("weights.crc_before_by_parameter", "grad.crc_by_parameter")
    ]
    if any(one is None for one in equal):
        return []
    weights, gradients = (one or {} for one in equal)
    # Of weights that are all one number, gradients that differ say nothing: so they do where nobody averages them.
    told = [n for n in weights if weights[n] is not None or gradients.get(n)]
    shared = [n for n in told if weights[n] or gradients.get(n)]
    return [] if len(shared) == len(told) else shared


def _equal_at_first(record: Record, name: str) -> dict[str, bool | None] | None:
    """By parameter; None where its values tell nothing (all one number)."""
    tables = [rank.layers(name) for rank in record.ranks]
    rows = [table.row(0) for table in tables if table is not None and len(table)]
    if len(rows) < len(record.ranks) or len({tuple(row) for row in rows}) != 1:
        return None
    return {
        parameter: None if any(math.isnan(row[parameter]) for row in rows) else len(values) == 1
        for parameter in rows[0]
        for values in [{row[parameter] for row in rows}]
    }


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
    if any((rank.fact("ranks") or {}).get("sharded") for rank in record.ranks):
        return "not judged", "the parameters are sharded over the ranks"
    shapes = {
        tuple((p["name"], tuple(p["shape"])) for p in rank.fact("model.parameters") or [])
        for rank in record.ranks
    }
    if len(shapes) > 1:
        return "not judged", "the ranks hold different parts of a model"
    return None


def overwritten(record: Record) -> list[tuple[int, int]]:
    """Steps after which the ranks held different weights, and the rank whose weights all have before the next."""
    after, before = (
        [dict(zip(s.steps.tolist(), s.values.tolist())) if s else {} for s in series]
        for name in ("weights.crc", "weights.crc_before")
        for series in [[rank.get(name) for rank in record.ranks]]
    )
    found = []
    for step in sorted(set.intersection(*(set(one) for one in after))):
        held, then = [one[step] for one in after], {one.get(step + 1) for one in before}
        if len(set(held)) > 1 and len(then) == 1 and (kept := then.pop()) in held:
            found.append((step, held.index(kept)))
    return found
