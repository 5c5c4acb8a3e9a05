"""Exam: does the order of the tokens help to predict the targets? A plain model learns with positions and without."""

import math
from collections.abc import Mapping
from typing import Any

from traindoctor.exams.base import exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.patient import Patient
from traindoctor.experiment.plain_batches import data_of
from traindoctor.experiment.reference import guessing, held_out, taught
from traindoctor.graph.ends import find_ends
from traindoctor.tape.tape import StepTape


@exam_of_tape(
    name="order_matters", title="A plain model with positions and without", cost=160, first=True
)
def order_matters(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`gain`: how much lower the loss is with positions, on batches that neither model saw; `noise` over batches.

    Both models begin with the same weights and see the same batches in the same order.
    """
    found = find_ends(tape)
    ends = [e for e in found if e.has_classes and e.layout is not None and not e.causal]
    if not ends:
        raise nothing_beside_tokens(tape, found)
    data = data_of(patient, ends[-1])
    model, steps = taught(data, causal=False)
    plain, _ = taught(data, causal=False, positions=False)
    with_order, without = held_out(model, data), held_out(plain, data)
    gains = without - with_order
    return {
        "with": float(with_order.mean()),
        "without": float(without.mean()),
        "gain": float(gains.mean()),
        "noise": float(gains.std() / math.sqrt(len(gains))),
        "guessing": guessing(data),
        "steps": steps,
    }
