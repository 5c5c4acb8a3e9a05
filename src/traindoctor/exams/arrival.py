"""Exam: does the script itself divide or clip its gradients before the step?"""

from collections.abc import Mapping
from typing import Any

from traindoctor.exams.base import NotPossible, exam
from traindoctor.experiment.arrival import arrivals, by_hand
from traindoctor.experiment.patient import Patient


@exam(name="gradient_arrival", title="Gradients changed between backward and step", cost=0.5)
def gradient_arrival(patient: Patient) -> Mapping[str, Any]:
    """`by_hand`: None, "factor", "clip" or "unit clip", with its value and the norm of gradients before it; `swapped`: parameters
    that got the gradient of another one."""
    keeper = patient.snapshot
    if keeper is None:
        raise NotPossible("replaying is off (--no-replay)")
    logs = keeper.logs
    seen = arrivals(patient.tapes, logs)
    if sum(step in logs for step in patient.tapes) < 2:
        raise NotPossible("fewer than two steps could be repeated")
    found = by_hand(patient.tapes, logs)
    return {
        "steps": [one.step for one in seen],
        "factors": [one.factor for one in seen],
        "norms": [one.norm for one in seen],
        "by_hand": None if found is None else found.kind,
        "value": None if found is None else found.value,
        "norm": None if found is None else found.norm,
        "swapped": next((t.swapped for _, t in sorted(patient.tapes.items()) if t.swapped), {}),
    }
