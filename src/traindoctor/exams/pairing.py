"""Exam: is each prediction compared with the target of its own example? Whatever the loss is and however it was written.

The input of one example is exchanged for another's: the predictions that move are its predictions. Its target is
exchanged, with all predictions held: where the loss's derivative moves, its target is asked for. Both must be the same
places. Predictions that move for several examples (a comparison of all with all, statistics of the batch) tell nothing.

Legend: B examples, N rows of predictions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import argument, depends_on
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay, replay_given
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.ops import DATA, Ref
from traindoctor.tape.tape import StepTape

# Of fewer examples chance would say too much.
FEWEST = 4
# Examples that are exchanged, those that have to be told apart, and losses that are looked at.
ASKED, ENOUGH, SITES = 4, 3, 3
# Numbers of rows that are tried, and other examples: two may have the same label.
LENGTHS, PARTNERS = 3, 6
# Its own predictions are all of the places where an example's target counts, or (of pairs that are compared) its target counts
# at all of its own; in another order they meet by chance.
OWN = 0.34
# Moved by more than rounding in float64.
MOVED = 1e-9

Given = dict[Ref, Tensor]


@dataclass(frozen=True)
class Meeting:
    """Where predictions meet targets."""

    logits: Ref
    line: str | None
    rows: Callable[[Tensor], Tensor]
    """(N, C) of the predictions, or of what has their shape."""


@exam_of_tape(
    name="pairing", title="Is each prediction compared with its own target", cost=12, first=True
)
def pairing(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`losses`: of each the number of its examples and how many of them could be `told` apart; `strange`: of those, how many have
    their targets asked for beside the predictions of others. `offsets`: how many different distances there are to their own."""
    require_faithful(tape)
    tape = without_dropout(tape)
    structure = Structure(tape)
    losses = []
    for site in meetings(tape)[:SITES]:
        found: dict[str, Any] = {}
        for inputs, targets in sides(structure, site):
            if told(found) < ENOUGH:
                found = max(found, asked(tape, site, inputs, targets), key=told)
        if found:
            losses.append({"line": site.line, **found})
    if not losses:
        raise NotApplicable("no inputs with a target for each example were found")
    return {"losses": losses, "step": tape.step}


def told(found: Mapping[str, Any]) -> int:
    return int(found.get("told", -1))


def meetings(tape: StepTape) -> list[Meeting]:
    """In the first pass of the step. A loss over alignments has no target for each place, but one for each example."""
    places = [
        Meeting(site.logits, site.line, site.rows)
        for site in loss_sites(tape)
        if site.in_root and site.op.segment == 0
    ]
    for op in tape.ops:
        said = argument(op, 0, "log_probs") if op.kind == "ctc_loss" and op.segment == 0 else None
        if isinstance(said, Ref):
            places.append(Meeting(said, op.line, lambda t: t.reshape(-1, t.shape[-1])))
    return places


def sides(structure: Structure, site: Meeting) -> list[tuple[Given, Given]]:
    """What only the predictions, and what only the loss behind them depends on, with one row for each example.

    Each number of rows that both have may be that of the examples: the rows of a whole of which the step cuts a batch, those
    of the batch, those of all its places. The earlier, the more of the way to the loss is looked at.
    """
    tape = structure.tape
    free = list(of_the_data(tape))
    seen = {ref for ref in free if structure.depends(site.logits, ref)}
    joined = beside_predictions(structure, site)
    judged = {ref for ref in free if any(structure.depends(one, ref) for one in joined)}
    by_rows: dict[int, tuple[set[Ref], set[Ref]]] = {}
    for ref in free:
        shape = structure.shape(ref)
        if (ref in seen) != (ref in judged) and shape and shape[0] >= FEWEST:
            by_rows.setdefault(shape[0], (set(), set()))[ref in judged].add(ref)
    both = [
        (earliest(tape, free, a), earliest(tape, free, b)) for a, b in by_rows.values() if a and b
    ]
    both.sort(key=lambda pair: max(free.index(pair[0][0]), free.index(pair[1][0])))
    made = replay(
        tape, dtype=torch.float64, want=[ref for pair in both for side in pair for ref in side]
    )
    return [
        ({r: made[r].detach() for r in a}, {r: made[r].detach() for r in b})
        for a, b in both[:LENGTHS]
    ]


def of_the_data(tape: StepTape) -> Iterator[Ref]:
    """The tensors of the batch and what is made of them without parameters."""
    yield from tape.data
    for op in tape.ops:
        if op.depends_on == DATA:
            yield from (ref for ref in op.outputs if ref is not None)


def beside_predictions(structure: Structure, site: Meeting) -> set[Ref]:
    """What no parameter made and meets, on the way to the loss, what the predictions have become."""
    return {
        ref
        for op in structure.tape.ops
        if any(structure.depends(other, site.logits) for other in op.inputs)
        for ref in op.inputs
        if depends_on(structure.tape, ref) == DATA
    }


def earliest(tape: StepTape, free: list[Ref], side: set[Ref]) -> list[Ref]:
    """Those that nothing of the same side was made into."""
    parents = {ref: tape.producer[ref].inputs for ref in side if ref in tape.producer}
    return [r for r in free if r in side and not side.intersection(parents.get(r, ())) - {r}]


def asked(tape: StepTape, site: Meeting, inputs: Given, targets: Given) -> dict[str, Any]:
    """Of some examples: where their predictions are, and where their targets are asked for."""
    said = run(tape, {}, site.logits)
    before = derivative(tape, site, said, {})
    rows = len(next(iter(inputs.values())))
    counted = site.rows(before).ne(0).any(1).cpu()
    own, offsets = [], set()
    taken = torch.zeros(len(site.rows(said)), 2, dtype=torch.bool)
    for row in sorted({round(k * (rows - 1) / (ASKED - 1)) for k in range(ASKED)}):
        places = torch.stack(
            (
                first_move(site, said, (run(tape, x, site.logits) for x in exchanged(inputs, row))),
                first_move(
                    site, before, (derivative(tape, site, said, y) for y in exchanged(targets, row))
                ),
            ),
            dim=1,
        )
        if bool((places & taken).any()):
            # Examples meet: statistics of a batch, a comparison of all with all.
            return {"examples": rows, "told": 0}
        taken |= places
        if bool(places.any(0).all()):
            predictions, asks = places.unbind(1)
            met = (predictions & asks).sum()
            own.append(float(met / min(asks.sum(), (predictions & counted).sum().clamp(min=1))))
            offsets.add(int(asks.int().argmax()) - int(predictions.int().argmax()))
    strange = sum(share <= OWN for share in own)
    return {"examples": rows, "told": len(own), "strange": strange, "offsets": len(offsets)}


def exchanged(side: Given, row: int) -> Iterator[Given]:
    """One example has what another has, for some others that differ in it."""
    rows = len(next(iter(side.values())))
    partners = (
        other
        for other in ((row + step) % rows for step in range(1, rows))
        if any(not torch.equal(value[row], value[other]) for value in side.values())
    )
    for other in islice(partners, PARTNERS):
        changed = {ref: value.clone() for ref, value in side.items()}
        for value in changed.values():
            value[row] = value[other]
        yield changed


def run(tape: StepTape, given: Given, want: Ref) -> Tensor:
    return replay_given(tape, given, want)[want].detach()


def derivative(tape: StepTape, site: Meeting, said: Tensor, given: Given) -> Tensor:
    """Of the loss, in the predictions, which are held."""
    held = said.clone().requires_grad_()
    loss = replay_given(tape, {**given, site.logits: held}, gradients=True).loss
    (gradient,) = torch.autograd.grad(loss, held, allow_unused=True)
    if gradient is None:
        raise ReplayError("the derivative of the loss in its predictions cannot be computed")
    return gradient.detach()


def first_move(site: Meeting, before: Tensor, others: Iterator[Tensor]) -> Tensor:
    """(N,): the rows that differ by more than rounding, with the first other example that makes a difference."""
    moved = torch.zeros(len(site.rows(before)), dtype=torch.bool)
    for now in others:
        difference = site.rows((now - before).abs()).amax(1)
        moved = (difference > MOVED * float(before.abs().max())).cpu()
        if bool(moved.any()):
            break
    return moved
