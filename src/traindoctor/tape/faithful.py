"""Is the unchanged replay the step itself? Else changes of it say nothing about the run."""

from __future__ import annotations

import math

from traindoctor.errors import ReplayError
from traindoctor.tape.execute import replay
from traindoctor.tape.tape import StepTape

# An unchanged replay must give the step's own loss, up to kernels that sum in any order; a batch that is drawn anew or a
# part that is missing moves it by more.
FAITHFUL = 1e-4


def distance_from_step(tape: StepTape) -> float:
    """Relative difference between the loss of an unchanged replay and the script's own."""
    if distance_from_step not in tape.memo:
        replayed = sum(float(root) for root in replay(tape).roots)
        own = sum(root.value for root in tape.roots)
        tape.memo[distance_from_step] = relative(replayed, own)
    return tape.memo[distance_from_step]  # type: ignore[no-any-return]


def require_faithful(tape: StepTape) -> None:
    """Raises ReplayError where the replay is not the step, or a part of it was not seen and would not answer a change."""
    if tape.gaps:
        raise ReplayError(tape.gaps[0])
    distance = distance_from_step(tape)
    if not distance <= FAITHFUL:
        raise ReplayError(
            "the step cannot be reproduced exactly: repeated without a change it differs by "
            f"{distance:.1e}"
        )


def relative(value: float, reference: float) -> float:
    """|value - reference| / |reference|; two equal infinities or NaNs agree."""
    if value == reference or (math.isnan(value) and math.isnan(reference)):
        return 0.0
    difference = abs(value - reference)
    return difference / abs(reference) if reference else math.inf
