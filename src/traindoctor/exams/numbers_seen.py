"""Exam: is a prediction given the very number that it is to predict? For series, frames, states and actions.

Each target is looked for among the numbers of the batch, by its value. The number is changed where it stands, the step is
run again, and the prediction that is compared with it is looked at: a place that may not move and does not gives exactly 0.

Legend: B rows of the batch, T places of a row, N predictions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.input_sites import input_sites
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import depends_on
from traindoctor.graph.sites import LossSite
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import Replay, replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.ops import DATA, PARAMETER, Ref
from traindoctor.tape.tape import StepTape

# Fewer numbers that are equal may be so by chance.
FEWEST = 16
# Targets of a row that stand in the batch: all but the last few of a series that is shifted against itself.
SHARE = 0.5
# Places of a row whose number is changed.
TRIED = 3
# Losses that are looked at; values of the batch that are searched, and their axes: batch, place, channels and one more.
SITES, CANDIDATES, MOST_AXES = 2, 16, 4
# A loss that is only the comparison is next to nothing where every prediction is its target.
NOTHING = 1e-3


@exam_of_tape(
    name="numbers_seen",
    title="Does a prediction see the number it has to predict",
    cost=9,
)
def numbers_seen(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`pairs`: per loss on numbers and tensor of the batch that holds its targets, over the spread of predictions: how far a
    target's own prediction moves with it (`own`), those whose targets stand before it (`before`) or behind it (`after`), and
    `other_rows`. `ahead`: the targets go on where the input ends; `beside`: other inputs of as many places."""
    sites = [s for s in loss_sites(tape) if s.class_dim is None and s.in_root and s.from_data]
    structure = Structure(tape)
    numbers = [(s, holding(structure, s)) for s in sites[:SITES] if s.targets.is_floating_point()]
    found = [(site, held) for site, held in numbers if held is not None]
    if not found:
        raise NotApplicable("no target value appears among the model's inputs")
    axes = [
        (site, held, axis)
        for site, held in found
        for axis in range(1, held.values.ndim)
        if held.values.shape[axis] > TRIED
    ]
    if not axes:
        raise NotApplicable("the numbers of an example stand in no row")
    require_faithful(tape)
    return {"pairs": [examined(structure, *one) for one in axes]}


@dataclass(frozen=True)
class Held:
    """A value (B, ...) of the batch with the targets of a loss in it; `at`: where in its row each of them stands, or -1."""

    ref: Ref
    values: Tensor
    at: Tensor
    """(B, N / B)"""

    def places(self, axis: int) -> Tensor:
        """Of each target, along one axis; -1 where it does not stand in its row."""
        length, behind = self.values.shape[axis], math.prod(self.values.shape[axis + 1 :])
        return torch.where(self.at < 0, -1, self.at.div(behind, rounding_mode="floor") % length)


def holding(structure: Structure, site: LossSite) -> Held | None:
    """The first value of the batch, before any parameter meets it, in whose rows most targets stand."""
    tape = structure.tape
    made = (ref for op in tape.ops for ref in op.outputs if ref is not None)
    of_batch = [
        ref
        for ref in dict.fromkeys((*tape.data, *made))
        if 2 <= len(structure.shape(ref)) <= MOST_AXES
        and site.targets.numel() % max(1, structure.shape(ref)[0]) == 0
        and depends_on(tape, ref) == DATA
        and structure.depends(site.logits, ref)
    ][:CANDIDATES]
    if not of_batch:
        return None
    values = replay(tape, want=of_batch)
    found = [
        Held(ref, values[ref].detach(), stands_at(site.targets, values[ref].detach()))
        for ref in of_batch
        if values[ref].is_floating_point() and values[ref].numel()
    ]
    best = max(found, key=lambda held: int((held.at >= 0).sum()), default=None)
    if best is None or (best.at >= 0).sum() < max(FEWEST, SHARE * best.at.numel()):
        return None
    return best


def stands_at(targets: Tensor, values: Tensor) -> Tensor:
    """(B, N / B): where in its row each target stands; -1 where it does not, or more than once."""
    rows = values.flatten(1).double().cpu()
    wanted = targets.detach().double().cpu().reshape(len(rows), -1)
    ranked, order = rows.sort(dim=1, stable=True)
    first = torch.searchsorted(ranked, wanted)
    once = torch.searchsorted(ranked, wanted, right=True) - first == 1
    return torch.where(once, order.gather(1, first.clamp(max=rows.shape[1] - 1)), -1)


def examined(structure: Structure, site: LossSite, held: Held, axis: int) -> dict[str, Any]:
    """Along one axis of the value that holds the targets."""
    tape = structure.tape
    base = replay(tape, want=(site.logits,))
    said = base[site.logits].detach().float().reshape(len(held.at), -1)
    spread = max(float(said.std()), 1e-12)
    row = int((held.at >= 0).sum(1).argmax())
    own_places = held.places(axis)[row]
    known = own_places[own_places >= 0].unique()

    def moved(place: int) -> Tensor:
        """(B, N / B), over the spread, when the row's numbers at that place are others."""
        other = changed(tape, held, (row, axis, place), (site.logits,))[site.logits]
        return (other.detach().float().reshape(said.shape) - said).abs().cpu() / spread

    values: dict[str, Any] = {
        "line": site.line,
        "axis": axis,
        "share": float((held.at >= 0).double().mean()),
        "finite": bool(torch.isfinite(said).all()),
    }
    if not values["finite"]:
        return values
    tried = known[torch.linspace(0, len(known) - 1, TRIED + 2).long()[1:-1]].unique().tolist()
    regions: dict[str, float] = dict.fromkeys(("own", "before", "after", "other_rows"), 0.0)
    for place in tried:
        far = moved(place)
        others = torch.cat([far[:row], far[row + 1 :]])
        here = {
            "own": far[row][own_places == place],
            "before": far[row][(own_places >= 0) & (own_places < place)],
            "after": far[row][own_places > place],
            "other_rows": others.flatten(),
        }
        regions = {k: max([regions[k], *here[k].tolist()]) for k in regions}
        if regions["own"] > 0 and "where" not in values:
            values |= first_to_see(structure, site, held, (row, axis, place))
    first, last = int(known[0]), int(known[-1])
    unknown_end = bool((own_places < 0).any()) or float(moved(last).max()) == 0
    values |= regions | {
        "ahead": unknown_end and first > 0 and float(moved(first - 1).max()) > 0,
        "beside": beside(structure, site, held),
        "as_it_is": enters_as_it_is(structure, site, held, row),
        "alone": is_the_loss(tape, site, base.roots),
    }
    return values


def changed(tape: StepTape, held: Held, where: tuple[int, int, int], want: Sequence[Ref]) -> Replay:
    """The step with other numbers at one place of a row: (row, axis, place)."""
    row, axis, place = where
    values = held.values.clone()
    values[row].select(axis - 1, place).add_(values.float().std().to(values.dtype))
    if held.ref in tape.data_set:
        return replay(tape, batch={held.ref: values}, want=want)
    return replay(tape, substitute={held.ref: values}, want=want)


def first_to_see(
    structure: Structure, site: LossSite, held: Held, where: tuple[int, int, int]
) -> dict[str, Any]:
    """The first op whose value moves with a number at the place of the prediction that is to be made of it."""
    tape, (row, axis, place) = structure.tape, where
    size = structure.shape(site.logits)
    known = (held.places(axis)[row] == place).nonzero().flatten()
    if len(size) < 2 or size[0] != len(held.at) or not len(known):
        return {}
    own = int(known[0]) // math.prod(size[2:])
    ops = [
        (op, ref)
        for op in tape.ops
        for ref in op.outputs[:1]
        if ref is not None and op.number < site.op.number and not op.synthetic
        if structure.shape(ref)[:1] == size[:1] and size[1] in structure.shape(ref)[1:]
        if structure.depends(ref, held.ref) and depends_on(tape, ref) & PARAMETER
    ]
    refs = [ref for _, ref in ops]
    before, after = replay(tape, want=refs), changed(tape, held, where, refs)
    for op, ref in ops:
        far = (after[ref].detach().float() - before[ref].detach().float())[row].abs()
        axes = [dim for dim, length in enumerate(far.shape) if length == size[1]]
        if all(float(far.select(dim, own).max()) > 0 for dim in axes):
            return {"where": op.module, "line": op.line}
    return {}


def beside(structure: Structure, site: LossSite, held: Held) -> int:
    """Other numbers of the batch of as many rows and places that the predictions depend on; masks and positions are none."""
    tape, size = structure.tape, tuple(held.values.shape[:2])
    looked_up = (s for s in input_sites(tape) if s.index is not None)
    positions = {site.ref for site in looked_up if site.kind != "data"}
    others = [
        ref
        for ref in dict.fromkeys((*tape.data, *met_by_the_model(structure, site)))
        if ref not in positions
        and structure.shape(ref)[:2] == size
        and structure.depends(site.logits, ref)
        and ref != held.ref
        and not structure.depends(ref, held.ref)
    ]
    values = replay(tape, want=others).values if others else {}
    return sum(
        v.dtype is not torch.bool and v.numel() > 0 and len(v.unique()) > 2 for v in values.values()
    )


def met_by_the_model(structure: Structure, site: LossSite) -> list[Ref]:
    """Values of the batch alone that a parameter, or what was made of one, is put together with."""
    return [
        ref
        for op in structure.tape.ops
        for ref in op.inputs
        if depends_on(structure.tape, ref) == DATA
        and any(meets(structure, site, other) for other in op.inputs)
    ]


def enters_as_it_is(structure: Structure, site: LossSite, held: Held, row: int) -> bool:
    """The numbers meet a parameter as they are: neither noise nor a mask is laid over them."""
    tape = structure.tape
    met = [ref for ref in met_by_the_model(structure, site) if structure.depends(ref, held.ref)]
    wanted = held.values[row].double().flatten()[held.at[row][held.at[row] >= 0]].cpu()
    if not met:
        return False
    values = replay(tape, want=list(dict.fromkeys(met)))
    return any(bool(torch.isin(wanted, values[ref].double().cpu()).all()) for ref in met)


def meets(structure: Structure, site: LossSite, ref: Ref) -> bool:
    """Something of the model, before its predictions are made."""
    of_the_model = bool(depends_on(structure.tape, ref) & PARAMETER)
    return of_the_model and not structure.depends(ref, site.logits)


def is_the_loss(tape: StepTape, site: LossSite, roots: Any) -> bool:
    """Nothing else is asked for: with predictions that are their targets the loss is next to nothing."""
    size = tape.geometry[site.logits.index].size
    right = site.targets.detach().reshape(size)
    ideal = replay(tape, substitute={site.logits: right}).roots

    def total(values: Any) -> float:
        return sum(abs(float(torch.as_tensor(one).detach().sum())) for one in values)

    return total(ideal) <= NOTHING * total(roots)
