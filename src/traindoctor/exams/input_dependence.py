"""Exam: how much of each activation changes with the input, layer by layer.

I = variance over the batch at a fixed place / mean square. 0: the input does not get through.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from traindoctor.exams.base import NotApplicable, exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.patient import Patient
from traindoctor.graph.ends import find_ends
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import LAYERS
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

MOST_LAYERS = 200


@exam_of_tape(
    name="input_dependence", title="How much of each activation changes with the input", cost=3
)
def input_dependence(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`layers` from first to last with I and RMS; `last` is I of what enters the loss."""
    structure = Structure(tape)
    found = find_ends(tape, structure)
    ends = [e for e in found if e.layout is not None and not e.contrastive]
    if not ends or ends[0].layout is None:
        raise nothing_beside_tokens(tape, found)
    axis, rows, places = ends[0].layout
    if rows < 2:
        raise NotApplicable("a batch of one example has no variance over examples")
    made, logits = ends[0].tokens.op.outputs[0], ends[0].loss.logits
    assert made is not None
    chosen: list[tuple[Op, Ref]] = []
    for op in tape.ops:
        out = op.outputs[0] if op.outputs else None
        kept = op.kind in LAYERS and not op.in_place  # what is written over has no value of its own
        if kept and out is not None and op.segment == ends[0].loss.op.segment:
            shape = structure.shape(out)
            if rows in shape[:2] and len(shape) >= 2 and structure.depends(out, made):
                chosen.append((op, out))
    chosen = chosen[-MOST_LAYERS:]
    replayed = replay(tape, want=[*(ref for _, ref in chosen), logits])
    layers = [
        {
            "dependence": dependence_of(replayed[ref], batch_dim(structure.shape(ref), rows, axis)),
            "rms": float(replayed[ref].detach().float().square().mean().sqrt()),
            "module": op.module,
            "op": op.name,
        }
        for op, ref in chosen
    ]
    scores = ends[0].scores(replayed[logits])
    if places:
        scores = ends[0].grid(scores)
    return {"layers": layers, "last": dependence_of(scores, 0), "step": tape.step}


def batch_dim(shape: tuple[int, ...], rows: int, axis: int) -> int:
    preferred = 0 if axis == 1 else 1
    return preferred if shape[preferred] == rows else 1 - preferred


def dependence_of(value: Tensor, batch: int) -> float:
    x = value.detach().double().movedim(batch, 0)
    square = x.square().mean()
    return float(x.var(dim=0, unbiased=False).mean() / square) if square > 0 else 0.0
