"""Whether the scores that are compared with one target are those of one place, as the last layer made them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from traindoctor.graph.origins import depends_on, walk_back
from traindoctor.graph.sites import LossSite
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import CONVOLUTIONS, PRODUCTS
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref

if TYPE_CHECKING:
    from traindoctor.tape.tape import StepTape


def mixed_rows(tape: StepTape, site: LossSite) -> int | None:
    """Targets whose scores come from several places; None where no layer gives each place one score per class.

    The layer's values are exchanged for the number of their place, which rearrangements carry on to the loss.
    """
    made, op = list(walk_back(tape, site.logits))[-1]
    axis = None if op is None else axis_of_classes(tape, op)
    size = tape.geometry[made.index].size
    if axis is None or len(size) < 2 or size[axis] != site.num_classes:
        return None
    places = [length for number, length in enumerate(size) if number != axis % len(size)]
    numbers = torch.arange(math.prod(places), dtype=torch.float32).view(places)
    told = numbers.to(site.targets.device).unsqueeze(axis).expand(size).contiguous()
    rows = site.rows(replay(tape, substitute={made: told}, want=[site.logits])[site.logits])
    return int((rows != rows[:, :1]).any(-1).sum())


def axis_of_classes(tape: StepTape, op: Op) -> int | None:
    """Of a layer's result, behind its bias; None where no weights made it (scores of all against all)."""
    if op.kind == "add":
        makers = [tape.producer.get(ref) for ref in op.inputs if depends_on(tape, ref) & DATA]
        return axis_of_classes(tape, makers[0]) if len(makers) == 1 and makers[0] else None
    if op.kind in CONVOLUTIONS:
        return 1
    weighs = op.kind in PRODUCTS and any(of_weights(tape, ref) for ref in op.inputs)
    return -1 if weighs or op.kind in ("linear", "addmm") else None


def of_weights(tape: StepTape, ref: Ref) -> bool:
    return depends_on(tape, ref) == PARAMETER
