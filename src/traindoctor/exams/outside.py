"""Exam: does the script change weights itself, outside the optimizer's step? (decay written by hand)"""

import math
from collections.abc import Mapping
from typing import Any

from traindoctor.exams.base import NotPossible, exam
from traindoctor.experiment.patient import Patient


@exam(name="outside_changes", title="Weights changed outside the step", cost=0.1, needs_tape=False)
def outside_changes(patient: Patient) -> Mapping[str, Any]:
    """Of the sampled step where it is strongest: tensors that shrink, by how much, and that beside the step itself."""
    keeper = patient.snapshot
    if keeper is None or keeper.refusal is not None:
        raise NotPossible("replaying is off (--no-replay)" if keeper is None else keeper.refusal)
    if not keeper.outside.found:
        raise NotPossible("no step was examined to its end")
    worst = max(keeper.outside.found, key=lambda one: one.pull)
    names = {**worst.after, **worst.before}
    ratio = worst.pull / worst.push if worst.push else (math.inf if worst.pull else 0.0)
    return {
        "step": worst.step,
        "looked_at": len(keeper.outside.found),
        "tensors": len(names),
        "factor": min((worst.factor(name) for name in names), default=1.0),
        "ratio": ratio,
        "names": list(names)[:8],
        "undone": sorted(one.undone for one in keeper.outside.found)[
            len(keeper.outside.found) // 2
        ],
    }
