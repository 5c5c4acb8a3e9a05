"""Exam: does the code that is added to a sequence tell its places apart? For sequences that are no rows of tokens.

Patches, frames and features get a code of their place before the first attention. Places whose codes are equal, bit for
bit, are exchanged: where nothing else tells them apart either, what the model says of them is exchanged too and is the
same to rounding; and so is the loss, where a model speaks for all its places at once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.moved_weights import as_of_now, nudged
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.origins import depends_on, walk_back
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape

# Fewer places are a pair of numbers, not a sequence.
PLACES = 4
BOTH = DATA | PARAMETER
# Without codes: the share of what other content does under which nothing moved (in float64: 1e-16 where places are a bag).
SAME = 1e-7


@dataclass(frozen=True)
class Added:
    """`content + code`, with content (B, T, D) of the batch and one row of code for each place, or for each example."""

    content: Ref
    code: Ref
    in_place: bool
    by_example: bool
    line: str | None

    def rows(self, code: Tensor, places: int) -> Tensor:
        """(T, D): what is added to the places of one example."""
        rows = code.detach().flatten(end_dim=-2)
        return rows[:1].expand(places, -1) if self.by_example else rows


@exam_of_tape(name="place_codes", title="Does every place have a code of its own", cost=4)
def place_codes(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """With the weights at `step`. `alike`: places that share their code with another one, of `places` (`codes` is 0 where none
    is added: the places are pieces of something larger, or their queries and keys are `turned` by fixed tables). `gap`: how far the
    outputs of the places (or the loss) move when those are exchanged among themselves, `replaced`: when they hold what
    other examples have there, `noise`: when every weight moves by one unit in its last place; all relative."""
    require_faithful(tape)
    # Dropout falls on places, so it tells them apart by itself: it is taken out.
    tape, step = as_of_now(patient, without_dropout(tape))
    structure = Structure(tape)
    added = codes_added(structure)
    if not added:
        return {"step": step, **without_codes(structure)}
    first = added[0].content
    # In float64: a loss in float32 has no digits for what a unit in the last place of the weights does to it.
    made = replay(tape, dtype=torch.float64, want=[first, *(one.code for one in added)])
    content = made[first].detach().clone()
    for one in added:
        if one.in_place and one.content == first:  # what stands there at the end has the code in it
            content -= made[one.code].detach()
    rows = torch.cat([one.rows(made[one.code], content.shape[1]) for one in added], dim=1)
    codes, which = torch.unique(rows, dim=0, return_inverse=True)
    alike = int(sum(n for n in torch.bincount(which).tolist() if n > 1))
    values = {
        "step": step,
        "places": len(rows),
        "codes": len(codes),
        "alike": alike,
        "by_example": added[0].by_example,
        "line": added[0].line,
    }
    return values | swapped(structure, first, content, which) if alike else values


def without_codes(structure: Structure) -> dict[str, Any]:
    """Nothing is added to the places: pieces that were cut out of a picture or a signal are exchanged as they are, and so
    are places of any kind whose queries and keys are turned by tables."""
    turns = list(tables(structure))
    for ref, line in pieces(structure, cut=not turns):
        turned = next(
            (op for op in turns if any(structure.depends(r, ref) for r in op.inputs)), None
        )
        content = replay(structure.tape, dtype=torch.float64, want=[ref])[ref].detach().clone()
        places = content.shape[1]
        found = swapped(structure, ref, content, torch.zeros(places, dtype=torch.long))
        if found["gap"] <= SAME * found["replaced"]:
            values = {"places": places, "codes": 0, "alike": places, "line": line, **found}
            return values if turned is None else {**values, "turned": True, "line": turned.line}
    raise NotPossible(
        "no position embedding is added before the attention, and no other position "
        "signal was found"
    )


def tables(structure: Structure) -> Iterator[Op]:
    """What multiplies queries and keys by fixed numbers that differ over two axes and are the same for all examples: rotary
    codes. A vector of them is a scale of features."""
    tape = structure.tape
    for op in tape.ops:
        if op.kind != "mul" or len(op.inputs) != 2 or op.outputs[0] is None:
            continue
        fixed, turned = sorted(op.inputs, key=lambda ref: math.prod(structure.shape(ref)))
        axes = sum(size > 1 for size in structure.shape(fixed))
        if axes < 2 or depends_on(tape, turned) & BOTH != BOTH:
            continue
        examples, *each = structure.shape(turned)
        own = depends_on(tape, fixed) & PARAMETER or any(
            structure.shape(given)[:1] == (examples,) and structure.depends(fixed, given)
            for given in tape.data
        )
        if (
            not own
            and math.prod(structure.shape(fixed)) <= math.prod(each)
            and any(
                structure.depends(ref, op.outputs[0])
                for attention in structure.attentions
                for ref in attention.inputs[:2]
            )
        ):
            yield op


def pieces(structure: Structure, *, cut: bool) -> list[tuple[Ref, str | None]]:
    """Of every number of places the first value (B, T, D), before the first attention; with `cut` those whose places are no
    axis of the batch's tensors. What other tokens were joined to is not the first: something may have told its places apart by then."""
    tape = structure.tape
    begin = min(attention.op.number for attention in structure.attentions)
    given = [
        (ref, structure.shape(ref)) for ref in tape.data if tape.constants[ref].is_floating_point()
    ]
    first: dict[int, Op] = {}
    for op in tape.ops:
        made = op.outputs[0] if op.outputs else None
        if op.number >= begin or made is None or len(structure.shape(made)) != 3:
            continue
        rows, places, _ = structure.shape(made)
        behind = [shape for ref, shape in given if structure.depends(made, ref)]
        kind = bool(behind) and not (cut and any(places in shape[1:] for shape in behind))
        if rows > 1 and places >= PLACES and kind and depends_on(tape, made) & PARAMETER:
            first.setdefault(places, op)
    return [(op.outputs[0], op.line) for op in first.values() if op.kind != "cat" and op.outputs[0]]


def swapped(structure: Structure, first: Ref, content: Tensor, which: Tensor) -> dict[str, float]:
    """What the model says when places of one kind (`which`) hold each other's content, beside other content and noise."""
    tape, said = structure.tape, last_said(structure, first)
    made = replay(tape, dtype=torch.float64, want=said)
    order = exchanged(which.to(content.device))
    moved = order != torch.arange(len(order), device=order.device)
    other = torch.where(moved[:, None], content.roll(1, 0), content)

    def away(
        changed: Mapping[Ref, Tensor] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        places: Tensor | None = None,
    ) -> float:
        again = replay(tape, dtype=torch.float64, want=said, substitute=changed, parameters=weights)
        if not said:
            got, base = losses(again.roots), losses(made.roots)
        else:
            got, base = again[said[0]].detach(), made[said[0]].detach()
        expected = base[:, places] if said and places is not None else base
        return float((got - expected).abs().sum() / (base.abs().sum() or 1.0))

    return {
        "gap": away({first: content[:, order]}, places=order),
        "replaced": away({first: other}),
        "noise": away(weights=nudged(tape)),
    }


def last_said(structure: Structure, content: Ref) -> list[Ref]:
    """The last value with one row for each place, behind all attention; none where places are gone by then."""
    rows = structure.shape(content)[:2]
    after = max(attention.op.number for attention in structure.attentions)
    found = [
        ref
        for op in structure.tape.ops
        if op.number > after
        for ref in op.outputs
        if ref is not None
        and len(structure.shape(ref)) == 3
        and structure.shape(ref)[:2] == rows
        and structure.depends(ref, content)
    ]
    return found[-1:]


def codes_added(structure: Structure) -> list[Added]:
    """All of one length that stand before the first attention, in order."""
    if not structure.attentions:
        raise NotApplicable("the step has no attention, so positions reach the output another way")
    begin = min(attention.op.number for attention in structure.attentions)
    found: list[Added] = []
    for op in structure.tape.ops:
        if op.number >= begin or op.kind != "add" or len(op.inputs) != 2:
            continue
        code, content = sorted(op.inputs, key=lambda ref: math.prod(structure.shape(ref)))
        shape, small = structure.shape(content), structure.shape(code)
        if len(shape) != 3 or shape[0] < 2 or shape[1] < PLACES or not structure.of_data(content):
            continue
        # One row for each place, the same for all examples; or of a table one for each example, the same for all places.
        by_place = small[-2:] == shape[-2:] and math.prod(small[:-2]) == 1
        by_example = small == (shape[0], 1, shape[2]) and of_a_table(structure.tape, code)
        if by_place or by_example:
            found.append(Added(content, code, content in op.outputs, by_example, op.line))
    length = structure.shape(found[0].content)[1] if found else 0
    return [one for one in found if structure.shape(one.content)[1] == length]


def of_a_table(tape: StepTape, ref: Ref) -> bool:
    """A part of a parameter or a buffer, as it is: no data, noise or time is in it."""
    *_, (first, _) = walk_back(tape, ref)
    kept = first in tape.constants and first not in tape.data_set
    return kept or tape.name_of(first) is not None


def exchanged(which: Tensor) -> Tensor:
    """The places in another order: those with the same code go round among themselves."""
    order = torch.arange(len(which), device=which.device)
    for code in which.unique():
        here = torch.nonzero(which == code).flatten()
        order[here] = here.roll(1)
    return order


def losses(roots: Any) -> Tensor:
    return torch.stack([torch.as_tensor(root).detach().double().sum() for root in roots])
