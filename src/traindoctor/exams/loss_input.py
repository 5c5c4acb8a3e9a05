"""Exam: what is handed to the loss: logits, probabilities, log-probabilities, and how many targets count."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import value_of, walk_back
from traindoctor.graph.score_rows import mixed_frames, mixed_rows
from traindoctor.graph.sites import LossSite
from traindoctor.tape.execute import evaluate, replay
from traindoctor.tape.operators import CLASS_LOSSES, LOG_NORMALISING
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape

# Rows of a distribution sum to 1 up to rounding; logits do so by no accident, in all rows of all steps.
SUM_TOLERANCE = 1e-3
# Losses that are given log-probabilities -> the axis of the classes.
GIVEN_LOGARITHMS = {"nll_loss": 1, "ctc_loss": -1}
# Softmaxes of one step that are looked at.
MOST_SOFTMAXES = 64
# Steps back through multiplications by a number (a temperature).
MOST_SCALINGS = 4


@exam_of_tape(name="loss_input", title="What the loss function is given", cost=2)
def loss_input(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`sites`: per place of a loss, over all taped steps: do rows sum to 1, do their exponentials."""
    sites: dict[tuple[Any, ...], dict[str, Any]] = {}
    for step in sorted(patient.tapes):
        found = loss_sites(patient.tapes[step])
        chosen = [site for site in found if site.in_root] or found
        for site in chosen[:16]:
            row = describe(patient.tapes[step], site)
            key = (row["line"], row["kind"])
            sites[key] = row if key not in sites else merge(sites[key], row)
    looked_at, crossed = normalised_elsewhere(tape)
    if not sites and not looked_at:
        raise NotPossible("the step calls no known loss function")
    return {
        "sites": list(sites.values()),
        "softmaxes": softmaxes_of_distributions(tape),
        "crossed": crossed,
        "alignments": alignments(tape),
    }


def normalised_elsewhere(tape: StepTape) -> tuple[int, list[dict[str, Any]]]:
    """Losses that are given log-probabilities, and those of them whose are normalised over another axis than the classes."""
    ops = [op for op in tape.ops if op.kind in GIVEN_LOGARITHMS and op.inputs][:MOST_SOFTMAXES]
    if not ops:
        return 0, []
    replayed = replay(tape, want=[op.inputs[0] for op in ops])
    found = []
    for op in ops:
        given = replayed[op.inputs[0]].detach().double().exp()
        classes = GIVEN_LOGARITHMS[op.kind] % given.ndim if given.ndim > 1 else 0
        over = [axis for axis in range(given.ndim) if sums_to_one_over(given, axis)]
        if given.ndim > 1 and over and classes not in over:
            line = op.line or op.nearest_line
            found.append({"op": op.name, "line": line, "axis": over[0], "classes": classes})
    return len(ops), found


def alignments(tape: StepTape) -> list[dict[str, Any]]:
    """Losses over alignments, as `sites`; `mixed`: whether the scores of a frame are those of one place."""
    ops = [op for op in tape.ops if op.kind == "ctc_loss" and op.inputs][:MOST_SOFTMAXES]
    if not ops:
        return []
    replayed = replay(tape, want=[op.inputs[0] for op in ops])
    return [
        {
            "line": op.line or op.nearest_line,
            "kind": op.kind,
            "steps": 1,
            "mixed": mixed_frames(tape, op.inputs[0]),
            "made_by": maker(tape, op.inputs[0]),
            **kinds_of(replayed[op.inputs[0]].detach().double().flatten(0, -2)),
        }
        for op in ops
    ]


def sums_to_one_over(values: Tensor, axis: int) -> bool:
    return values.shape[axis] > 1 and sums_to_one(values.movedim(axis, -1).flatten(0, -2))


def softmaxes_of_distributions(tape: StepTape) -> list[dict[str, Any]]:
    """Softmaxes on the way to the loss, or to its targets, whose input is a distribution already (times a number)."""
    roots = [root.ref for root in tape.roots if root.ref is not None]
    ops = [op for op in tape.needed(roots) if op.kind in LOG_NORMALISING and op.inputs]
    ops = ops[:MOST_SOFTMAXES]
    wanted = [op.inputs[0] for op in ops]
    if not wanted:
        return []
    replayed = replay(tape, want=wanted)
    found = []
    for op in ops:
        dim = op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else -1)
        rows = replayed[op.inputs[0]].detach().double()
        if not isinstance(dim, int) or rows.ndim < 2:
            continue
        rows = rows.movedim(dim, -1).flatten(0, -2)
        total = distribution_times(rows)
        if total is not None and (
            abs(total - 1) < SUM_TOLERANCE or scaled(tape, op.inputs[0], dim)
        ):
            line = op.line or op.nearest_line
            found.append(
                {"op": op.name, "line": line, "module": op.module, "rows": len(rows), "sum": total}
            )
    return found


def distribution_times(rows: Tensor) -> float | None:
    """What all rows sum to, if they are distributions times one number (a temperature); None otherwise."""
    if rows.shape[-1] < 2 or len(rows) < 2 or not bool((rows >= 0).all()):
        return None
    sums = rows.sum(-1)
    total = float(sums.mean())
    # Rows that are all alike (zeros, a constant) say nothing; one-hot rows are labels that are being smoothed.
    varied = bool((rows - rows[0]).abs().max() > SUM_TOLERANCE * rows.max())
    if bool(((rows > 0).sum(-1) <= 1).all()):
        return None
    alike = bool(((sums - total).abs() < SUM_TOLERANCE * total).all())
    return total if total > 0 and alike and varied else None


def scaled(tape: StepTape, ref: Ref, dim: int) -> bool:
    """What was multiplied or divided to make it sums to 1: scores of a made-up teacher may have one sum by design."""
    for _ in range(MOST_SCALINGS):
        *_, (ref, op) = walk_back(tape, ref)
        if op is None or not op.scales or not op.inputs:
            return False
        ref = max(op.inputs, key=lambda r: math.prod(tape.geometry[r.index].size))
        value = value_of(tape, ref)
        if value is not None and value.ndim > 1:
            values = value.detach().double()
            if any(sums_to_one(values.movedim(d, -1).flatten(0, -2)) for d in {dim, -1}):
                return True
    return False


def describe(tape: StepTape, site: LossSite) -> dict[str, Any]:
    classes = site.num_classes
    several = site.kind in CLASS_LOSSES and site.class_dim is not None
    return {
        "line": site.line or site.op.nearest_line,
        "kind": site.kind,
        "classes": classes,
        "steps": 1,
        "valid": int(site.valid.sum()),
        "made_by": maker(tape, site.logits),
        "mixed": mixed_rows(tape, site.logits, site.class_dim or 0) if several else None,
        **kinds_of(site.rows(evaluate(tape, site.logits).detach().double())),
    }


def kinds_of(rows: Tensor) -> dict[str, Any]:
    """What the rows that a loss is given can be, a row holding the classes of one prediction."""
    finite = rows[torch.isfinite(rows).all(dim=-1)]
    classes = rows.shape[-1]
    return {
        "rows": len(rows),
        "finite_rows": len(finite),
        "probabilities": classes > 1 and sums_to_one(finite),
        "log_probabilities": classes > 1
        and sums_to_one(finite.exp())
        and bool((finite <= 1e-6).all()),
        "between_0_and_1": classes == 1
        and len(finite) > 8
        and bool(((finite >= 0) & (finite <= 1)).all()),
        "lowest": float(rows.min()) if rows.numel() else None,
        "highest": float(rows.max()) if rows.numel() else None,
    }


def sums_to_one(rows: Tensor) -> bool:
    if rows.numel() == 0:
        return False
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < SUM_TOLERANCE).all())


def maker(tape: StepTape, given: Ref) -> dict[str, str | None] | None:
    """The op that made what the loss gets, through views and casts: a softmax shows itself here."""
    ops = [op for _, op in walk_back(tape, given) if op is not None]
    return {"op": ops[-1].name, "line": ops[-1].line, "module": ops[-1].module} if ops else None


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A property holds if it holds on every step."""
    merged = dict(new)
    for name in ("probabilities", "log_probabilities", "between_0_and_1"):
        merged[name] = old[name] and new[name]
    merged["steps"] = old["steps"] + 1
    merged["valid"] = max(old["valid"], new["valid"])
    return merged
