"""Why a step has no loss beside rows of tokens: nothing to test, or nothing that could be found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from traindoctor.exams.base import NotApplicable, NotPossible
from traindoctor.replay.ops import DATA, PARAMETER, Ref
from traindoctor.replay.origins import hangs_on, walk_back

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
        if not asks_for_tokens(tape):
            return NotApplicable("no loss asks for a token")
        return NotPossible("the loss is written in a way that hides its targets")
    if ends and all(e.contrastive for e in ends):
        return NotApplicable("the loss compares the rows of a batch with each other")
    if ends:
        return NotApplicable("the targets are not one token for each place")
    return NotPossible("no loss whose targets are known depends on the tokens")


def asks_for_tokens(tape: StepTape) -> bool:
    """Whether whole numbers of the batch meet anything but the tables that they are looked up in."""
    looked_up = {id(site.op) for site in tape.input_sites}
    for op in tape.ops:
        if id(op) in looked_up:
            continue
        kinds = {ref: hangs_on(tape, ref) for ref in op.inputs}
        if any(kind & PARAMETER for kind in kinds.values()):
            if any(kind == DATA and is_whole(tape, ref) for ref, kind in kinds.items()):
                return True
    return False


def is_whole(tape: StepTape, ref: Ref) -> bool:
    """A rearrangement of integers of the batch."""
    *_, (first, _) = walk_back(tape, ref)
    kept = tape.constants.get(first)
    return kept is not None and not kept.is_floating_point() and kept.dtype is not torch.bool
