"""Exam: with which factor does each loss enter the gradient of the step?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from traindoctor.exams.base import NotPossible, exam
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import walk_back
from traindoctor.graph.sites import LossSite, by_line, valid_count
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.operators import SOFTMAXES
from traindoctor.tape.ops import Ref

if TYPE_CHECKING:
    from traindoctor.experiment.patient import Patient
    from traindoctor.tape.tape import StepTape

# From log-probabilities back to the scores: the softmax, and multiplications by a number.
MOST_STEPS = 4


@exam(name="loss_coefficient", title="Weight of each loss in the step", cost=3)
def loss_coefficient(patient: Patient) -> Mapping[str, Any]:
    """Per place in the script: the sum over the step of d(root)/d(mean loss per target); 1 is a plain mean."""
    tape = patient.tape
    assert tape is not None
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
            groups.append(describe(tape, known, [weights[outputs[site]] for site in known]))
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


def describe(tape: StepTape, calls: list[LossSite], weights: list[float | None]) -> dict[str, Any]:
    scale = tape.roots[0].scale
    total = 0.0
    for site, weight in zip(calls, weights):
        assert weight is not None
        per_mean = weight * valid_count(site) if site.reduction == "sum" else weight
        total += abs(per_mean) / scale
    first = calls[0]
    return {
        "line": first.line or first.op.nearest_line,
        "kind": first.kind,
        "reduction": first.reduction,
        "calls": len(calls),
        "coefficient": total,
        "valid": sum(valid_count(site) for site in calls) / len(calls),
        "rows": len(first.targets),
        # A divergence is a sum over the classes: a mean of all entries divides by them as well.
        "over_classes": tape.geometry[first.logits.index].size[-1]
        if (first.kind, first.reduction) == ("kl_div", "mean")
        else None,
        "temperature": temperature(tape, first.logits) if first.kind == "kl_div" else 1.0,
        "written_by_hand": first.kind.endswith(("gather", "one_hot")),
    }


def temperature(tape: StepTape, ref: Ref) -> float:
    """What the scores are divided by on their way to the softmax: its square makes up for gradients that are as much smaller."""
    divided_by = 1.0
    for _ in range(MOST_STEPS):
        *_, (_, op) = walk_back(tape, ref)
        if op is None or not op.inputs:
            break
        numbers = [one for one in op.args if isinstance(one, int | float)]
        if op.scales and len(op.inputs) == 1 and len(numbers) == 1 and numbers[0]:
            divided_by *= numbers[0] if op.kind == "div" else 1 / numbers[0]
        elif op.kind not in SOFTMAXES:
            break
        ref = op.inputs[0]
    return divided_by
