"""What happens to the gradients between backward and the optimizer's step, where no function of torch does it.

Scripts divide `.grad` by a number, or clip it, in a loop of their own. On each taped step the gradient that arrived is
compared with the one that backward left: one factor for all of it, the same at every step, is a division; one that
brings every gradient to the same norm is a clipping. One that does so for each tensor or row by itself is a clipping by
units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from traindoctor.tape.unit_clipping import unit_limits

if TYPE_CHECKING:
    from torch import Tensor

    from traindoctor.experiment.snapshot import StepLog
    from traindoctor.tape.tape import StepTape

# A multiplication of every entry leaves the direction as it is, to rounding of the gradient's dtype.
PARALLEL = 1 - 1e-6
# Factors, or norms, of different steps agree to this: sums of float32 squares.
SAME = 1e-4
# Norms that differ by less from step to step cannot tell a division from a clipping.
VARIES = 0.01


@dataclass(frozen=True)
class Arrived:
    """One taped step: norm as backward left it, and the factor that it was multiplied by until the step."""

    step: int
    norm: float
    factor: float


@dataclass(frozen=True)
class ByHand:
    """The script's own way with its gradients."""

    kind: Literal["factor", "clip", "unit clip"]
    value: float
    """The factor, or the limit of the norm; of limits for each unit, the norm that they leave of the whole."""
    norm: float
    """Of the gradients before it, in the middle of the taped steps."""
    steps: int
    limits: Mapping[str, Tensor] = field(default_factory=dict)
    """Of each tensor's units, where each has its own."""


def arrivals(tapes: Mapping[int, StepTape], logs: Mapping[int, StepLog]) -> list[Arrived]:
    """The taped steps on which nothing of torch's (clipping that bites, a scaler) stands between backward and step."""
    found = []
    for step, tape in sorted(tapes.items()):
        log = logs.get(step)
        if tape.arrived is None or log is None or any(r.scale != 1.0 for r in tape.roots):
            continue
        factor, cosine = tape.arrived
        given = (g for g in tape.given.values() if g is not None)
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in given))
        # What torch has cut arrives with the norm of the limit; a limit above that left it alone.
        if any(
            kind != "norm" or factor * norm >= (1 - VARIES) * limit for kind, limit, _ in log.clips
        ):
            continue
        if cosine < PARALLEL or not math.isfinite(norm) or norm == 0:
            return []  # turned, not only shortened: neither of the two
        found.append(Arrived(step, norm, factor))
    return found


def by_hand(tapes: Mapping[int, StepTape], logs: Mapping[int, StepLog]) -> ByHand | None:
    """None where the gradients arrive as backward left them, or as something that is neither."""
    found = arrivals(tapes, logs)
    if not found:
        return units_by_hand(tapes, logs)
    if len(found) < 2 or all(abs(one.factor - 1) <= SAME for one in found):
        return None
    norms = sorted(one.norm for one in found)
    middle = norms[len(norms) // 2]
    factors = [one.factor for one in found]
    if max(factors) - min(factors) <= SAME * max(factors):
        return ByHand("factor", factors[0], middle, len(found))
    cut = [one for one in found if one.factor < 1 - SAME]
    whole = [one for one in found if one not in cut]
    limits = [one.factor * one.norm for one in cut]
    if any(one.factor > 1 + SAME for one in whole) or len(cut) < 2:
        return None
    # Many write `norm + 1e-6`: a limit that is far below the norm comes out a little shorter.
    alike = max(limits) - min(limits) <= SAME * max(limits) + 1e-6
    varied = max(one.norm for one in cut) > (1 + VARIES) * min(one.norm for one in cut)
    if not alike or not varied or any(one.norm > limits[0] * (1 + SAME) for one in whole):
        return None
    return ByHand("clip", max(limits), middle, len(found))


def units_by_hand(tapes: Mapping[int, StepTape], logs: Mapping[int, StepLog]) -> ByHand | None:
    """A limit for each tensor or row; only where no function of torch clips beside it."""
    steps = [s for s in sorted(tapes) if s in logs]
    if any(logs[s].clips or any(r.scale != 1.0 for r in tapes[s].roots) for s in steps):
        return None
    seen = [tapes[s].units for s in steps if tapes[s].units]
    limits = unit_limits(seen) if len(seen) == len(steps) else None
    if limits is None:
        return None

    def total(parts: Iterable[Tensor]) -> float:
        return math.sqrt(sum(float(norms.square().sum()) for norms in parts))

    before = sorted(total(one.before for one in units.values()) for units in seen)
    after = sorted(total(one.after for one in units.values()) for units in seen)
    middle = len(seen) // 2
    return ByHand("unit clip", after[middle], before[middle], len(seen), limits)
