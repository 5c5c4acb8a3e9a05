"""Exam: are the loss's targets the output of a model that does not learn, with dropout at work in it?

A teacher's answer is meant to be the same each time it is asked. Left in training mode it drops units, and the
student is shown another, worse teacher at every step.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import TooEarly, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import depends_on
from traindoctor.probes.eval_dropout import drops
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape

# A moving average of the student moves at every step, a target network that is copied over now and then within
# this many: what stays bit for bit the same for longer is a teacher.
APART = 20


@exam_of_tape(name="frozen_targets", title="Dropout in what the loss compares with", cost=3)
def frozen_targets(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`dropouts`: calls that drop something on the way to the targets; `unchanged`: the weights on that way stay the
    same bit for bit; `answers`: how often the model is asked in a step, per backward pass."""
    found = dropping(tape)
    values = {"step": tape.step, "dropouts": len(found), "unchanged": None, "answers": 0.0}
    if not found:
        return values
    own = weights(tape)
    if not own:
        return {**values, "dropouts": 0}  # noise on the data themselves
    others = [
        theirs
        for step, other in patient.tapes.items()
        if tape.step - step >= APART and same_shapes(own, theirs := weights(other))
    ]
    if not others:
        raise TooEarly(f"the model behind the targets was not seen {APART} steps apart")
    return {
        **values,
        "unchanged": all(torch.equal(a, b) for a, b in zip(own, others[0])),
        "weights": len(own),
        "answers": passes(tape) / max(1, len(tape.roots)),
        "line": found[0].nearest_line,
        "module": found[0].module,
    }


def dropping(tape: StepTape) -> list[Op]:
    """Calls outside of the gradient that drop something, and whose results meet nothing but finished scores."""
    roots = [root.ref for root in tape.roots if root.ref is not None]
    needed = tape.needed(roots)
    return [
        op
        for op in needed
        if apart(tape, op) and drops(op.name, op.args, op.kwargs) and is_target(tape, needed, op)
    ]


def apart(tape: StepTape, op: Op) -> bool:
    """No gradient goes through it: it ran without, or depends on nothing that learns."""
    return not op.grad_enabled or not op.depends_on & PARAMETER


def is_target(tape: StepTape, needed: list[Op], source: Op) -> bool:
    """On its way to the loss nothing that learns works on it: features of a frozen part are no target."""
    behind = {ref for ref in source.outputs if ref is not None}
    for op in needed:
        if op.number <= source.number or not behind.intersection(op.inputs):
            continue
        if op.grad_enabled and any(is_weight(tape, ref) for ref in op.inputs):
            return False
        behind.update(ref for ref in (*op.outputs, *op.writes) if ref is not None)
    return True


def is_weight(tape: StepTape, ref: Ref) -> bool:
    """A value that learns, whatever the batch is."""
    kinds = depends_on(tape, ref)
    return bool(kinds & PARAMETER) and not kinds & DATA


def used_apart(tape: StepTape) -> list[Ref]:
    """Weights of what runs without gradient, once for each use."""
    found = []
    for op in tape.ops:
        if apart(tape, op):
            for ref in op.inputs:
                value = fixed(tape, ref)
                if value is not None and value.is_floating_point() and value.ndim > 1:
                    found.append(ref)
    return found


def weights(tape: StepTape) -> list[Tensor]:
    return [
        value for ref in dict.fromkeys(used_apart(tape)) if (value := fixed(tape, ref)) is not None
    ]


def passes(tape: StepTape) -> int:
    """Passes of the model in the step: a layer that stands in it twice is used more often, the others are not."""
    return min(Counter(used_apart(tape)).values(), default=0)


def fixed(tape: StepTape, ref: Ref) -> Tensor | None:
    """A weight's value; None for data and for what the step computes."""
    name = tape.name_of(ref)
    if name is not None:
        return tape.parameters[name].value
    return None if ref in tape.data_set else tape.constants.get(ref)


def same_shapes(own: list[Tensor], theirs: list[Tensor]) -> bool:
    return [t.shape for t in own] == [t.shape for t in theirs]
