"""Why a step has no loss beside rows of tokens: nothing to test, or nothing that could be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traindoctor.exams.base import NotApplicable, NotPossible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traindoctor.replay.ends import Ends
    from traindoctor.replay.tape import StepTape


def nothing_beside_tokens(tape: StepTape, ends: Sequence[Ends]) -> NotApplicable | NotPossible:
    """`ends`: what was found, none of it of the kind that is asked for."""
    rows = [
        s for s in tape.input_sites if s.kind == "data" and s.index is not None and s.index.ndim > 1
    ]
    if not rows:
        return NotApplicable("the model does not read rows of tokens")
    if not tape.loss_sites:
        return NotPossible("the loss is written in a way that hides its targets")
    if ends and all(e.contrastive for e in ends):
        return NotApplicable("the loss compares the rows of a batch with each other")
    if ends:
        return NotApplicable("the targets are not one token for each place")
    return NotPossible("no loss whose targets are known depends on the tokens")
