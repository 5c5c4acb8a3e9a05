"""Exam: is there a way around each attention and each MLP, and does anything go through it?"""

from collections.abc import Mapping, Sequence
from typing import Any

from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.structure import Attention, Structure
from traindoctor.tape.execute import Replay, replay
from traindoctor.tape.operators import ACTIVATIONS
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# Two gates that add up to 1, by float16's rounding.
WHOLE = 2e-3


@exam_of_tape(name="residual", title="Skip paths around attention and MLP", cost=2)
def residual(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """Counts attentions and activations with a sum around them; sizes of the two summands, the latest step's."""
    structure = Structure(tape)
    roots = [root.ref for root in tape.roots if root.ref is not None]

    def counts(ref: Ref | None, op: Op) -> bool:
        """Of the first micro-batch, on the way from the batch to the loss: a pass that was given up leads nowhere."""
        if ref is None or op.segment != 0 or not structure.of_data(ref):
            return False
        return any(structure.depends(root, ref) for root in roots)

    segment = [a for a in structure.attentions if counts(a.output, a.op)]
    if not segment:
        raise NotApplicable("there is no attention between the batch and the loss")
    attention_sums = [structure.bypass(a.output) for a in segment]
    acts = [op for op in tape.ops if op.kind in ACTIVATIONS and counts(op.outputs[0], op)]
    act_sums = [structure.bypass(op.outputs[0]) for op in acts if op.outputs[0] is not None]
    sums = {id(s[0]): s for s in (*attention_sums, *act_sums) if s is not None}
    refs = [ref for s in sums.values() for ref in s[1:]]
    gates = {id(op): pair for op, *ways in sums.values() if (pair := gates_of(tape, *ways))}
    refs += [ref for pair in gates.values() for ref in (*pair[0], *pair[1])]
    replayed = replay(tape, want=refs) if refs else None
    return {
        "attentions": len(segment),
        "depth": depth(structure, segment),
        "attentions_bypassed": sum(s is not None for s in attention_sums),
        "activations": len(acts),
        "activations_bypassed": sum(s is not None for s in act_sums),
        "additions": len([a for a in structure.additions if a[0].segment == 0]),
        "summands": [sizes(replayed, s, gates.get(id(s[0]))) for s in sums.values()]
        if replayed
        else [],
        "without": [a.op.module for a, s in zip(segment, attention_sums) if s is None][:6],
        "line": segment[0].op.line,
    }


def depth(structure: Structure, attentions: Sequence[Attention]) -> int:
    """Attentions one behind the other: heads side by side are one."""
    behind: list[int] = []
    for attention in attentions:
        above = [
            at
            for at, other in zip(behind, attentions)
            if any(structure.depends(ref, other.output) for ref in attention.inputs)
        ]
        behind.append(1 + max(above, default=0))
    return max(behind)


Factors = tuple[tuple[Ref, ...], tuple[Ref, ...]]


def sizes(replayed: Replay, found: tuple[Op, Ref, Ref], gates: Factors | None) -> dict[str, Any]:
    op, through, around = found

    def size(ref: Ref) -> float:
        return float(replayed[ref].detach().float().square().mean().sqrt())

    return {
        "through": size(through),
        "around": size(around),
        "carry": carried(replayed, gates) if gates else None,
        "module": op.module,
        "line": op.line,
    }


def gates_of(tape: StepTape, through: Ref, around: Ref) -> Factors | None:
    """The factors of both summands, where each is a product: t * f(x) + (1 - t) * x."""
    made = [tape.producer.get(ref) for ref in (through, around)]
    if any(op is None or op.kind != "mul" for op in made):
        return None
    one, other = (tuple(dict.fromkeys(op.inputs)) for op in made if op is not None)
    return (one, other) if len(one) == len(other) == 2 else None


def carried(replayed: Replay, factors: Factors) -> float | None:
    """The mean share that goes around, where the factors of both ways add up to 1 everywhere."""
    for other in factors[1]:
        for one in factors[0]:
            total = replayed[one].detach().float() + replayed[other].detach().float()
            if bool(((total - 1).abs() < WHOLE).all()):
                return float(replayed[other].detach().float().mean())
    return None
