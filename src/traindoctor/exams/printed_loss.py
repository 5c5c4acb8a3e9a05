"""Exam: is what the script prints what it optimises?"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotPossible, exam
from traindoctor.experiment.patient import Patient
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.squares import BY_HAND
from traindoctor.graph.structure import Structure
from traindoctor.graph.terms import scalar, terms_of
from traindoctor.tape.execute import Replay, evaluate, replay
from traindoctor.tape.faithful import distance_from_step
from traindoctor.tape.operators import OF_THE_SPREAD
from traindoctor.tape.ops import DATA, PARAMETER, Op, Read, Ref
from traindoctor.tape.tape import StepTape

# Scalars of one step that are looked at; scripts that print more print norms.
MAX_READS = 12
# From here on two gradients are one.
SAME = 0.9999
# The same number, written down twice.
SAME_VALUE = 1e-6
# Share of the gradient's entries that half precision cannot hold with all their bits.
FAINT = 0.5
# Rows in float32 that are parallel span a second direction of about 1e-14 of the first, squared.
PARALLEL = 1e-9
# Scripts that print at all print within so many steps; only then is a loss that nobody reads looked at. Most print at
# the first one: where that could not be taped (a script without modules), nothing is learned by waiting for more.
PATIENCE, WITHOUT_THE_FIRST = 20, 12


@exam(name="printed_loss", title="Printed loss against the optimised one", cost=4)
def printed_loss(patient: Patient) -> Mapping[str, Any]:
    """`cosine`: of the given gradient with its projection on the gradients of the scalars that were read."""
    reasons = []
    latest = sorted(patient.tapes, reverse=True)
    # A loss that was read says more than one that is left aside; scripts read it after the step, or some steps later.
    waited = latest[0] >= PATIENCE or (
        0 not in patient.tapes and patient.current_step >= WITHOUT_THE_FIRST
    )
    for aside in (False, True) if waited else (False,):
        for step in latest:
            try:
                if aside and optimised_later(patient):
                    break
                return judge(patient.tapes[step], aside=aside)
            except (NotPossible, ReplayError) as reason:
                reasons.append(str(reason))
    raise NotPossible("; ".join(dict.fromkeys(reasons)))


def judge(tape: StepTape, *, aside: bool) -> dict[str, Any]:
    if tape.gaps:
        raise ReplayError(tape.gaps[0])
    if tape.world_size > 1:
        raise NotPossible(
            "each rank prints its own loss, while the gradient is the mean over ranks"
        )
    reads = [read for read in tape.reads[:MAX_READS] if is_a_loss(tape, read)]
    was_read = bool(reads)
    if not reads and aside:
        reads = [read for read in left_aside(tape) if not of_other_examples(tape, read.ref)]
    if not reads:
        raise NotPossible("the script printed no loss in the steps that were examined")
    # Scripts read `loss.detach()`: the looked-through gradient of what is read, against what was given. A cut on
    # the way to the optimised loss itself is no other loss: it stays.
    off = off_the_way(tape)
    replayed = replay(tape, gradients=True, look_through=off, want=[read.ref for read in reads])
    columns = []
    for read in reads:
        value = replayed[read.ref]
        if value.requires_grad:
            columns.append((read, replayed.gradients_of(value.sum())))
    given = optimised(tape, replayed, [read.ref for read, _ in columns])
    unheard = unheard_term(tape, given)
    if not finite(given) or not all(finite(gradients) for _, gradients in columns):
        raise NotPossible(f"the gradients of step {tape.step} are not finite")
    columns = [(r, g) for r, g in columns if any(v is not None and v.any() for v in g.values())]
    if not columns or not given:
        raise NotPossible("the values the script prints have no gradient")
    names = list(given)
    target = flat(given, names, given)
    matrix = torch.stack([flat(gradients, names, given) for _, gradients in columns])
    if any(g.dtype == torch.float16 for g in given.values()):
        # What is lost below the range of half precision is a matter of the range, not of another loss.
        faint = target.abs() < torch.finfo(torch.float16).tiny
        if float((faint & (matrix != 0).any(dim=0)).double().mean()) > FAINT:
            raise NotPossible("most of the gradient is below the range of half precision")
    cosines = [float(torch.cosine_similarity(target, row, dim=0)) for row in matrix]
    along = projection(target, matrix)
    if along < SAME and not any(another_loss(tape, read, off) for read, _ in columns):
        raise NotPossible("the script prints only a part or a statistic of the loss")
    return {
        "step": tape.step,
        "was_read": was_read,
        "apart": apart(tape, [read.ref for read, _ in columns]),
        "cosine": along,
        "unheard": unheard,
        "best_single": max(cosines),
        "reads": [
            {"value": read.value, "cosine": cosine, "line": line_of(tape, read.ref)}
            for (read, _), cosine in zip(columns, cosines)
        ],
        "optimised": [
            {"value": root.value / root.scale, "line": line_of(tape, root.ref)}
            for root in tape.roots
        ],
        "faithful": distance_from_step(tape),
    }


def optimised_later(patient: Patient) -> bool:
    """Some step calls backward on what an earlier one has computed (actor and critic): no loss is left aside for good."""
    tapes = patient.every_tape
    # Where the first tape was begun is no matter of the script's: a loss may have been computed before it.
    roots_of_later = (r for step, t in tapes.items() if step > min(tapes) for r in t.roots)
    if any(root.ref is None for root in roots_of_later):
        return True
    roots = {log.step: [float(loss) for loss in log.losses] for log in patient.logs()}
    return any(
        math.isclose(read.value, value, rel_tol=SAME_VALUE)
        for step, tape in tapes.items()
        if step + 1 in roots
        for read in left_aside(tape)
        for value in roots[step + 1]
    )


def another_loss(tape: StepTape, read: Read, off: set[Op]) -> bool:
    """What is read is meant to fall: it grows with the error of each example, and is no mere term of what is optimised.

    A divergence from an earlier policy grows with some errors and falls with others; one of two terms that is printed
    says nothing of the other.
    """
    roots = [root.ref for root in tape.roots if root.ref is not None]
    if read.ref not in roots and any(read.ref in terms_of(tape, root) for root in roots):
        return False
    numbers = sites_of(tape, [read.ref])
    errors = [
        ref
        for site in loss_sites(tape)
        for ref in site.op.outputs[:1]
        if site.op.number in numbers and ref is not None and ref != read.ref
    ]
    replayed = replay(tape, gradients=True, look_through=off, want=[read.ref, *errors])
    value = replayed[read.ref]
    inputs = [replayed[ref] for ref in errors if replayed[ref].requires_grad]
    if not inputs or not value.requires_grad:
        return True
    with torch.enable_grad():
        slopes = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
    return not any(s is not None and bool((s > 0).any() and (s < 0).any()) for s in slopes)


def unheard_term(tape: StepTape, given: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """A loss that is added to what backward is called on, and gives no gradient: it was computed under `no_grad`, or
    detached. `share` of the gradient that is missing with it."""
    for root in tape.roots:
        for term in terms_of(tape, root.ref) if root.ref is not None else ():
            op = tape.producer.get(term)
            way = tape.needed([term])
            # The forward of an autograd.Function runs without gradients too: its backward gives them.
            deaf = {
                o
                for o in way
                if o.function is None
                and o.depends_on & PARAMETER
                and (o.kind == "detach" or not o.grad_enabled)
            }
            # A penalty has no targets; one that is detached on purpose says so where it is added.
            helper = op is not None and op.kind != "detach" and op.depends_on == DATA | PARAMETER
            if op not in deaf or not (helper or sites_of(tape, [term])):
                continue
            replayed = replay(tape, gradients=True, look_through=deaf, want=[term])
            value = replayed[term]
            if not value.requires_grad:
                continue
            missing = replayed.gradients_of(value.sum())
            lost = sum(float(g.double().square().sum()) for g in missing.values() if g is not None)
            kept = sum(float(g.double().square().sum()) for g in given.values())
            if lost > 0:
                share = math.sqrt(lost / (lost + kept))
                return {"value": float(value.detach()), "line": op.nearest_line, "share": share}
    return None


def off_the_way(tape: StepTape) -> set[Op]:
    """The ops that what is optimised does not depend on."""
    structure = Structure(tape)
    bits = 0
    for root in tape.roots:
        if root.ref is not None:
            bits |= structure.above(root.ref) | 1 << root.ref.index
    return {
        op
        for op in tape.ops
        if not any(bits >> ref.index & 1 for ref in (*op.outputs, *op.writes) if ref is not None)
    }


def optimised(tape: StepTape, replayed: Replay, reads: list[Ref]) -> dict[str, Tensor]:
    """What the gradient of the reads is held against: the given one; of several micro-batches only those that
    are read, where the script reads but some of them (the last one's loss is a sample of the step's)."""
    shared = [
        number
        for number, root in enumerate(tape.roots)
        if root.ref is not None and sites_of(tape, [root.ref]) & sites_of(tape, reads)
    ]
    if not shared or len(shared) == len(tape.roots):
        # What is no part of the step has a gradient where its memory is also that of others' (a flat buffer of all).
        fresh = tape.fresh.items()
        return {name: g for name, g in fresh if g is not None and name in tape.parameters}
    total: dict[str, Tensor] = {}
    for number in shared:
        for name, g in replayed.gradients_of(replayed.roots[number]).items():
            if g is not None:
                total[name] = total[name] + g if name in total else g
    return total


def sites_of(tape: StepTape, refs: list[Ref]) -> set[int]:
    """The losses on the way to these values."""
    numbers = {op.number for op in tape.needed(refs)}
    # A squared error by hand that is not optimised is a measure of quality beside another loss.
    sites = [site for site in loss_sites(tape) if site.in_root or site.kind != BY_HAND]
    return {site.op.number for site in sites} & numbers


def finite(gradients: Mapping[str, Tensor | None]) -> bool:
    return all(g is None or bool(torch.isfinite(g).all()) for g in gradients.values())


def is_a_loss(tape: StepTape, read: Read) -> bool:
    """It depends on data, and predictions meet targets on the way to it: a norm of weights or activations does not."""
    ops = tape.needed([read.ref])
    if not any(op.depends_on & DATA for op in ops):
        return False
    if not sites_of(tape, [read.ref]) or picks_one(tape, read.ref):
        return False
    return not of_other_examples(tape, read.ref)


def of_other_examples(tape: StepTape, ref: Ref) -> bool:
    """An evaluation: none of the predictions that it judges is judged by what is optimised (the nodes of one graph
    are dealt to training and validation). Asked at the last value that both are made of: the rows by which each has a
    derivative. Where a model has no such value (one matrix), by the data that each is given."""
    if not apart(tape, [ref]):
        return False
    structure, bits = Structure(tape), 0
    for root in tape.roots:
        bits |= structure.above(root.ref) if root.ref is not None else 0
    bits &= structure.above(ref)
    shared = [
        one
        for op in tape.ops
        for one in op.outputs
        if one is not None and op.depends_on == PARAMETER | DATA and bits >> one.index & 1
    ]
    if not shared:
        roots = [root.ref for root in tape.roots if root.ref is not None]
        return not data_behind(tape, [ref]) & data_behind(tape, roots)
    replayed = replay(tape, gradients=True, look_through=off_the_way(tape), want=[ref, shared[-1]])
    value, printed = replayed[shared[-1]], replayed[ref]
    if not (value.requires_grad and printed.requires_grad and replayed.loss.requires_grad):
        return False
    mine, theirs = (rows_judged(what, value) for what in (printed.sum(), replayed.loss))
    return bool(mine.any() and theirs.any()) and not bool((mine & theirs).any())


def data_behind(tape: StepTape, refs: list[Ref]) -> set[Ref]:
    """What came with the batch, on the way to these values."""
    return {ref for op in tape.needed(refs) for ref in op.inputs if ref in tape.data_set}


def rows_judged(scalar: Tensor, value: Tensor) -> Tensor:
    """By which rows of a value a scalar has a derivative that is not 0."""
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(scalar, value, retain_graph=True, allow_unused=True)
    if gradient is None:
        return torch.zeros(1, dtype=torch.bool)
    moved = gradient != 0
    return moved.any(dim=-1) if moved.dim() > 1 else moved


def picks_one(tape: StepTape, ref: Ref) -> bool:
    """The worst, the best, the spread of losses that are optimised together: a statistic of them, no other loss."""
    optimised = {site.op.number for site in loss_sites(tape) if site.in_root}
    if not sites_of(tape, [ref]) <= optimised:
        return False
    behind = set()
    for op in tape.needed([ref]):
        follows = op.number in optimised or any(tape.producer.get(r) in behind for r in op.inputs)
        if follows:
            behind.add(op)
        if follows and op.kind in OF_THE_SPREAD and any(not scalar(tape, r) for r in op.inputs):
            return True
    return False


def apart(tape: StepTape, reads: list[Ref]) -> bool:
    """No loss on the way to what is read stands on the way to what is optimised: two computations."""
    return not any(
        site.in_root for site in loss_sites(tape) if site.op.number in sites_of(tape, reads)
    )


def left_aside(tape: StepTape) -> list[Read]:
    """Scalar losses that the step computes, with gradients on, and does not optimise: some later step prints them."""
    found: dict[Ref, None] = {}
    for site in loss_sites(tape):
        if site.in_root or site.kind == BY_HAND or not site.op.grad_enabled:
            continue
        reached = {ref for ref in site.op.outputs if ref is not None}
        scalar = None
        for op in tape.ops[site.op.number :]:
            if op is not site.op and not reached & set(op.inputs):
                continue
            for ref in op.outputs:
                if ref is not None:
                    reached.add(ref)
                    scalar = ref if math.prod(tape.geometry[ref.index].size) == 1 else scalar
        if scalar is not None:
            found[scalar] = None
    return [Read(ref, float(evaluate(tape, ref))) for ref in list(found)[:MAX_READS]]


def flat(
    gradients: Mapping[str, Tensor | None], names: list[str], like: Mapping[str, Tensor]
) -> Tensor:
    parts = []
    for name in names:
        gradient = gradients.get(name)
        part = torch.zeros_like(like[name]) if gradient is None else gradient
        parts.append(part.reshape(-1).double())
    return torch.cat(parts)


def projection(target: Tensor, rows: Tensor) -> float:
    """Cosine between the target and its best combination of the rows: terms may be printed one by one."""
    rows = rows[rows.norm(dim=1) > 0]
    if not len(rows):
        return 0.0  # nothing that is read depends on a parameter that got a gradient
    # Rows may be parallel (a margin and its loss, read for each micro-batch), to rounding: least squares by the few
    # products of rows with each other, without directions that only rounding makes.
    scaled = (rows / rows.norm(dim=1, keepdim=True)).double()
    lengths, directions = torch.linalg.eigh(scaled @ scaled.T)
    kept = lengths > PARALLEL * lengths[-1]
    along = directions[:, kept].T @ (scaled @ target.double())
    length = float(target.double().norm())
    return float((along.square() / lengths[kept]).sum().sqrt()) / length if length else 0.0


def line_of(tape: StepTape, ref: Ref | None) -> str | None:
    op = tape.producer.get(ref) if ref is not None else None
    return None if op is None else op.nearest_line
