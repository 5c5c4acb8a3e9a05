"""Exam: the model as it was built. First loss against ln C, spread of scores, scale of weights.

Legend: a weight of shape (out, in) with RMS 1/sqrt(in) keeps the size of what goes through it.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotPossible, exam
from traindoctor.experiment.at_rest import at_rest
from traindoctor.experiment.patient import Patient
from traindoctor.graph.loss_sites import loss_sites
from traindoctor.graph.origins import walk_back
from traindoctor.graph.sites import LossSite
from traindoctor.graph.structure import Structure
from traindoctor.ground.losses import cross_entropy
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import TAKING_WEIGHTS
from traindoctor.tape.tape import StepTape


@exam(name="init_scale", title="Scale of the model at initialisation", cost=3)
def init_scale(patient: Patient) -> Mapping[str, Any]:
    """First step only: cross-entropy over ln C, std of scores, of attention scores, RMS x sqrt(fan in)."""
    tape = patient.first_tape
    if tape is None or tape.step != 0:
        raise NotPossible("the first step could not be repeated")
    structure = Structure(tape)
    values: dict[str, Any] = {"step": tape.step, "weights": weight_scales(tape)}
    sites = [
        s for s in loss_sites(tape) if s.class_dim is not None and not s.targets.is_floating_point()
    ]
    if sites:
        values |= first_loss(tape, sites[0])
    else:
        values |= first_predictions(tape)
    softmaxes = [a.op.inputs[0] for a in structure.attentions if a.kind == "softmax"][:12]
    stds = (
        [score_std(value) for value in replay(tape, want=softmaxes).values.values()]
        if softmaxes
        else []
    )
    values["score_std"] = max(stds, default=None)
    values["frozen"] = frozen_matrices(tape)
    values["zero_factors"] = sum(tape.parameters[n].value.ndim > 1 for n in at_rest(tape))
    scales = sorted(values["weights"].values())
    values["weight_scale"] = scales[len(scales) // 2] if scales else None
    values["largest_scale"] = scales[-1] if scales else None
    return values


def first_loss(tape: StepTape, site: LossSite) -> dict[str, Any]:
    scores = site.rows(replay(tape, want=[site.logits])[site.logits].detach()).float()
    keep = site.valid.to(scores.device)
    if not keep.any():
        return {}
    targets = site.targets.to(scores.device)[keep]
    # A log-probability is its own log-softmax: the same number for nll_loss.
    nll = cross_entropy(scores[keep], targets.long())
    return {
        "loss": float(nll),
        "ln_classes": math.log(site.num_classes),
        "loss_ratio": float(nll) / math.log(max(2, site.num_classes)),
        "logits_std": float(scores[keep].std(dim=1).mean()),
        "classes": site.num_classes,
        "line": site.line,
    }


def first_predictions(tape: StepTape) -> dict[str, Any]:
    """A regression: how far the first predictions are spread beside the numbers that they are to be."""
    numbers = [s for s in loss_sites(tape) if s.class_dim is None and s.targets.is_floating_point()]
    if not numbers:
        return {}
    site = numbers[0]
    predicted = replay(tape, want=[site.logits])[site.logits].detach().float()
    if predicted.numel() < 2 or site.targets.numel() < 2:
        return {}
    spread = float(site.targets.float().std())
    ratio = float(predicted.std()) / spread if spread > 0 else None
    return {"prediction_ratio": ratio, "line": site.line}


def score_std(scores: Tensor) -> float:
    open_ = scores[torch.isfinite(scores) & (scores > -1e4)].float()
    return float(open_.std()) if open_.numel() > 1 else 0.0


def weight_scales(tape: StepTape) -> dict[str, float]:
    """RMS x sqrt(fan in) of every matrix that multiplies activations; matrices of zeros (gates) are left out."""
    found = {}
    names = set()
    for op in tape.ops:
        if op.kind in TAKING_WEIGHTS:
            for ref in op.inputs:
                names.add(
                    next((n for r, _ in walk_back(tape, ref) if (n := tape.name_of(r))), None)
                )
    for name in sorted(n for n in names if n):
        value = tape.parameters[name].value.detach().float()
        if value.ndim >= 2 and min(value.flatten(1).shape) > 1:
            rms = float(value.square().mean().sqrt())
            if rms > 0:
                found[name] = rms * math.sqrt(value[0].numel())
    return found


def frozen_matrices(tape: StepTape) -> int:
    """Products with a matrix that does not train: small adapters beside a large frozen model are meant so."""
    found = set()
    for op in tape.ops:
        if op.kind == "linear":
            weight = op.kwargs.get("weight", op.args[1] if len(op.args) > 1 else None)
            if weight in tape.constants:
                found.add(weight)
    return len(found)
