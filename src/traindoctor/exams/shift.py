"""Exam: by how many places are targets shifted against the inputs, exactly, at the loss op.

Legend: B rows, T tokens of a row, P scores of a row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from traindoctor.errors import ReplayError
from traindoctor.exams.base import exam_of_tape, nothing_beside_tokens
from traindoctor.experiment.patient import Patient
from traindoctor.graph.alignment import exact_shift
from traindoctor.graph.ends import (
    ROUNDING,
    Ends,
    changed,
    chosen_row,
    find_ends,
    movement,
)
from traindoctor.graph.squares import compared_numbers
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import require_faithful
from traindoctor.tape.tape import StepTape

SHOWN = 24


@exam_of_tape(name="shift", title="Targets against inputs, place by place", cost=0.5)
def shift(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`outer`: losses on numbers that compare each prediction with the targets of all rows. `pairs`: for each loss and each token look-up it depends on the exact shift, or None.

    No replay is needed, but where something stands before the tokens: then `prefix` is how many places it takes.
    """
    found = find_ends(tape)
    ends = [e for e in found if e.has_classes]
    numbers = compared_numbers(tape)
    if not ends and not numbers:
        raise nothing_beside_tokens(tape, found)
    pairs = [describe(tape, e) for e in ends]
    return {
        "pairs": pairs,
        "losses": len({id(e.loss) for e in ends}),
        "numbers": len(numbers),
        "outer": [
            {
                "line": op.line or op.nearest_line,
                "rows": max(tape.geometry[op.inputs[0].index].size),
            }
            for op, crossed in numbers
            if crossed
        ],
    }


def describe(tape: StepTape, ends: Ends) -> dict[str, Any]:
    found = ends.alignment
    loss = ends.loss
    row: dict[str, Any] = {
        "input": ends.tokens.weight or "frozen table",
        "line": loss.line,
        "kind": loss.kind,
        "classes": loss.num_classes,
        "valid": int(loss.valid.sum()),
        "total": int(loss.valid.numel()),
        "contrastive": ends.contrastive,
        "shift": None,
        "places": None,
        "match": None,
        "runner_up": None,
        "compared": 0,
        "axis": None,
        "wrapped": False,
        "dealt": None,
        "ragged": None,
        "prefix": 0,
        **first_row(ends),
    }
    if found is not None:
        row |= {
            "shift": found.shift,
            "places": found.places,
            "match": found.match,
            "runner_up": found.runner_up,
            "compared": found.compared,
            "axis": found.axis,
            "wrapped": found.wrapped,
        }
    elif (rows := ends.dealt) is not None:
        row["dealt"] = {"shift": rows.shift, "moved": rows.moved, "compared": rows.compared}
    elif (own := ends.ragged) is not None:
        row["ragged"] = dataclasses.asdict(own) | {"shifts": list(own.shifts)}
    else:
        row |= behind_a_prefix(tape, ends)
    return row


def behind_a_prefix(tape: StepTape, ends: Ends) -> dict[str, Any]:
    """More scores than tokens in each row: a soft prompt or an image stands before the text.

    Targets lie at some distance from the tokens; so do the scores, which a changed token tells.
    """
    if ends.index.ndim != 2 or ends.num_rows % len(ends.index):
        return {}
    B, T = ends.index.shape
    P = ends.num_rows // B
    if P <= T or B * T == ends.num_rows:
        return {}
    y = ends.loss.targets.cpu().long().reshape(B, P).numpy()
    valid = ends.loss.valid.cpu().reshape(B, P).numpy()
    found = exact_shift(ends.index.numpy(), y, valid, range(-P + 1, T))
    if found is None:
        return {}
    distance, match, runner_up, compared = found
    try:
        row, begin, end = chosen_row(ends.index)
        middle = (begin + end) // 2
        base = replay(tape, want=(ends.loss.logits,))[ends.loss.logits]
        token = changed(ends.index, ends, row, range(middle, middle + 1))
        moved = movement(tape, ends, base, token).reshape(B, P)[row]
        require_faithful(tape)
    except ReplayError:
        return {}
    seen = (moved > ROUNDING * moved.max()).nonzero()
    if not len(seen):
        return {}
    prefix = int(seen[0]) - middle
    return {
        "shift": distance + prefix,
        "match": match,
        "runner_up": runner_up,
        "compared": compared,
        "axis": 1,
        "prefix": prefix,
    }


def first_row(ends: Ends) -> dict[str, list[int]]:
    """The first sequence, for people to read: its tokens, and the targets beside them."""
    targets = ends.loss.targets.cpu()
    if ends.layout is None:
        return {"first_inputs": ends.index.reshape(-1)[:SHOWN].tolist(), "first_targets": []}
    tokens, places = ends.inputs[0], ends.layout[2]
    beside = ends.grid(targets)[0] if places else targets[:1]
    return {"first_inputs": tokens[:SHOWN].tolist(), "first_targets": beside[:SHOWN].tolist()}
