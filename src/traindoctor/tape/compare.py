"""Two gradients side by side: how far apart, and what the difference looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

# A tensor's own difference is measured against at least this share of the whole gradient: key biases of an
# attention have a true gradient of exactly 0, and rounding there is no error.
FLOOR = 1e-3
# What is left after the best constant factor is taken out, for the error to be called a factor.
FACTOR_RESIDUE = 1e-3


@dataclass
class Difference:
    """One tensor's gradient against its reference."""

    name: str
    difference: float
    """Norm of the difference over the norm of the reference (floored)."""
    factor: float
    """The best constant factor: given = factor * reference."""
    residue: float
    """What the factor leaves, relative to the given gradient."""
    given_norm: float
    reference_norm: float
    zeroed: float
    """Share of entries that are 0 where the reference is not."""
    pattern: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(name: str, given: Tensor, reference: Tensor, floor: float = 0.0) -> Difference:
    """`floor`: the least norm that a relative difference is taken of."""
    a, r = given.detach().double(), reference.detach().double()
    norm_a, norm_r = float(a.norm()), float(r.norm())
    factor = float((a * r).sum()) / norm_r**2 if norm_r else math.nan
    residue = float((a - factor * r).norm()) / norm_a if norm_a and norm_r else math.nan
    distance = float((a - r).norm())
    scale = max(norm_r, floor)
    difference = distance / scale if scale else (0.0 if distance == 0 else math.inf)
    wrong = (a == 0) & (r != 0)
    zeroed = float(wrong.double().mean()) if a.numel() else 0.0
    return Difference(
        name,
        difference,
        factor,
        residue,
        norm_a,
        norm_r,
        zeroed,
        pattern_of(a, r, factor, residue, difference),
    )


def pattern_of(a: Tensor, r: Tensor, factor: float, residue: float, difference: float) -> str:
    """In words: what kind of error turns the reference into the given gradient."""
    if difference < 1e-6:
        return "equal"
    if not math.isfinite(difference):
        return "not finite"
    if not math.isfinite(factor):
        return "not zero where it should be"
    if residue < FACTOR_RESIDUE:
        if abs(factor + 1) < FACTOR_RESIDUE:
            return "opposite sign"
        return f"constant factor {factor:.6g}"
    if a.dim() == 2 and a.shape[0] == a.shape[1] and _close(a.T, r):
        return "transposed"
    if a.dim() >= 1 and a.numel() > 1:
        place = _region(a, r)
        if place:
            return place
    return "no simple pattern"


def _close(a: Tensor, r: Tensor) -> bool:
    return float((a - r).norm()) < FACTOR_RESIDUE * float(r.norm())


def _region(a: Tensor, r: Tensor) -> str | None:
    """The error is confined to a range of one axis."""
    scale = float(r.abs().mean()) + float(a.abs().mean())
    wrong = (a - r).abs() > 1e-3 * scale
    for axis in range(a.dim()):
        others = [d for d in range(a.dim()) if d != axis]
        bad = wrong.any(dim=others) if others else wrong
        where = bad.nonzero().flatten()
        if not 0 < len(where) < 0.9 * len(bad):
            continue
        first, last = int(where[0]), int(where[-1])
        inside = wrong.index_select(axis, where)
        zero = bool((a.index_select(axis, where)[inside] == 0).all())
        what = "zero" if zero else "wrong"
        if last == len(bad) - 1 and len(where) > 0.7 * (last - first + 1):
            return f"{what} from index {first} on along axis {axis} of {len(bad)}"
        if len(where) == last - first + 1:
            return f"{what} at index {first} to {last} along axis {axis} of {len(bad)}"
        return f"{what} at {len(where)} of {len(bad)} places along axis {axis}"
    return None


def compare_all(
    given: Mapping[str, Tensor | None], reference: Mapping[str, Tensor | None]
) -> tuple[float, list[Difference]]:
    """Relative difference of the whole gradient, and each tensor's own, the worst first. None counts as 0."""
    names = [n for n in reference if reference.get(n) is not None or given.get(n) is not None]
    total = math.sqrt(
        sum(float(g.double().square().sum()) for n in names if (g := reference[n]) is not None)
    )
    found = []
    distance = 0.0
    for name in names:
        r, a = reference[name], given.get(name)
        template = r if r is not None else a
        assert template is not None
        r = torch.zeros_like(template) if r is None else r
        a = torch.zeros_like(template) if a is None else a
        if a.shape != r.shape:
            continue
        found.append(compare(name, a, r, FLOOR * total))
        distance += float((a.double() - r.double()).square().sum())
    found.sort(key=lambda item: -item.difference if math.isfinite(item.difference) else -math.inf)
    whole = math.sqrt(distance) / total if total else (math.inf if distance else 0.0)
    return whole, found
