"""Exam: does the step compute in float16, and how much of its gradient does that lose?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from traindoctor.exams.base import exam
from traindoctor.replay.execute import visit
from traindoctor.replay.ops import Op

if TYPE_CHECKING:
    from traindoctor.replay.patient import Patient
    from traindoctor.replay.tape import StepTape


@exam(name="half_gradients", title="Gradient entries that float16 turns into 0", cost=2)
def half_gradients(patient: Patient) -> Mapping[str, Any]:
    """`dtypes` of the step's results; `gradient_lost`: share of entries that are 0 and should not be;
    `tensors_lost`: share of tensors of which no entry is left."""
    tape = patient.tape
    assert tape is not None
    found = dtypes(tape)
    counted = Counter(_name(leaf.value.dtype) for leaf in tape.parameters.values())
    values = {
        "step": tape.step,
        "dtypes": found,
        "weights": counted.most_common(1)[0][0] if counted else "none",
        "gradient_lost": 0.0,
        "tensors_lost": 0.0,
        "worst_layer": None,
    }
    return {**values, **lost(tape)} if "float16" in found else values


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtypes(tape: StepTape) -> list[str]:
    """Every floating dtype that a result of the step has."""
    found: set[str] = set()

    def look(op: Op, inputs: Any, outputs: Sequence[Tensor]) -> bool:
        found.update(_name(out.dtype) for out in outputs if out.is_floating_point())
        return False

    visit(tape, look)
    return sorted(found)


def lost(tape: StepTape) -> dict[str, Any]:
    """Against the same gradient in float64."""
    reference = tape.replay(dtype=torch.float64, gradients=True).gradients()
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
    return {
        "gradient_lost": sum(zero for zero, _ in shares.values())
        / sum(n for _, n in shares.values()),
        "tensors_lost": sum(zero == n for zero, n in shares.values()) / len(shares),
        "worst_layer": max(shares, key=lambda name: shares[name][0] / shares[name][1]),
    }
