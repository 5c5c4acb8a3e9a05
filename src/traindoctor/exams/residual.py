"""Exam: is there a way around each attention and each MLP, and does anything go through it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traindoctor.exams.base import NotApplicable, exam
from traindoctor.replay.structure import Structure

if TYPE_CHECKING:
    from traindoctor.replay.execute import Replay
    from traindoctor.replay.ops import Op, Ref
    from traindoctor.replay.patient import Patient

ACTIVATIONS = frozenset(
    "relu relu_ gelu silu silu_ leaky_relu elu mish tanh relu6 selu hardswish glu celu".split()
)


@exam(name="residual", title="Skip paths around attention and MLP", cost=2)
def residual(patient: Patient) -> Mapping[str, Any]:
    """Counts attentions and activations with a sum around them; sizes of the two summands, the latest step's."""
    tape = patient.tape
    assert tape is not None
    structure = Structure(tape)
    segment = [a for a in structure.attentions if a.op.segment == 0]
    if not segment:
        raise NotApplicable("the step has no attention: no softmax enters a product with data")
    attention_sums = [structure.bypass(a.output) for a in segment]
    acts = [
        op
        for op in tape.ops
        if op.name in ACTIVATIONS and op.segment == 0 and op.outputs[0] is not None
    ]
    act_sums = [structure.bypass(op.outputs[0]) for op in acts if op.outputs[0] is not None]
    sums = {id(s[0]): s for s in (*attention_sums, *act_sums) if s is not None}
    refs = [ref for s in sums.values() for ref in s[1:]]
    replay = tape.replay(want=refs) if refs else None
    return {
        "attentions": len(segment),
        "attentions_bypassed": sum(s is not None for s in attention_sums),
        "activations": len(acts),
        "activations_bypassed": sum(s is not None for s in act_sums),
        "additions": len([a for a in structure.additions if a[0].segment == 0]),
        "summands": [sizes(replay, s) for s in sums.values()] if replay else [],
        "without": [a.op.module for a, s in zip(segment, attention_sums) if s is None][:6],
        "line": segment[0].op.line,
    }


def sizes(replay: Replay, found: tuple[Op, Ref, Ref]) -> dict[str, Any]:
    op, through, around = found

    def size(ref: Ref) -> float:
        return float(replay[ref].detach().float().square().mean().sqrt())

    return {"through": size(through), "around": size(around), "module": op.module, "line": op.line}
