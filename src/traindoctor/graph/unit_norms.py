"""RMSNorm written as `F.normalize(x) * sqrt(features) * gain`: over which axis does it run, and which is meant?

`F.normalize` takes axis 1 unless it is told otherwise: of (batch, time, features) that is time. Unit vectors are
made for many ends (cosine scores, channel attention over the places); a learned number per feature, or a factor of
sqrt(features), tells that features were meant.
"""

import math
from dataclasses import dataclass

import torch

from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.origins import argument, depends_on
from traindoctor.graph.structure import Structure
from traindoctor.tape.operators import PASSING_ON
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape

# Its own axis where none is given (torch.nn.functional.normalize).
DEFAULT_AXIS = 1
# sqrt(features) by whatever rounding.
CLOSE = 1e-3


@dataclass(frozen=True)
class Gain:
    """What a unit vector is multiplied by on its way."""

    per_feature: bool
    """Learned numbers, one for each entry of the last axis."""
    factor: float


def unit_axis(op: Op, ndim: int) -> int | None:
    """The axis of a `normalize` call."""
    dim = argument(op, 2, "dim", DEFAULT_AXIS)
    return dim % ndim if op.kind == "normalize" and isinstance(dim, int) and ndim else None


def gain_after(structure: Structure, op: Op) -> Gain:
    """Follows the unit vectors through scalings, as long as they have one user."""
    ref = next((r for r in op.outputs if r is not None), None)
    per_feature, factor = False, 1.0
    seen: set[Ref] = set()
    while ref is not None and ref not in seen:
        seen.add(ref)
        users = structure.users.get(ref, [])
        if len(users) != 1 or not (users[0].scales or users[0].kind in PASSING_ON):
            break
        user = users[0]
        number = structure.scalar_factor(user)
        if number is not None:
            factor *= number
        elif user.scales:
            others = [r for r in user.inputs if r != ref]
            per_feature = per_feature or any(learned_per_feature(structure, r, ref) for r in others)
        ref = user.outputs[0] if user.outputs else None
    return Gain(per_feature, factor)


def learned_per_feature(structure: Structure, ref: Ref, beside: Ref) -> bool:
    kinds = depends_on(structure.tape, ref)
    shape, last = structure.shape(ref), structure.shape(beside)[-1]
    return (
        kinds & (PARAMETER | DATA) == PARAMETER
        and shape[-1:] == (last,)
        and math.prod(shape) == last
    )


def meant_for_features(structure: Structure, op: Op, source: Ref) -> bool:
    """Learned numbers per feature follow, and a factor of sqrt(features) or none."""
    gain = gain_after(structure, op)
    root = math.sqrt(structure.shape(source)[-1])
    return gain.per_feature and (gain.factor == 1.0 or abs(gain.factor / root - 1) < CLOSE)


def stretched_by_features(structure: Structure, op: Op, source: Ref, axis: int) -> bool:
    """The factor makes the size right over features, and not over the axis that is used."""
    shape = structure.shape(source)
    factor = gain_after(structure, op).factor
    fits = abs(factor / math.sqrt(shape[-1]) - 1) < CLOSE
    return fits and shape[axis] != shape[-1]


def moved_place(tape: StepTape) -> tuple[Ref, torch.Tensor, int, int] | None:
    """A batch of numbers (B, T, D) and the same with one place of one row changed: (where, changed, row, rows)."""
    site = next((s for s in input_sites(tape) if s.kind == "continuous"), None)
    if site is None or site.ref not in tape.data_set:
        return None
    value = tape.constants[site.ref]
    if value.ndim != 3 or not value.is_floating_point() or min(value.shape[:2]) < 2:
        return None
    row, place = len(value) // 2, value.shape[1] // 2
    other = value.clone()
    other[row, place] = other[row, place] * 2 + value.std()
    return site.ref, other, row, len(value)
