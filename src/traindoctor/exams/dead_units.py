"""Exam: units of a ReLU that fire for no token of the batch."""

import math
from collections.abc import Mapping
from typing import Any

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import argument, depends_on, walk_back
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import ABOVE, CUTTING
from traindoctor.tape.ops import PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape


@exam_of_tape(name="dead_units", title="Units that never fire", cost=2)
def dead_units(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`layers`: per activation the share of units (last axis) that are 0 for every token of the step."""
    ops = [op for op in tape.ops if op.kind in CUTTING and op.outputs[0] is not None]
    # clamp(min=0) is a ReLU by another name
    ops += [op for op in tape.ops if op.kind == "clamp" and 0 in op.args[1:2]]
    ops += [op for op in tape.ops if cut_by_hand(tape, op)]
    fed = fed_to_weights(tape)
    ops = [op for op in ops if (ref := op.outputs[0]) is not None and fed >> ref.index & 1]
    if not ops:
        raise NotApplicable("the step has no activation function that can be exactly 0")
    refs = [ref for op in ops if (ref := op.outputs[0]) is not None]
    replayed = replay(tape, want=refs)
    layers = []
    for op, ref in zip(ops, refs):
        value = replayed[ref].detach()
        if value.ndim < 2 or value.shape[0] < 1 or value.numel() == 0:
            continue  # an expert that got no token
        fires = (value > 0).reshape(-1, value.shape[-1])
        layers.append(
            {
                "dead": float((~fires.any(0)).float().mean()),
                "silent": float((~fires).float().mean()),
                "units": value.shape[-1],
                "tokens": len(fires),
                "module": op.module,
                "line": op.line,
            }
        )
    if not layers:
        raise NotPossible("no activation function had any input in this step")
    return {"layers": layers, "step": tape.step}


def fed_to_weights(tape: StepTape) -> int:
    """One bit for each value that later meets weights: the others are parts of a loss (a hinge, a penalty)."""
    structure, bits = Structure(tape), 0
    for op in tape.ops:
        values = [ref for ref in op.inputs if structure.of_data(ref)]
        weights = [
            ref for ref in op.inputs if ref not in values and depends_on(tape, ref) & PARAMETER
        ]
        if any(math.prod(structure.shape(ref)) > 1 for ref in weights):
            for ref in values:
                bits |= structure.above(ref) | 1 << ref.index
    return bits


def cut_by_hand(tape: StepTape, op: Op) -> bool:
    """x * (x > threshold), or torch.where(x > threshold, x, 0)."""
    if op.kind == "mul" and len(op.inputs) == 2:
        one, other = op.inputs
        return compares(tape, one, other) or compares(tape, other, one)
    if op.kind == "where":
        kept, rest = argument(op, 1, "input"), argument(op, 2, "other")
        condition = argument(op, 0, "condition")
        return rest == 0 and isinstance(kept, Ref) and compares(tape, condition, kept)
    return False


def compares(tape: StepTape, mask: Ref, value: Ref) -> bool:
    """Whether the mask, perhaps as numbers, says where the value is above something."""
    for _, made_by in walk_back(tape, mask):
        if made_by is not None and made_by.kind in ABOVE:
            return made_by.inputs[0] == value
    return False
