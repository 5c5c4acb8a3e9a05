"""Exam: what is handed to the loss: logits, probabilities, log-probabilities, and how many targets count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, exam
from traindoctor.replay.sites import REARRANGING, LossSite, walk_back

if TYPE_CHECKING:
    from traindoctor.replay.patient import Patient
    from traindoctor.replay.tape import StepTape

# Rows of a distribution sum to 1 up to rounding; logits do so by no accident, in all rows of all steps.
SUM_TOLERANCE = 1e-3


@exam(name="loss_input", title="What the loss function is given", cost=2)
def loss_input(patient: Patient) -> Mapping[str, Any]:
    """`sites`: per place of a loss, over all taped steps: do rows sum to 1, do their exponentials."""
    sites: dict[tuple[Any, ...], dict[str, Any]] = {}
    for step in sorted(patient.tapes):
        tape = patient.tapes[step]
        chosen = [site for site in tape.loss_sites if site.in_root] or tape.loss_sites
        for site in chosen[:16]:
            row = describe(tape, site)
            key = (row["line"], row["kind"])
            sites[key] = row if key not in sites else merge(sites[key], row)
    if not sites:
        raise NotApplicable("the step calls no loss function that is known")
    return {"sites": list(sites.values())}


def describe(tape: StepTape, site: LossSite) -> dict[str, Any]:
    values = site.rows(tape.evaluate(site.logits).detach().double())
    finite = values[torch.isfinite(values).all(dim=-1)]
    classes = site.num_classes
    return {
        "line": site.line or site.op.nearest_line,
        "kind": site.kind,
        "classes": classes,
        "steps": 1,
        "rows": len(values),
        "valid": int(site.valid.sum()),
        "finite_rows": len(finite),
        "probabilities": classes > 1 and sums_to_one(finite),
        "log_probabilities": classes > 1
        and sums_to_one(finite.exp())
        and bool((finite <= 1e-6).all()),
        "between_0_and_1": classes == 1
        and len(finite) > 8
        and bool(((finite >= 0) & (finite <= 1)).all()),
        "made_by": maker(tape, site),
        "lowest": float(values.min()) if values.numel() else None,
        "highest": float(values.max()) if values.numel() else None,
    }


def sums_to_one(rows: Tensor) -> bool:
    if rows.numel() == 0:
        return False
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < SUM_TOLERANCE).all())


def maker(tape: StepTape, site: LossSite) -> dict[str, str | None] | None:
    """The op that made what the loss gets, through views and casts: a softmax shows itself here."""
    found = None
    for _, op in walk_back(tape, site.logits):
        if op is None:
            break
        found = op
        if op.name not in REARRANGING and op.name != "__getitem__":
            break
    if found is None:
        return None
    return {"op": found.name, "line": found.line, "module": found.module}


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A property holds if it holds on every step."""
    merged = dict(new)
    for name in ("probabilities", "log_probabilities", "between_0_and_1"):
        merged[name] = old[name] and new[name]
    merged["steps"] = old["steps"] + 1
    merged["valid"] = max(old["valid"], new["valid"])
    return merged
