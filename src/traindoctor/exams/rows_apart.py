"""Exam: along which axis do the attentions of a model over numbers mix? Patches, frames, series, features.

The numbers of one example are exchanged for another's: what moves in an attention's values shows which of its axes is the
batch. Then its values are changed at one place of each axis in turn: along an axis that it does not mix, that share of its
result moves, exactly, and along one that it mixes more does.

Legend: B examples, V the values that an attention adds up.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import argument
from traindoctor.graph.structure import Attention, Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape

# Fewer examples cannot be told from two places, or from two halves of a width.
FEWEST = 3
# Of the share of the result that belongs to one place: no more moves, exactly, or at least another place's as well.
BEYOND = 1.25
# Attentions that are looked at.
MOST = 8


@exam_of_tape(name="rows_apart", title="Along which axis does attention mix", cost=6)
def rows_apart(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`attentions`: of each its module and line, its batch axis if that is known, and the axes along which it mixes."""
    structure = Structure(tape)
    attentions = [a for a in structure.attentions if a.op.segment == 0][:MOST]
    if not attentions:
        raise NotApplicable("the model has no attention")
    if any(site.kind == "data" for site in input_sites(tape)):
        raise NotApplicable("the model takes tokens")
    rows, given = batch_of(tape, structure, patient.rows_joined)
    require_faithful(tape)
    found = [(a, v) for a in attentions if (v := values_of(structure, a)) is not None]
    refs = [ref for _, ref in found]
    before = replay(tape, want=refs)
    other = {ref: exchanged(tape.constants[ref]) for ref in given}
    after = replay(tape, batch=other, want=refs)
    seen = []
    for attention, ref in found:
        seen.append(
            {
                "module": attention.op.module,
                "line": attention.op.line,
                "shape": list(before[ref].shape),
                # None where other examples have come in before: behind an attention over the batch, batch statistics.
                "batch": axis_of_the_batch(after[ref] - before[ref], rows),
                "mixes": mixing_axes(tape, attention, ref, before[ref]),
            }
        )
    return {"rows": rows, "attentions": seen, "all": len(attentions)}


def batch_of(tape: StepTape, structure: Structure, joined: Iterable[int]) -> tuple[int, list[Ref]]:
    """How many examples there are, and the numbers of theirs that the predictions depend on.

    The first axis is the batch where predictions and numbers share its length and no other; where each place of an example
    has its own prediction, all in one row, it is that of as many as a loader joins.
    """
    for site in loss_sites(tape):
        said = structure.shape(site.logits)
        if not site.in_root or not said or said[0] < FEWEST:
            continue
        numbers = [
            ref
            for ref in tape.data
            if structure.depends(site.logits, ref) and tape.constants[ref].is_floating_point()
        ]
        for rows, others in ((said[0], {*said}), *((one, {one}) for one in joined)):
            given = [ref for ref in numbers if structure.shape(ref)[:1] == (rows,)]
            lengths = {length for ref in given for length in structure.shape(ref)[1:]}
            if given and rows >= FEWEST and not lengths & others - {1}:
                return rows, given
    raise NotApplicable("nothing tells the examples of a batch from the places of one")


def exchanged(values: Tensor) -> Tensor:
    """The first example has the numbers of the second."""
    other = values.detach().clone()
    other[0] = other[1]
    return other


def values_of(structure: Structure, attention: Attention) -> Ref | None:
    """What it adds up."""
    if attention.product is not None:
        of = next((r for r in attention.product.inputs if r != attention.weights), None)
    else:
        given = argument(attention.op, 2, "value")
        of = given if isinstance(given, Ref) else None
    return of


def axis_of_the_batch(moved: Tensor, rows: int) -> int | None:
    """The axis of that length of which only the first place has moved."""
    for axis, length in enumerate(moved.shape[:-1]):
        if length == rows and bool(moved.select(axis, 0).any()):
            if not bool(moved.narrow(axis, 1, length - 1).any()):
                return axis
    return None


def mixing_axes(tape: StepTape, attention: Attention, ref: Ref, values: Tensor) -> list[int]:
    """The axes, but the last, along which a value reaches more of the result than its own share."""
    output = attention.output
    base = replay(tape, want=(output,))[output].detach()
    found = []
    for axis, length in enumerate(values.shape[:-1]):
        if length < 2:
            continue
        other = values.detach().clone()
        other.select(axis, 0).add_(float(values.float().std()) or 1.0)
        moved = replay(tape, substitute={ref: other}, want=(output,))[output].detach() != base
        if float(moved.double().mean()) * length > BEYOND:
            found.append(axis)
    return found
