"""Exam: can the order of the tokens reach the output? Tokens of a row are permuted at the embedding call.

A model without positions gives the permuted outputs of the same tokens: f(px) = p f(x), to rounding.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.moved_weights import as_of_now, nudged
from traindoctor.experiment.patient import Patient
from traindoctor.graph.dropout import without_dropout
from traindoctor.graph.ends import Ends, find_ends, twins
from traindoctor.graph.structure import Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.tape import StepTape

# (time axis of the index, rows, places of the scores; 0: they do not lie by the tokens)
Layout = tuple[int, int, int]

PERMUTATIONS = 2
# Scores that vary less than this over rows, relative, do not depend on the input.
NOTHING = 1e-6


@exam_of_tape(name="positions", title="Does the order of tokens reach the output", cost=5)
def positions(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """With the weights at `step`. `pairs`: the largest |f(px) - p f(x)| over the spread of scores, for each look-up by itself.

    Beside it, in the same unit: `replaced`, how far the scores move when the same places hold other tokens, and
    `noise`, how far when every weight moves by one unit in its last place.
    Next tokens are not asked about: their mask is a position signal. The encoder beside them is.
    """
    require_faithful(tape)
    # Dropout falls on places, so it tells them apart by itself: it is taken out.
    tape, step = as_of_now(patient, without_dropout(tape))
    structure = Structure(tape)
    found = find_ends(tape, structure)
    ends = [e for e in found if e.index.ndim == 2 and not e.contrastive]
    if not any(e.layout is not None for e in ends):
        raise nothing_beside_tokens(tape, found)
    asked = [(e, place) for e in ends if (place := place_of(structure, e, ends)) is not None]
    if not asked:
        raise NotApplicable("a next-token model: its causal mask already tells positions apart")
    if not structure.attentions:
        raise NotApplicable("the step has no attention, so order reaches the output another way")
    return {"pairs": [examine(tape, e, place) for e, place in asked[:3]], "step": step}


def place_of(structure: Structure, ends: Ends, all_ends: list[Ends]) -> Layout | None:
    """How to permute the tokens and read the scores; None where order is not asked about."""
    if ends.causal:
        return None
    partner = next((e for e in all_ends if e.causal and e.loss.op is ends.loss.op), None)
    if partner is None:
        return ends.layout
    # Beside next tokens: an encoder, if attention works on it before the next tokens come in. Its batch is theirs;
    # the scores, which lie by the next tokens' places, must not move at all.
    assert partner.layout is not None
    made, theirs = ends.tokens.op.outputs[0], partner.tokens.op.outputs[0]
    assert made is not None
    assert theirs is not None
    encodes = any(
        structure.depends(a.output, made) and not structure.depends(a.output, theirs)
        for a in structure.attentions
    )
    rows = partner.layout[1]
    if not encodes or rows not in ends.index.shape:
        return None
    return (1 if ends.index.shape[0] == rows else 0), rows, 0


def examine(tape: StepTape, ends: Ends, layout: Layout) -> dict[str, Any]:
    axis, rows, places = layout
    index = ends.index if axis == 1 else ends.index.T
    base = ends.scores(replay(tape, want=[ends.loss.logits])[ends.loss.logits]).float()
    spread = float(base.std(0).mean())
    if spread <= NOTHING * float(base.abs().mean()):
        raise NotPossible("the logits are the same for every input, so no token reaches them")

    def scores(index: Tensor) -> Tensor:
        same = twins(tape, ends.tokens, index if axis == 1 else index.T)
        made = replay(tape, indices=same, want=[ends.loss.logits])
        return ends.scores(made[ends.loss.logits]).float()

    def away(got: Tensor, expected: Tensor) -> float:
        return float((got - expected).abs().max()) / spread

    gaps = []
    for seed in range(PERMUTATIONS):
        order, fixed = permutation(index, seed)
        expected = base
        if places:
            grid = (
                base.reshape(rows, places, -1)
                if axis == 1
                else base.reshape(places, rows, -1).transpose(0, 1)
            )
            here = order[:, :places]
            moved = grid.gather(1, here.to(grid.device)[..., None].expand(-1, -1, grid.shape[-1]))
            expected = (moved if axis == 1 else moved.transpose(0, 1)).reshape(base.shape)
        gaps.append(away(scores(index.gather(1, order)), expected))
        if not fixed:
            break
    jittered = replay(tape, parameters=nudged(tape), want=[ends.loss.logits])
    return {
        "input": ends.tokens.weight or "frozen table",
        "line": ends.loss.line,
        "gap": max(gaps),
        "replaced": away(scores(replaced(index, order)), base),
        "noise": away(ends.scores(jittered[ends.loss.logits]).float(), base),
        # One answer for a whole row; beside next tokens it is an encoder.
        "pooled": places == 0 and ends.layout is not None and ends.layout[2] == 0,
        "spread": spread,
        "shift": None if ends.alignment is None else ends.alignment.shift,
    }


def replaced(index: Tensor, order: Tensor) -> Tensor:
    """Other tokens of the batch wherever the permutation puts a token."""
    present = torch.unique(index)
    others = present[(torch.searchsorted(present, index) + 1) % len(present)]
    return torch.where(order != torch.arange(index.shape[1]), others, index)


def permutation(index: Tensor, seed: int) -> tuple[Tensor, bool]:
    """A permutation of each row's places; a constant tail (padding) stays where it is."""
    generator = torch.Generator().manual_seed(seed)
    B, T = index.shape
    order = torch.arange(T).repeat(B, 1)
    tails = (index == index[:, -1:]).flip(1).int().cumprod(1).sum(1)
    # The longer tails say which token is the padding; then one of it at the end of a row is padding as well.
    long = index[tails >= 2, -1]
    padding = int(long.mode().values) if len(long) else None
    changed = False
    for row in range(B):
        tail = int(tails[row])
        padded = tail >= 2 or int(index[row, -1]) == padding
        length = T - tail if padded else T
        if length > 2:
            order[row, :length] = torch.randperm(length, generator=generator)
            changed = True
    if not changed:
        raise NotPossible("every row is a single repeated token")
    return order, changed
