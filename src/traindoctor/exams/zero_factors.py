"""Exam: weights that start at zero and can never leave it, because all that multiplies them is zero as well.

A product of two zero factors is zero, and so is the gradient of each: the other factor stands in it. Whatever the
batch, the optimizer has nothing to add.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import TooEarly, exam_of_tape
from traindoctor.experiment.at_rest import at_rest, no_gradient, trained
from traindoctor.experiment.patient import Patient
from traindoctor.ground.names import has_values, local
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape

# A zero layer behind which another one starts at zero waits a step for it, a chain of them some steps: then all move.
SETTLED = 10
# What the factors are set to in the replay: small enough that nothing else saturates by it.
TRIAL = 0.02
MAX_NAMES = 12


@exam_of_tape(name="zero_factors", title="Weights that can never leave zero", cost=4)
def zero_factors(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`stuck`: weights that are exactly 0 on all taped steps with a gradient of exactly 0, and that do get a gradient
    in a replay of the same step in which nothing is changed but that they are not zero."""
    if tape.gaps:
        raise ReplayError(tape.gaps[0])
    asleep = set.intersection(*(set(at_rest(one)) for one in patient.tapes.values()))
    meant = trained(patient)
    now = {name: p for name, p in patient.names.parameters() if has_values(p)}
    moved = {name for name, value in now.items() if bool(local(value).any())}
    names = [
        name for name in tape.parameters if name in asleep - moved and (not meant or name in meant)
    ]
    # What is still exactly zero by now has never moved, whichever step was taped last.
    if names and max(tape.step, patient.current_step) < SETTLED:
        raise TooEarly("too early: what starts at zero may still begin to move")
    woken = wake(tape, names)
    stuck = [name for name in names if name in woken]
    # A bias in front of a closed way waits for it and closes nothing.
    matrices = [name for name in stuck if tape.parameters[name].value.ndim > 1]
    return {
        "step": tape.step,
        "first": min(patient.tapes),
        "parameters": len(tape.parameters),
        "asleep": len(names),
        "stuck": len(stuck) if matrices else 0,
        "names": matrices[:MAX_NAMES],
    }


def wake(tape: StepTape, names: list[str]) -> set[str]:
    """Those that get a gradient once none of them is zero."""
    if not names:
        return set()
    generator = torch.Generator().manual_seed(0)

    def small(value: Tensor) -> Tensor:
        return (torch.randn(value.shape, generator=generator) * TRIAL).to(value)

    other = {name: small(tape.parameters[name].value) for name in names}
    gradients = replay(tape, parameters=other, gradients=True).gradients()
    return {name for name in names if not no_gradient(gradients.get(name))}
