"""Exam: do the micro-batches of a step add up to the gradient of the one big batch?"""

from collections.abc import Mapping
from typing import Any

import torch

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.sites import by_line, valid_count
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape


@exam_of_tape(name="accumulation", title="Micro-batches against the big batch", cost=3)
def accumulation(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """Weight of one target in each micro-batch: in the mean over the big batch all are equal, their sum is 1."""
    if len(tape.roots) < 2:
        raise NotApplicable("the step has one backward pass")
    sites = [site for site in loss_sites(tape) if site.in_root and site.op.outputs[0] is not None]
    groups = by_line(sites)
    if not groups:
        raise NotPossible("the step calls no known loss function")
    calls = max(groups.values(), key=len)
    refs = [site.op.outputs[0] for site in calls]
    replayed = replay(tape, gradients=True, want=[ref for ref in refs if ref is not None])
    totals = [0.0] * len(calls)
    for root in replayed.roots:
        values = [replayed[ref] for ref in refs if ref is not None]
        found = torch.autograd.grad(root, values, retain_graph=True, allow_unused=True)
        for number, gradient in enumerate(found):
            if gradient is not None:
                totals[number] += float(gradient.double().sum()) / tape.roots[0].scale
    weights = []
    for site, total in zip(calls, totals):
        count = max(1, valid_count(site))
        # A mean spreads its weight over the targets; a sum gives each the whole.
        weights.append(abs(total) if site.reduction == "sum" else abs(total) / count)
    mean = sum(weights) / len(weights)
    return {
        "step": tape.step,
        "micro_batches": len(tape.roots),
        "sum": sum(w * valid_count(site) for w, site in zip(weights, calls)),
        "weight_per_target": weights,
        "unevenness": (max(weights) - min(weights)) / mean if mean else 0.0,
        "valid": [valid_count(site) for site in calls],
        "line": calls[0].line,
    }
