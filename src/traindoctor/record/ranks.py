"""Ranks beside each other: at how many steps do they agree, bit for bit?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traindoctor.record.schema import Record


@dataclass(frozen=True)
class Agreement:
    """How often all ranks have the same number at the same step."""

    steps: int
    equal: int
    first_difference: int | None
    equal_after_first: bool
    """They agree again after a step at which they did not."""

    @property
    def share(self) -> float:
        return self.equal / self.steps if self.steps else float("nan")


def agreement(record: Record, name: str) -> Agreement:
    """Steps that every rank has; the last value of a step counts."""
    columns = []
    for rank in record.ranks:
        series = rank.get(name)
        if series is None:
            return Agreement(0, 0, None, False)
        columns.append(dict(zip(series.steps.tolist(), series.values.tolist())))
    common = sorted(set.intersection(*(set(column) for column in columns)))
    same = np.array([len({column[step] for column in columns}) == 1 for step in common], dtype=bool)
    differs = np.flatnonzero(~same)
    first = int(differs[0]) if len(differs) else None
    return Agreement(
        len(common),
        int(same.sum()),
        None if first is None else int(common[first]),
        first is not None and bool(same[first:].any()),
    )


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
