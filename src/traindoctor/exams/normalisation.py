"""Exam: over which axes does each normalisation run, and do activations grow where there is none?"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from traindoctor.exams.base import exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.patient import Patient
from traindoctor.graph.ends import Ends, changed, chosen_row, find_ends, twins
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import depends_on
from traindoctor.graph.structure import Structure
from traindoctor.graph.unit_norms import (
    meant_for_features,
    moved_place,
    stretched_by_features,
    unit_axis,
)
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import GROUP_NORMS, MOMENTS, POOLS, ROOTS, SHAPE_NORMS, UNDER_ROOT
from traindoctor.tape.ops import PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape

# Variance between rows after the mean over that before it: 1/T for T places that differ at random; float32 leaves 1e-12.
ERASED = 1e-8
NOTHING = {"norms": [], "rms_by_hand": 0, "attentions": 0, "growth": None, "sizes": []}


@exam_of_tape(name="normalisation", title="Axes of normalisation, growth of activations", cost=4)
def normalisation(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`norms`: each with the axes ('batch', 'time', 'feature') it runs over; `growth` of the residual stream."""
    structure = Structure(tape)
    ends = [e for e in find_ends(tape, structure) if e.layout is not None]
    if not ends or ends[0].layout is None:
        return of_numbers(structure)
    rms_by_hand = sum(mean_under_root(structure, op) is not None for op in tape.ops)
    found = [
        (op, source, dims)
        for op in tape.needed([ends[0].loss.logits])
        if not op.segment and (hit := normalising(structure, op)) is not None
        for op, source, dims in [hit]
    ]
    apart = separate_dims(tape, ends[0], [source for _, source, _ in found])
    norms = described(structure, found, apart)
    sums = [(op, op.outputs[0]) for op, _, _ in structure.additions if op.segment == 0]
    wanted = [ref for _, ref in sums if ref is not None]
    replayed = replay(tape, want=wanted) if wanted else None
    sizes = (
        [float(replayed[r].detach().float().square().mean().sqrt()) for r in wanted]
        if replayed
        else []
    )
    return {
        "norms": norms,
        "rms_by_hand": rms_by_hand,
        "attentions": len([a for a in structure.attentions if a.op.segment == 0]),
        "growth": sizes[-1] / sizes[0] if len(sizes) > 1 and sizes[0] > 0 else None,
        "sizes": sizes[:64],
        "step": tape.step,
    }


def of_numbers(structure: Structure) -> dict[str, Any]:
    """A batch of numbers: statistics over time are usual for signals. Unit vectors meant for features are told, and
    (marked as of a `signal`) normalisations by hand of a stack with attention that all run over the same axis."""
    tape = structure.tape
    found = [
        (op, hit[1], hit[2])
        for op in tape.ops
        if op.kind == "normalize" and (hit := normalising(structure, op)) is not None
    ]
    found = [hit for hit in found if stretched_by_features(structure, hit[0], hit[1], hit[2][0])]
    signal = all_alike(structure) if not found else None
    found += [signal] if signal else []
    lost = pooled_away(structure)
    moved = moved_place(tape) if found else None
    if moved is None:
        if lost is None:
            raise nothing_beside_tokens(tape, ())
        return {**NOTHING, "erased": lost, "step": tape.step}
    where, other, row, rows = moved
    sources = [source for _, source, _ in found]
    before, after = replay(tape, want=sources), replay(tape, batch={where: other}, want=sources)
    apart = {ref: told_apart(before[ref], after[ref], row, rows) for ref in sources}
    return {
        "norms": [
            {**norm, "signal": signal is not None} for norm in described(structure, found, apart)
        ],
        "rms_by_hand": 0,
        "attentions": len([a for a in structure.attentions if a.op.segment == 0]),
        "growth": None,
        "sizes": [],
        "erased": lost,
        "step": tape.step,
    }


def all_alike(structure: Structure) -> tuple[Op, Ref, list[int]] | None:
    """The first normalisation of activations, where there are several, all by hand and over the same dimensions."""
    tape = structure.tape
    hits = [
        hit
        for op in tape.ops
        if not op.segment and (hit := normalising(structure, op)) is not None
        if depends_on(tape, hit[1]) & PARAMETER
    ]
    kinds = {(len(structure.shape(source)), tuple(dims)) for _, source, dims in hits}
    by_hand = all(op.kind in MOMENTS for op, _, _ in hits)
    if len(hits) < 2 or len(kinds) > 1 or not by_hand or not structure.attentions:
        return None
    return hits[0]


def pooled_away(structure: Structure) -> dict[str, Any] | None:
    """A mean over the very places that a normalisation has just given the mean 0: what is left says nothing of the
    example. Told by the values: they differ from row to row before it, and no more after it, nor where the loss is."""
    tape = structure.tape
    scores = [site.logits for site in loss_sites(tape) if site.in_root]
    norms = [hit for op in tape.ops if (hit := normalising(structure, op)) is not None]
    if not norms or not scores:
        return None
    pools = [
        (op, op.inputs[0], op.outputs[0])
        for op in tape.ops
        if op.kind in POOLS and op.inputs and op.outputs and op.outputs[0] is not None
    ]
    pools = [
        (op, full, out)
        for op, full, out in pools
        if len(structure.shape(out)) >= 2
        and structure.shape(out)[0] == structure.shape(full)[0] >= 2
        and any(structure.depends(full, source) for _, source, _ in norms)
    ]
    if not pools:
        return None
    replayed = replay(tape, want=[*scores, *(ref for _, full, out in pools for ref in (full, out))])

    def varies(ref: Ref) -> float:
        return float(replayed[ref].detach().double().var(0).mean())

    reached = max(varies(ref) for ref in scores)
    for pool, full, out in pools:
        before, after = varies(full), varies(out)
        if before > 0 and max(after, reached) < ERASED * before:
            norm = [op for op, source, _ in norms if structure.depends(full, source)][-1]
            return {
                "left": after / before,
                "pool": pool.nearest_line,
                "module": norm.module,
                "line": norm.nearest_line,
            }
    return None


def described(
    structure: Structure,
    found: list[tuple[Op, Ref, list[int]]],
    apart: Mapping[Ref, Mapping[int, str]],
) -> list[dict[str, Any]]:
    return [
        {
            "op": op.name,
            "axes": sorted({apart[source].get(dim, "feature") for dim in dims}),
            "shape": list(structure.shape(source)),
            "module": op.module,
            "line": op.line,
        }
        for op, source, dims in found
    ]


def normalised_dims(op: Op, ndim: int, *, under_root: bool) -> list[int] | None:
    """The dimensions whose statistics are taken, or None for an op that normalises nothing."""
    if op.kind in SHAPE_NORMS:
        given = op.kwargs.get("normalized_shape", op.args[1] if len(op.args) > 1 else ())
        count = len(given) if isinstance(given, tuple | list) else 1
        return list(range(ndim - count, ndim))
    if op.kind == "batch_norm":
        training = op.kwargs.get("training", op.args[5] if len(op.args) > 5 else False)
        return [dim for dim in range(ndim) if dim != 1] if training is True else None
    if op.kind in GROUP_NORMS:
        return list(range(1, ndim))
    if op.kind in MOMENTS:
        if op.kind == "mean" and not under_root:
            return None  # pooling, a loss
        dim = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else None)
        if isinstance(dim, int) and not isinstance(dim, bool):
            return [dim % ndim] if ndim else None
        if isinstance(dim, tuple | list):
            return [d % ndim for d in dim]
    return None


def normalising(structure: Structure, op: Op) -> tuple[Op, Ref, list[int]] | None:
    """(op, what it normalises, over which dimensions)."""
    mean = mean_under_root(structure, op)
    op = mean or op
    source = next((r for r in op.inputs if structure.of_data(r)), None)
    if source is None:
        return None
    ndim = len(structure.shape(source))
    axis = unit_axis(op, ndim)
    if axis is not None:
        return (op, source, [axis]) if meant_for_features(structure, op, source) else None
    dims = normalised_dims(op, ndim, under_root=mean is not None)
    return None if dims is None else (op, source, dims)


def separate_dims(tape: StepTape, ends: Ends, sources: list[Ref]) -> dict[Ref, dict[int, str]]:
    """Dimensions along which examples ('batch') or places ('time') still lie apart, found by changing one token.

    A dimension is not told by its size: it is one along which only some entries move.
    """
    assert ends.layout is not None
    rows, index = ends.layout[1], ends.inputs
    row, begin, end = chosen_row(index)
    place = (begin + end) // 2
    tokens = changed(index, ends, row, [place])
    before = replay(tape, want=sources)
    after = replay(tape, indices=twins(tape, ends.tokens, tokens), want=sources)
    return {ref: told_apart(before[ref], after[ref], row, rows) for ref in sources}


def told_apart(before: Tensor, after: Tensor, row: int, rows: int) -> dict[int, str]:
    """At most one dimension is the batch and one is time; of several candidates the most local is it."""
    moved = (after.detach().float() - before.detach().float()).abs() > 0
    found: dict[int, str] = {}
    best = (1.0, -1)
    for dim, size in enumerate(moved.shape):
        others = [d for d in range(moved.ndim) if d != dim]
        entries = (moved.any(tuple(others)) if others else moved).nonzero().flatten().tolist()
        if not entries or len(entries) == size:
            continue
        if entries == [row] and size == rows and "batch" not in found.values():
            found[dim] = "batch"
        elif len(entries) == 1 or entries == list(range(entries[0], size)):
            # One place, or (after a causal attention) it and all after it.
            best = min(best, (len(entries) / size, dim))
    if best[1] >= 0:
        found[best[1]] = "time"
    return found


def mean_under_root(structure: Structure, op: Op) -> Op | None:
    """RMSNorm by hand: the mean of squares that a root is taken of."""
    source = next((a for a in op.args if isinstance(a, Ref)), None)
    if op.kind not in ROOTS or source is None:
        return None
    for _, above in structure.up(source):
        if above.kind == "mean":
            return above
        if above.kind not in UNDER_ROOT:
            return None
    return None
