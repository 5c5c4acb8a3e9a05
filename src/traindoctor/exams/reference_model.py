"""Exam: are the data learnable at all? A plain model of a usual size is trained on the run's own batches.

Legend: B rows, T places, D features, V tokens, C classes.
"""

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
    name="reference_model", title="A plain model on the same batches", cost=80, first=True
)
def reference_model(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`held_out`: the reference's loss on batches it did not see, against `guessing` from target frequencies.

    The run's first batches are passed over PASSES times; the last HELD_OUT are kept apart, and rows that stand in them
    are taken from the others: what comes again in a later epoch could be known by heart.
    """
    found = find_ends(tape)
    ends = [e for e in found if e.has_classes and e.layout is not None]
    if not ends:
        raise nothing_beside_tokens(tape, found)
    chosen = next((e for e in ends if e.causal), ends[-1])
    data = data_of(patient, chosen)
    model, steps = taught(data, causal=chosen.causal)
    losses = held_out(model, data)
    return {
        "held_out": float(losses.mean()),
        "noise": float(losses.std() / math.sqrt(len(losses))),
        "guessing": guessing(data),
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "own_parameters": sum(leaf.value.numel() for leaf in tape.parameters.values()),
        "causal": chosen.causal,
    }
