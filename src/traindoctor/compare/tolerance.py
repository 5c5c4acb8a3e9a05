"""How far two tensors are apart, and how far rounding alone may take them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traindoctor.compare.trace import Entry, Key

# A difference counts from this many times the largest response to rounding. Measured on pairs of right implementations
# (tests/compare/test_equal_pairs.py, benchmarks/compare.py): their largest is below half of it.
MARGIN = 8.0

# Of so few elements the best factor is no more than the elements themselves.
FEWEST = 16

EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}


@dataclass(frozen=True)
class Distance:
    """Between two tensors of one shape, relative to the first."""

    whole: float
    """2-norm of the difference over the norm of the first."""
    worst: float
    """The largest difference of one element, over that element and the root mean square together."""
    slope: float = 0.0
    """How far from 1 the factor is by which the first fits the second best: what all elements have in common."""

    def over(self, allowed: Distance) -> float:
        """How many times the allowed distance this is."""
        return max(
            _ratio(self.whole, allowed.whole),
            _ratio(self.worst, allowed.worst),
            _ratio(self.slope, allowed.slope),
        )


def _ratio(value: float, allowed: float) -> float:
    if math.isnan(value):
        return math.inf
    return value / allowed if allowed else (math.inf if value else 0.0)


def distance(there: NDArray[Any], here: NDArray[Any]) -> Distance:
    """Of `here` from `there`; where one has a number that is not finite, the other must have the same."""
    if not there.size:
        return Distance(0.0, 0.0)
    odd = ~(np.isfinite(there) & np.isfinite(here))
    if odd.any():
        same = (there == here) | (np.isnan(there) & np.isnan(here))
        if not same[odd].all():
            return Distance(math.inf, math.inf, math.inf)
        there, here = np.where(odd, 0.0, there), np.where(odd, 0.0, here)
    apart = np.abs(here - there)
    if not apart.any():
        return Distance(0.0, 0.0)
    norm = float(np.linalg.norm(there.ravel()))
    if not norm:
        far = math.inf if apart.any() else 0.0
        return Distance(far, far, far)
    rms = norm / math.sqrt(there.size)
    slope = float(np.vdot(there, here)) / norm**2 - 1 if there.size >= FEWEST else 0.0
    return Distance(
        float(np.linalg.norm(apart.ravel())) / norm,
        float((apart / (np.abs(there) + rms)).max()),
        abs(slope),
    )


@dataclass(frozen=True)
class Tolerance:
    """What rounding explains, tensor by tensor."""

    measured: Mapping[Key, Distance]
    draws: int
    """Runs of A that it was measured on; 0: estimated from the dtypes."""
    repeated: bool = True
    """A itself was run again as well; not where dumps of perturbed runs lie beside A."""
    coarsest: str = "float32"
    """The dtype whose last place was perturbed."""

    def of(self, entry: Entry, other: Entry | None = None) -> Distance:
        """The allowed distance of a tensor: a margin over the measured one, never below its own rounding on either side."""
        own = max(EPS.get(one.dtype, 0.0) for one in (entry, other or entry))
        # Parts that stand side by side were measured one by one.
        parts = [(*entry.key[:2], name) for name in entry.name.split(" + ")]
        known = [{entry.key: self.measured[part]} for part in parts if part in self.measured]
        found = largest(known).get(entry.key)
        if found is None or not self.draws:
            return estimated(entry, max(own, EPS.get(self.coarsest, 0.0)))
        return Distance(
            MARGIN * max(found.whole, own / 2),
            MARGIN * max(found.worst, own / 2),
            # Rounding has no direction: over many elements it cancels; of few draws it may seem to by luck.
            MARGIN * max(found.slope, own / 4, found.whole / 8),
        )


def undetermined(gradients: Iterable[tuple[NDArray[Any], Distance]]) -> NDArray[Any] | None:
    """Elements whose gradient was within its own rounding of 0 at every step so far, each given with what is allowed it.

    Adam and its relatives divide a gradient by its own size: where it is 0 but for rounding, the update has either sign.
    """
    found: NDArray[Any] | None = None
    for gradient, allowed in gradients:
        rms = math.sqrt(float(np.mean(gradient**2))) if gradient.size else 0.0
        small = np.abs(gradient) <= allowed.whole * rms
        found = small if found is None else found & small
    return found


def estimated(entry: Entry, eps: float) -> Distance:
    """Without a measurement: a sum over as many terms as the longest dimension, each rounded, some layers deep."""
    longest = max(entry.shape, default=1)
    grown = eps * math.sqrt(longest) * 4
    return Distance(grown, 8 * grown, grown)


def largest(draws: Iterable[Mapping[Key, Distance]]) -> dict[Key, Distance]:
    """Of several draws, tensor by tensor, the largest response."""
    found: dict[Key, Distance] = {}
    for draw in draws:
        for key, one in draw.items():
            had = found.get(key, one)
            found[key] = Distance(
                max(had.whole, one.whole), max(had.worst, one.worst), max(had.slope, one.slope)
            )
    return found
