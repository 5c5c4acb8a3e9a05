"""How far a run has come: its steps and its loss, the same in `traindoctor runs`, in the list of the page and on the page."""

from dataclasses import dataclass

import numpy as np

from traindoctor.record.schema import Record, Series

# The first of these that a record has tells how far the run is.
PACE = ("loss.root", "loss.token", "loss.read", "grad.norm", "optim.lr", "time.step")
# The loss a reader means, best first.
LOSS = ("loss.token", "loss.read", "loss.root")
# Two measures of one loss differ by less, at most steps: the script reads the one of the step before. A sum over eight
# micro-batches, or a loss that backward was given in another unit, is several times away.
SAME = 0.15


@dataclass(frozen=True)
class Loss:
    """The latest loss of a run."""

    measure: str
    step: int
    value: float
    """NaN and infinity are values: a run that blew up has not lost its loss."""
    bad_since: int | None
    """The step from which on it has not been finite; None where it is."""


def num_steps(record: Record) -> int:
    """Steps so far; while a run goes on, from one series instead of from all of them."""
    counted = int(record.fact("run.steps", 0) or 0)
    for name in PACE:
        series = record.get(name)
        if series is not None and len(series):
            return max(counted, int(series.steps[-1]) + 1)
    return record.num_steps


def main_loss(record: Record) -> Series | None:
    """The loss per token where it can be measured, else what the script reads, else what backward is called on.

    After the first steps the better measures are taken now and then only: of the others that are the same loss,
    the one that reaches furthest is given.
    """
    found = [s for name in LOSS if (s := record.get(name)) is not None and len(s)]
    if not found:
        return None
    same = [series for series in found if agree(found[0], series)]
    return max(same, key=lambda series: int(series.steps[-1]))


def agree(a: Series, b: Series) -> bool:
    """Whether two measures are of the same loss, at the steps where both are finite numbers."""
    _, one, other = a.beside(b)
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.any():
        return bool(len(one)) and not np.isfinite(other).any()
    away = np.abs(one[finite] - other[finite]) / np.maximum(np.abs(one[finite]), 1e-9)
    return float(np.median(away)) <= SAME


def last_loss(record: Record) -> Loss | None:
    series = main_loss(record)
    if series is None:
        return None
    good = np.flatnonzero(np.isfinite(series.values))
    first_bad = 0 if not len(good) else int(good[-1]) + 1
    bad_since = int(series.steps[first_bad]) if first_bad < len(series) else None
    return Loss(series.name, int(series.steps[-1]), series.last, bad_since)
