"""Two loss curves: from which step on they differ, by more than their noise or not, and where each of them ends.

The noise of a curve is the spread of its own changes from step to step: what one batch is harder than the next.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.run_rows import plain
from traindoctor.record import Record, Series

# Two curves differ where they lie this many times their noise apart (a normal one does so 3 times in 1,000), at two
# measured steps in a row, on the same side.
TIMES_NOISE = 3.0
# Fewer changes from step to step have no spread to speak of.
FEWEST_CHANGES = 8
# Below this share of the loss a spread is that of rounding.
ROUNDING = 1e-6
# What stands for the end of a curve: the last tenth of its steps, three measured ones at least.
TENTH, FEWEST_POINTS = 10, 3
# Losses of equal weights on equal batches agree to this share, whatever the number of threads.
FIRST = 1e-3
# The median's distance of a normal distribution in units of its spread.
MAD = 1.4826
# The loss that backward is called on and the one per token are one quantity where they agree to this share.
ONE_QUANTITY = 1e-4
SAID = {
    "loss.token": "training loss per token",
    "loss.root": "training loss",
    "loss.read": "loss that the script reads",
}

Data = Literal["same", "differ", "unknown"]


@dataclass(frozen=True)
class Losses:
    """Two curves of one quantity, at the steps that both runs measured."""

    measure: str
    """What is compared, in words."""
    common: int
    """Steps that both measured."""
    first_difference: int | None
    """The first of them at which the numbers differ in any bit."""
    first_beyond_noise: int | None
    noise: float
    """Of the difference of two single steps; NaN where there are too few."""
    first: int
    """Where the last tenth of the common steps begins."""
    last: int
    a: float
    """Mean over that tenth."""
    b: float
    certain: bool
    """The means differ by more than noise."""
    ended_a: int | None
    """The first step at which A's loss is not finite."""
    ended_b: int | None

    @property
    def equal(self) -> bool:
        return self.first_difference is None

    @property
    def differ(self) -> bool:
        return self.certain or self.first_beyond_noise is not None or self.ended_a != self.ended_b

    def as_dict(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in asdict(self).items()}


def measure_of(a: Record, b: Record) -> str | None:
    """The loss that both runs have. Where backward is called on another scale, the loss per token compares."""
    whole, token = (_has(a, name) and _has(b, name) for name in ("loss.root", "loss.token"))
    if whole and token and not (_one_quantity(a) and _one_quantity(b)):
        return "loss.token"
    for name in ("loss.root", "loss.token", "loss.read"):
        if _has(a, name) and _has(b, name):
            return name
    return None


def losses(a: Record, b: Record) -> Losses | None:
    """None where there is no step at which both measured the same loss."""
    name = measure_of(a, b)
    if name is None:
        return None
    steps, one, other = at_equal_steps(a[name], b[name])
    if not len(steps):
        return None
    unequal = np.flatnonzero(~_equal(one, other))
    tail = last_tenth(steps)
    noise = math.hypot(noise_of(one), noise_of(other))
    with np.errstate(all="ignore"):
        means = float(one[tail].mean()), float(other[tail].mean())
        apart = abs(means[0] - means[1])
    return Losses(
        SAID[name],
        len(steps),
        int(steps[unequal[0]]) if len(unequal) else None,
        _first_beyond(steps, one - other, noise) if len(unequal) else None,
        noise,
        int(steps[tail][0]),
        int(steps[-1]),
        *means,
        bool(apart > TIMES_NOISE * noise / math.sqrt(tail.sum())),
        _first_not_finite(a[name]),
        _first_not_finite(b[name]),
    )


def at_equal_steps(
    a: Series, b: Series
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The steps that both have and their values; of several values of one step the last counts."""
    first, second = dict(a), dict(b)
    steps = sorted(first.keys() & second.keys())
    return (
        np.array(steps, dtype=np.int64),
        np.array([first[step] for step in steps], dtype=np.float64),
        np.array([second[step] for step in steps], dtype=np.float64),
    )


def last_tenth(steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Late steps are measured more rarely: where a tenth has too few points, it reaches further back."""
    chosen = steps > steps[-1] - (steps[-1] + 1) / TENTH
    if chosen.sum() < FEWEST_POINTS:
        chosen[-FEWEST_POINTS:] = True
    return np.asarray(chosen, dtype=np.bool_)


def end_of(series: Series | None) -> float | None:
    """The mean over the last tenth of a curve."""
    if series is None or not len(series):
        return None
    with np.errstate(all="ignore"):
        return float(series.values[last_tenth(series.steps)].mean())


def noise_of(values: NDArray[np.float64]) -> float:
    """The spread of one step about its neighbours, by medians: a fall or a spike is no noise."""
    finite = values[np.isfinite(values)]
    changes = np.diff(finite)
    if len(changes) < FEWEST_CHANGES:
        return math.nan
    spread = MAD * float(np.median(np.abs(changes - np.median(changes)))) / math.sqrt(2)
    return max(spread, ROUNDING * float(np.median(np.abs(finite))))


def same_data(a: Record, b: Record) -> tuple[Data, int | None]:
    """Whether both were given the same batches, and the first step at which they were not."""
    one, other = a.get("batch.fingerprint"), b.get("batch.fingerprint")
    if one is None or other is None:
        return "unknown", None
    steps, first, second = at_equal_steps(one, other)
    if not len(steps):
        return "unknown", None
    unequal = np.flatnonzero(first != second)
    return ("differ", int(steps[unequal[0]])) if len(unequal) else ("same", None)


def first_losses(a: Record, b: Record) -> tuple[float, float] | None:
    """The losses before any step was made, where they differ by more than rounding; the batch has to be the same."""
    name, (data, since) = measure_of(a, b), same_data(a, b)
    if name is None or data == "unknown" or since == 0:
        return None
    one, other = a[name].at(0), b[name].at(0)
    if one is None or other is None or not abs(one - other) > FIRST * abs(one):
        return None
    return one, other


def _has(record: Record, name: str) -> bool:
    series = record.get(name)
    return series is not None and len(series) > 0


def _one_quantity(record: Record) -> bool:
    _, whole, token = at_equal_steps(record["loss.root"], record["loss.token"])
    with np.errstate(all="ignore"):
        return bool((np.abs(whole - token) <= ONE_QUANTITY * np.abs(token)).mean() > 0.5)


def _equal(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)), dtype=np.bool_)


def _first_beyond(steps: NDArray[np.int64], apart: NDArray[np.float64], noise: float) -> int | None:
    with np.errstate(all="ignore"):
        side = np.where(np.abs(apart) > TIMES_NOISE * noise, np.sign(apart), 0.0)
    both = np.flatnonzero((side[:-1] != 0) & (side[:-1] == side[1:]))
    return int(steps[both[0]]) if len(both) else None


def _first_not_finite(series: Series) -> int | None:
    broken = np.flatnonzero(~np.isfinite(series.values))
    return int(series.steps[broken[0]]) if len(broken) else None
