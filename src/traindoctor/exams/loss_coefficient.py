"""Exam: with which factor does each loss enter the gradient of the step?"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from traindoctor.exams.base import NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.sites import LossSite, by_line, valid_count
from traindoctor.tape.execute import evaluate, replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape

# Two values of the same scores, one of them through a softmax in float32: 1e-7 to 1e-6; in bfloat16 1e-2.
SAME = 0.02


@exam_of_tape(name="loss_coefficient", title="Weight of each loss in the step", cost=3)
def loss_coefficient(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """Per place in the script: the sum over the step of d(root)/d(mean loss per target); 1 is a plain mean."""
    sites = [site for site in loss_sites(tape) if site.in_root]
    if not sites:
        raise NotPossible("the step calls no known loss function")
    require_faithful(tape)
    outputs = {site: ref for site in sites if (ref := site.op.outputs[0]) is not None}
    replayed = replay(tape, gradients=True, want=list(outputs.values()))
    weights = coefficients(replayed.roots, {ref: replayed[ref] for ref in outputs.values()})
    groups = []
    for calls in by_line(sites).values():
        known = [s for s in calls if s in outputs and weights.get(outputs[s]) is not None]
        if known:
            found = [weights[outputs[site]] for site in known]
            groups.append(describe(tape, known, found, sites))
    if not groups:
        raise NotPossible("no gradient reaches a loss function")
    arrived = tape.arrived
    return {
        "step": tape.step,
        "groups": groups,
        "main": max(groups, key=lambda group: abs(group["coefficient"])),
        "backwards": len(tape.roots),
        "scale": tape.roots[0].scale,
        "arrived": None if arrived is None else arrived[0],
        "arrived_cosine": None if arrived is None else arrived[1],
    }


def coefficients(
    roots: list[torch.Tensor], values: Mapping[Ref, torch.Tensor]
) -> dict[Ref, float | None]:
    """Per Ref the sum of the entries of d(sum of roots)/d(value)."""
    live = {ref: value for ref, value in values.items() if value.requires_grad}
    total: dict[Ref, float | None] = {}
    for root in roots:
        if not root.requires_grad or not live:
            continue
        found = torch.autograd.grad(root, list(live.values()), retain_graph=True, allow_unused=True)
        for ref, gradient in zip(live, found):
            if gradient is not None:
                total[ref] = (total.get(ref) or 0.0) + float(gradient.double().sum())
    return total


def describe(
    tape: StepTape, calls: list[LossSite], weights: list[float | None], sites: list[LossSite]
) -> dict[str, Any]:
    scale = tape.roots[0].scale
    total = 0.0
    for site, weight in zip(calls, weights):
        assert weight is not None
        per_mean = weight * valid_count(site) if site.reduction == "sum" else weight
        total += abs(per_mean) / scale
    first = calls[0]
    over_classes = (first.kind, first.reduction) == ("kl_div", "mean")
    return {
        "line": first.line or first.op.nearest_line,
        "kind": first.kind,
        "reduction": first.reduction,
        "calls": len(calls),
        "coefficient": total,
        "valid": sum(valid_count(site) for site in calls) / len(calls),
        "rows": len(first.targets),
        # A divergence is a sum over the classes: a mean of all entries divides by them as well.
        "over_classes": tape.geometry[first.logits.index].size[-1] if over_classes else None,
        "temperature": temperature(tape, first, sites) if over_classes else 1.0,
        "written_by_hand": first.kind.endswith(("gather", "one_hot")),
    }


def temperature(tape: StepTape, site: LossSite, others: Iterable[LossSite]) -> float:
    """What a divergence's scores are divided by, seen beside another loss on the same scores: each row of its logarithms is
    theirs, shrunk and moved. The square of it makes up for gradients that are as much smaller."""
    own = centred(tape, site)
    for other in others:
        if other.class_dim is None:
            continue
        scores = centred(tape, other)
        if scores.shape != own.shape or not bool(scores.any()):
            continue
        share = float((own * scores).sum() / scores.square().sum())
        if share > 0 and float((own - share * scores).norm()) < SAME * float(own.norm()):
            return 1 / share
    return 1.0


def centred(tape: StepTape, site: LossSite) -> torch.Tensor:
    values = evaluate(tape, site.logits).detach().double()
    rows = values.reshape(-1, values.shape[-1]) if site.class_dim is None else site.rows(values)
    return rows - rows.mean(-1, keepdim=True)
