"""Exam: the given gradient against finite differences of the replayed loss, in float64."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.sections import hides_a_path
from traindoctor.graph.structure import meant_to_move
from traindoctor.numerics.finite_difference import SHARP, directional_test
from traindoctor.tape.compare import compare_all
from traindoctor.tape.execute import Replay, replay
from traindoctor.tape.ops import PARAMETER
from traindoctor.tape.tape import StepTape

# At least three random directions, the largest disagreement counts: one alone can be twenty times smaller.
DIRECTIONS = 4
# The replay in float64 must be the step, up to the step's own rounding.
FAITHFUL = 1e-2
# One direction may be off by more than the whole is: 0.0012 beside 0.0010 in bfloat16.
ROUNDINGS = 4.0


@exam_of_tape(
    name="finite_difference", title="Gradient against finite differences", cost=120, first=True
)
def finite_difference(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """A second opinion: `difference` and `noise` are relative; paths that are cut on purpose make it too large."""
    if tape.gaps:
        raise ReplayError(tape.gaps[0])
    names = [
        name
        for name, gradient in tape.fresh.items()
        if gradient is not None and name in tape.parameters and name not in tape.joined
    ]
    if not names and tape.joined:
        raise ReplayError(
            "every gradient is a sum over ranks, and one rank can only test its own part"
        )
    if not names:
        raise ReplayError("no gradient was given")
    exact = replay(tape, dtype=torch.float64, gradients=True)
    start = float(exact.loss.detach())
    given = sum(root.value for root in tape.roots)
    if not abs(start - given) <= FAITHFUL * max(abs(given), 1e-6):
        raise ReplayError("the step cannot be repeated in float64")

    values = [tape.parameters[name].value.double() for name in names]
    masks = [meant_to_move(tape, name) for name in names]

    def loss(*moved: Tensor) -> Tensor:
        parameters = {
            name: new if mask is None else here + mask * (new - here)
            for name, new, here, mask in zip(names, moved, values, masks)
        }
        return replay(tape, dtype=torch.float64, parameters=parameters).loss

    # A table that is tied to the output has a gradient in its row of padding too: that row stays untested.
    given_gradients = (tape.fresh[name].double() for name in names)  # type: ignore[union-attr]
    gradients = [g if mask is None else mask * g for g, mask in zip(given_gradients, masks)]
    test = directional_test(loss, values, gradients=gradients, num_directions=DIRECTIONS)
    eps = max(torch.finfo(tape.parameters[name].value.dtype).eps for name in names)
    noise = test.noise + 8 * eps**0.75 + rounding(tape, exact)
    outcome = test.outcome
    if outcome == "wrong" and test.difference <= noise:
        outcome = "pass" if noise < SHARP else "undecided"
    return {
        "step": tape.step,
        "difference": test.difference,
        "noise": noise,
        "factor": test.factor,
        "outcome": outcome,
        "directions": [
            {"claimed": c, "measured": q.value, "error": q.error}
            for c, q in zip(test.claims, test.quotients)
        ],
        "cut_paths": cut_paths(tape),
        "joined": len(tape.joined),
    }


def rounding(tape: StepTape, exact: Replay) -> float:
    """What the step's own arithmetic (autocast) makes of the same backward passes, right or wrong, relative."""
    own = replay(tape, gradients=True).gradients()
    whole, _ = compare_all(own, exact.gradients())
    return ROUNDINGS * whole


def cut_paths(tape: StepTape) -> int:
    """Ops on the way to the loss that let values through and gradients not."""
    roots = [root.ref for root in tape.roots if root.ref is not None]
    # What reads the loss after the step shares its memory: it is on no way to it.
    last = max((tape.producer[ref].number for ref in roots if ref in tape.producer), default=0)
    return sum(
        op.number < last and op.depends_on & PARAMETER != 0 and hides_a_path(op)
        for op in tape.needed(roots)
    )
