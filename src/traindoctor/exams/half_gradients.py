"""Exam: does the step compute in float16, and how much of its gradient does that lose?"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.ground.nested import tensors_in
from traindoctor.tape.execute import replay, visit
from traindoctor.tape.operators import INFINITE_AT_ZERO
from traindoctor.tape.ops import Op
from traindoctor.tape.tape import StepTape

# Beyond this the gradient's error is worth a second look: rounding to float16 is 1e-3.
FAINT = 0.05
SCALES = (2.0**8, 2.0**12, 2.0**16)


@exam_of_tape(name="half_gradients", title="Gradient entries that float16 turns into 0", cost=2)
def half_gradients(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`dtypes` of the step's results; `gradient_lost`: share of entries that are 0 and should not be;
    `tensors_lost`: share of tensors of which no entry is left; `error`: of the whole gradient, relative, and
    `error_scaled` with a larger loss; `overflow`: the first op that float16 makes infinite."""
    found, overflow = look_through(tape)
    counted = Counter(_name(leaf.value.dtype) for leaf in tape.parameters.values())
    values = {
        "step": tape.step,
        "dtypes": found,
        "weights": counted.most_common(1)[0][0] if counted else "none",
        "gradient_lost": 0.0,
        "tensors_lost": 0.0,
        "worst_layer": None,
        "error": 0.0,
        "error_scaled": 0.0,
        "overflow": overflow,
    }
    return {**values, **lost(tape)} if "float16" in found else values


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def look_through(tape: StepTape) -> tuple[list[str], dict[str, Any] | None]:
    """Every floating dtype that a result of the step has; the first op whose finite input float16 makes infinite."""
    found: set[str] = set()
    first: list[dict[str, Any]] = []
    roots = [root.ref for root in tape.roots if root.ref is not None]
    used = {op.number for op in tape.needed(roots)}

    def look(op: Op, inputs: Any, outputs: Sequence[Tensor]) -> bool:
        found.update(_name(out.dtype) for out in outputs if out.is_floating_point())
        if not first and op.number in used and op.kind not in INFINITE_AT_ZERO and op.depends_on:
            infinite = sum(int(out.isinf().sum()) for out in outputs if out.dtype == torch.float16)
            numbers = [x for x in tensors_in(inputs) if x.is_floating_point()]
            if infinite and all(bool(x.isfinite().all()) for x in numbers):
                largest = max((float(x.abs().max()) for x in numbers if x.numel()), default=0.0)
                place = {"op": op.name, "module": op.module, "line": op.nearest_line}
                first.append({**place, "count": infinite, "largest": largest})
        return False

    visit(tape, look)
    return sorted(found), first[0] if first else None


def lost(tape: StepTape) -> dict[str, Any]:
    """Against the same gradient in float64."""
    reference = replay(tape, dtype=torch.float64, gradients=True).gradients()
    shares: dict[str, tuple[int, int]] = {}
    for name, exact in reference.items():
        given = tape.fresh.get(name)
        if given is None or exact is None or given.shape != exact.shape:
            continue
        # What float32 could not hold either is nothing that half precision lost.
        telling = exact.abs() > torch.finfo(torch.float32).tiny
        if bool(telling.any()):
            shares[name] = (int(((given == 0) & telling).sum()), int(telling.sum()))
    if not shares:
        return {}
    error = relative_error(tape.fresh, reference)
    return {
        "error": error,
        "error_scaled": min(scaled_errors(tape, reference)) if error > FAINT else error,
        "gradient_lost": sum(zero for zero, _ in shares.values())
        / sum(n for _, n in shares.values()),
        "tensors_lost": sum(zero == n for zero, n in shares.values()) / len(shares),
        "worst_layer": max(shares, key=lambda name: shares[name][0] / shares[name][1]),
    }


def scaled_errors(tape: StepTape, reference: Mapping[str, Tensor | None]) -> list[float]:
    """Of the gradient of the loss times some number, divided by it again: what is too small is then no longer."""
    errors = []
    for scale in SCALES:
        replayed = replay(tape, gradients=True)
        first, *others = (root * scale for root in replayed.roots)
        large = replayed.gradients_of(sum(others, start=first))
        back = {name: None if g is None else g.double() / scale for name, g in large.items()}
        errors.append(relative_error(back, reference))
    return errors


def relative_error(
    given: Mapping[str, Tensor | None], reference: Mapping[str, Tensor | None]
) -> float:
    """Infinite where it is no number."""
    missed = length = 0.0
    for name, exact in reference.items():
        found = given.get(name)
        if exact is None or found is None or found.shape != exact.shape:
            continue
        missed += float((found.double() - exact.double()).square().sum())
        length += float(exact.double().square().sum())
    error = math.sqrt(missed / length) if length > 0 else 0.0
    return error if math.isfinite(error) else math.inf
