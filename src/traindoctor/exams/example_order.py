"""Exam: do predictions stay with their examples when the batch is put in another order?

All that the step has of each example (what came with the batch, what was drawn at random for it) moves by one place. Each
prediction must move with it, to the bit but for rounding in float64: statistics of a batch and comparisons of all with all
do, places of one example that are taken for those of another do not.

Legend: B examples.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay, replay_given
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.operators import PICKING
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

FEWEST = 3
# Moved by more than rounding in float64, relative to the largest.
MOVED = 1e-9
# Values that are kept at a time in the search for the place where the order begins to matter.
AT_A_TIME = 32

Given = dict[Ref, Tensor]


@exam_of_tape(name="example_order", title="Do predictions stay with their examples", cost=4)
def example_order(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`strayed`: share of the predictions that have not moved with their example; `examples`: how many there are. `line`, `module`:
    the first place of the model where values of the examples do not."""
    structure = Structure(tape)
    if not structure.attentions and not structure.weighted_sums:
        raise NotApplicable("the model has no attention")
    require_faithful(tape)
    tape = without_dropout(tape)
    structure = Structure(tape)
    site = next((s for s in loss_sites(tape) if s.in_root and s.op.segment == 0), None)
    if site is None:
        raise NotApplicable("no loss compares predictions with targets")
    found = [
        (share, count, moved)
        for count in examples(structure, site.logits)
        if (moved := what_moves(structure, site.logits, count)) is not None
        and (share := strayed(tape, site.logits, moved, count)) is not None
    ]
    if not found:
        raise NotApplicable("nothing tells the examples of a batch from the places of one")
    kept = [(count, moved) for share, count, moved in found if not share]
    if all(meet(tape, site.logits, moved, count) for count, moved in kept):
        # What may stand in any order and meets all the same are the places of a set, and no examples.
        found = [one for one in found if one[0]] or found
    share, count, moved = min(found, key=lambda one: one[0])
    first = next(astray(structure, site.logits, moved, count), None) if share else None
    return {
        "examples": count,
        "strayed": share,
        "line": first.nearest_line if first else None,
        "module": first.module if first else None,
        "step": tape.step,
    }


def examples(structure: Structure, logits: Ref) -> list[int]:
    """What may be the number of examples: a length of the batch that the predictions have, too."""
    found: dict[int, None] = {}
    for ref in structure.tape.data:
        if structure.depends(logits, ref):
            for length in structure.shape(ref)[:2]:
                if length >= FEWEST and places(structure.shape(logits), length):
                    found.setdefault(length)
    return list(found)


def places(shape: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """The shapes in which an axis is that of the examples: as it is, or with the first axis cut in two."""
    if count in shape:
        return [tuple(shape)] if list(shape).count(count) == 1 else []
    if shape and shape[0] and shape[0] % count == 0:
        others = shape[0] // count
        return [(count, others, *shape[1:]), (others, count, *shape[1:])]
    return []


def what_moves(structure: Structure, logits: Ref, count: int) -> list[Ref] | None:
    """All that belongs to one example each. None where something may belong to some and has no axis of them."""
    tape = structure.tape
    moved = []
    for ref in tape.constants:
        if not structure.depends(logits, ref):
            continue
        axes = structure.shape(ref).count(count)
        if axes > 1 or (axes == 0 and ref in tape.data_set and not is_shared(tape, ref, count)):
            return None
        if axes == 1 and ref in tape.data_set:
            if names_places(structure, logits, ref):
                return None
            moved.append(ref)
        elif axes == 1 and tape.constants[ref].is_floating_point():
            return None
    for op in tape.ops:
        for made in op.outputs if op.rng else ():
            if made is None or not structure.depends(logits, made):
                continue
            shape = structure.shape(made)
            if op.writes or shape.count(count) > 1:
                return None
            if count in shape:
                moved.append(made)
            elif shape and shape[0] % count == 0:
                return None
    return moved if tape.data_set.intersection(moved) else None


def is_shared(tape: StepTape, ref: Ref, count: int) -> bool:
    """Numbers of which no example can have some for itself."""
    value = tape.constants[ref]
    return value.numel() % count != 0 and (value.is_floating_point() or value.dtype is torch.bool)


def names_places(structure: Structure, logits: Ref, ref: Ref) -> bool:
    """Integers of the batch that say which values are taken of what the model has computed: perhaps another example's."""
    tape = structure.tape
    if tape.constants[ref].is_floating_point():
        return False
    return any(
        op.kind in PICKING
        and structure.of_data(op.inputs[0])
        and any(made is not None and structure.depends(logits, made) for made in op.outputs)
        and any(structure.depends(index, ref) for index in op.inputs[1:])
        for op in tape.ops
    )


def strayed(tape: StepTape, logits: Ref, moved: Sequence[Ref], count: int) -> float | None:
    """None where the step cannot be run so: features in another order may be no members of their tables."""
    try:
        before, after = both_orders(tape, [logits], moved, count)
    except ReplayError:
        return None
    return astray_share(before[logits], after[logits], count)


def both_orders(
    tape: StepTape, want: Sequence[Ref], moved: Sequence[Ref], count: int
) -> tuple[Given, Given]:
    return both(tape, want, moved, lambda v: v.roll(1, v.shape.index(count)))


def meet(tape: StepTape, logits: Ref, moved: Sequence[Ref], count: int) -> bool:
    """Others move as well where one has the numbers of its neighbour."""

    def copied(value: Tensor) -> Tensor:
        axis = value.shape.index(count)
        return value.index_select(axis, torch.arange(count, device=value.device).clamp(min=1))

    before, after = both(tape, [logits], moved, copied)
    change = (after[logits] - before[logits]).abs()
    least = MOVED * float(before[logits].abs().max())
    return all(
        bool((change.reshape(shape).narrow(shape.index(count), 1, count - 1) > least).any())
        for shape in places(change.shape, count)
    )


def both(
    tape: StepTape, want: Sequence[Ref], moved: Sequence[Ref], change: Callable[[Tensor], Tensor]
) -> tuple[Given, Given]:
    """The values as they were, and where what belongs to the examples is changed."""
    before = replay(tape, dtype=torch.float64, want=[*want, *moved])
    now = {ref: change(before[ref].detach()) for ref in moved}
    after = replay_given(tape, now, *want)
    return {r: before[r].detach() for r in want}, {r: after[r].detach() for r in want}


def astray_share(before: Tensor, after: Tensor, count: int) -> float:
    """Of the values, those that are not where their example is now: in the best of the ways to read the shape."""
    least = MOVED * float(before.abs().max()) if before.numel() else 0.0
    shares = [0.0] if bool(((after - before).abs() <= least).all()) else []
    for shape in places(before.shape, count):
        meant = before.reshape(shape).roll(1, shape.index(count)).reshape(before.shape)
        shares.append(float(((after - meant).abs() > least).double().mean()))
    return min(shares, default=0.0)


def astray(structure: Structure, logits: Ref, moved: Sequence[Ref], count: int) -> Iterator[Op]:
    """The ops on the way to the predictions whose values do not move with the examples, in order."""
    tape = structure.tape
    on_the_way = [
        (op, ref)
        for op in tape.ops
        for ref in op.outputs
        if ref is not None
        and not op.writes
        and structure.depends(logits, ref)
        and places(structure.shape(ref), count)
        and any(structure.depends(ref, one) for one in moved)
    ]
    for begin in range(0, len(on_the_way), AT_A_TIME):
        some = on_the_way[begin : begin + AT_A_TIME]
        before, after = both_orders(tape, [ref for _, ref in some], moved, count)
        for op, ref in some:
            if before[ref].is_floating_point() and astray_share(before[ref], after[ref], count):
                yield op
