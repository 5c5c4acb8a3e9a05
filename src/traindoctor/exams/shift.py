"""Exam: by how many places are targets shifted against the inputs, exactly, at the loss op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from traindoctor.exams.base import NotApplicable, exam
from traindoctor.replay.ends import Ends, find_ends

if TYPE_CHECKING:
    from traindoctor.replay.patient import Patient

SHOWN = 24


@exam(name="shift", title="Targets against inputs, place by place", cost=0.5)
def shift(patient: Patient) -> Mapping[str, Any]:
    """`pairs`: for each loss and each token look-up it hangs on the exact shift, or None. No replay needed."""
    assert patient.tape is not None
    ends = [e for e in find_ends(patient.tape) if e.has_classes]
    if not ends:
        raise NotApplicable("no loss with classes hangs on a look-up of tokens")
    return {"pairs": [describe(e) for e in ends], "losses": len({id(e.loss) for e in ends})}


def describe(ends: Ends) -> dict[str, Any]:
    found = ends.alignment
    loss = ends.loss
    row = {
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
        row["ragged"] = {"shifts": list(own.shifts), "compared": own.compared}
    return row


def first_row(ends: Ends) -> dict[str, list[int]]:
    """The first sequence, for people to read: its tokens, and the targets beside them."""
    targets = ends.loss.targets.cpu()
    if ends.layout is None:
        return {"first_inputs": ends.index.reshape(-1)[:SHOWN].tolist(), "first_targets": []}
    axis, rows, places = ends.layout
    tokens = ends.index[0] if axis == 1 else ends.index[:, 0]
    if not places:
        beside = targets[:1]
    else:
        beside = (
            targets.reshape(rows, places)[0] if axis == 1 else targets.reshape(places, rows)[:, 0]
        )
    return {"first_inputs": tokens[:SHOWN].tolist(), "first_targets": beside[:SHOWN].tolist()}
