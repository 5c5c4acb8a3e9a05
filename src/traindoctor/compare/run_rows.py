"""Rows of a comparison: one thing of both runs side by side, and how numbers are said so that a difference shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | bool | None

ABSENT = "-"
FEWEST_DIGITS, MOST_DIGITS = 4, 17
# Larger whole numbers are said as 1.2e+07.
LARGEST_WHOLE = 1e9


@dataclass(frozen=True)
class Row:
    """One thing of both runs. None: it is not known, or the run has no such thing."""

    name: str
    a: Cell
    b: Cell
    note: str = ""
    """More about it, for a line of its own."""

    @property
    def differs(self) -> bool:
        return not same(self.a, self.b)

    def said(self) -> tuple[str, str]:
        return said_pair(self.a, self.b)

    def as_dict(self) -> dict[str, Any]:
        cells = {"name": self.name, "a": plain(self.a), "b": plain(self.b)}
        return {**cells, "differs": self.differs, **({"note": self.note} if self.note else {})}


def rows_of(a: Mapping[str, Cell], b: Mapping[str, Cell]) -> tuple[Row, ...]:
    """What either run has, in A's order; what B alone has stands last."""
    return tuple(Row(name, a.get(name), b.get(name)) for name in {**a, **b})


def same(a: Cell, b: Cell) -> bool:
    """Equal, NaN being equal to NaN; True is not 1."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def said_pair(a: Cell, b: Cell, digits: int = FEWEST_DIGITS) -> tuple[str, str]:
    """Both in as few digits as show that they differ."""
    while True:
        pair = said(a, digits), said(b, digits)
        if pair[0] != pair[1] or same(a, b) or digits >= MOST_DIGITS:
            return pair
        digits += 1


def said(cell: Cell, digits: int = FEWEST_DIGITS) -> str:
    if cell is None:
        return ABSENT
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    if math.isfinite(cell) and float(cell).is_integer() and abs(cell) < LARGEST_WHOLE:
        return str(int(cell))
    return f"{cell:.{digits}g}"


def plain(cell: Cell) -> Cell:
    """JSON has no NaN and no infinity."""
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def cell_of(value: Any) -> Cell:
    """What a record holds under a name, as one cell: (0.9, 0.999) becomes '0.9, 0.999'."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(said(cell_of(item), MOST_DIGITS - 2) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={said(cell_of(v), MOST_DIGITS - 2)}" for k, v in value.items())
    return str(value)


def listed(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'"""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def dict_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def list_of(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def dicts_of(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in list_of(value) if isinstance(one, Mapping)]
