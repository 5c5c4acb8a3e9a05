"""Clipping by hand that has a limit for each tensor, or for each row of one (adaptive gradient clipping).

The whole gradient is turned by it, but no unit is: within a unit every entry is multiplied by the same number. On the
taped steps units whose gradients differ in length arrive with nearly the same one: that is their limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A multiplication of every entry leaves a unit's direction as it is, to rounding of float32.
PARALLEL = 1 - 1e-6
# A factor this near to 1 is none.
SAME = 1e-4
# Limits that follow the norms of the weights move with them: this much between two taped steps is allowed...
LIMITS_DIFFER = 0.05
# ... beside norms that differ by this much at least in the median unit: else it may be a factor for each unit.
NORMS_DIFFER = 0.1


@dataclass(frozen=True)
class Units:
    """One tensor's gradient by units: its norms as backward left them and as they arrived at the step."""

    before: Tensor
    after: Tensor

    @property
    def cut(self) -> Tensor:
        return self.after < (1 - SAME) * self.before


def as_one(long: float, short: float, dot: float) -> Units | None:
    """A tensor as one unit, from its norms before and after and their product; None where it was turned or grew."""
    if not (dot >= PARALLEL * long * short and short <= (1 + SAME) * long):
        return None
    before, after = torch.tensor([[long], [short]], dtype=torch.float64)
    return Units(before, after)


def by_rows(given: Tensor, arrived: Tensor) -> Units | None:
    """Each row of a tensor as a unit; None where one was turned or grew."""
    if given.dim() < 2:
        return None
    before, after = given.flatten(1).double(), arrived.flatten(1).double()
    long, short = before.norm(dim=1), after.norm(dim=1)
    straight = (before * after).sum(dim=1) >= PARALLEL * long * short
    if bool(straight.all()) and bool((short <= (1 + SAME) * long).all()):
        return Units(long.cpu(), short.cpu())
    return None


def unit_limits(steps: Sequence[Mapping[str, Units]]) -> dict[str, Tensor] | None:
    """The limit of each unit of each tensor (infinite where it was never cut); None where this is no clipping."""
    if len(steps) < 2 or any(units.keys() != steps[0].keys() for units in steps):
        return None
    limits: dict[str, Tensor] = {}
    norms_differ: list[Tensor] = []
    for name in steps[0]:
        rows = [units[name] for units in steps]
        if len({row.before.shape for row in rows}) > 1:
            return None
        before = torch.stack([row.before for row in rows])
        after = torch.stack([row.after for row in rows])
        cut = torch.stack([row.cut for row in rows])
        highest = after.masked_fill(~cut, 0.0).amax(dim=0)
        lowest = after.masked_fill(~cut, torch.inf).amin(dim=0)
        ever = cut.any(dim=0)
        # Whatever is not cut must lie under the limit.
        over = (~cut & (after > (1 + LIMITS_DIFFER) * highest)).any(dim=0)
        if bool((ever & (over | (highest > (1 + LIMITS_DIFFER) * lowest))).any()):
            return None
        twice = cut.sum(dim=0) > 1
        known = before.masked_fill(~cut, 0.0).amax(0) / before.masked_fill(~cut, torch.inf).amin(0)
        norms_differ.append(known[twice])
        limits[name] = torch.where(ever, rows[-1].after, torch.inf)
        limits[name] = torch.where(ever & ~rows[-1].cut, highest, limits[name])
    differ = torch.cat(norms_differ) if norms_differ else torch.zeros(0)
    if not len(differ) or float(differ.median()) < 1 + NORMS_DIFFER:
        return None
    return limits


def clip_units(gradient: Tensor, limits: Tensor, times: float) -> Tensor:
    """The gradient with each unit cut to `times` its limit."""
    rows = gradient.reshape(limits.numel(), -1)
    norms = rows.norm(dim=1)
    allowed = (limits * times).to(norms)
    factors = torch.where(norms > allowed, allowed / norms, torch.ones_like(norms))
    return (rows * factors[:, None]).reshape(gradient.shape)
