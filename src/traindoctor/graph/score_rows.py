"""Whether the scores that are compared with one target are those of one place, as the last layer made them.

The layer's values are exchanged for the number of their place, which rearrangements carry on to the loss.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from traindoctor.graph.origins import argument, depends_on, walk_back
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import CONVOLUTIONS, PRODUCTS, SOFTMAXES
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref

if TYPE_CHECKING:
    from traindoctor.tape.tape import StepTape


def mixed_rows(tape: StepTape, given: Ref, classes: int) -> int | None:
    """Targets whose scores, along the axis `classes` of what the loss is given, come from several places."""
    found = carried(tape, given, classes)
    return None if found is None else int((found[0] != found[0][..., :1]).any(-1).sum())


def mixed_frames(tape: StepTape, given: Ref) -> int | None:
    """Frames (T, B, classes) of an alignment that stand beside frames of another example."""
    found = carried(tape, given, -1)
    if found is None or len(found[1]) != 2 or found[0].ndim != 3:
        return None
    numbers, (_, inner) = found
    frames = numbers[..., 0]
    # The examples are one of the layer's two axes, whichever.
    apart = [
        (axis != axis[:1]).any(0)
        for axis in (frames.div(inner, rounding_mode="floor"), frames % inner)
    ]
    torn = (numbers != numbers[..., :1]).any(-1).any(0) | (apart[0] & apart[1])
    return int(torn.sum()) * len(frames)


def carried(tape: StepTape, given: Ref, classes: int) -> tuple[Tensor, list[int]] | None:
    """Of each score, in what the loss is given, the number of its place in the layer that made it; and how many places the
    layer has along each axis. None where no layer gives each place one score per class."""
    made, op = list(walk_back(tape, given))[-1]
    axis = None if op is None else axis_of_classes(tape, op)
    size = tape.geometry[made.index].size
    if axis is None or len(size) < 2 or size[axis] != tape.geometry[given.index].size[classes]:
        return None
    places = [length for number, length in enumerate(size) if number != axis % len(size)]
    numbers = torch.arange(math.prod(places), dtype=torch.float32).view(places)
    device = next(iter(tape.parameters.values())).value.device
    told = numbers.to(device).unsqueeze(axis).expand(size).contiguous()
    found = replay(tape, substitute={made: told}, want=[given])[given]
    return found.detach().movedim(classes, -1), places


def axis_of_classes(tape: StepTape, op: Op) -> int | None:
    """Of a layer's result, behind its bias, or of a softmax; None where no weights made it (scores of all against all)."""
    if op.kind in SOFTMAXES:
        dim = argument(op, 1, "dim")
        return dim if isinstance(dim, int) else None
    if op.kind == "add":
        makers = [tape.producer.get(ref) for ref in op.inputs if depends_on(tape, ref) & DATA]
        return axis_of_classes(tape, makers[0]) if len(makers) == 1 and makers[0] else None
    if op.kind in CONVOLUTIONS:
        return 1
    weighs = op.kind in PRODUCTS and any(of_weights(tape, ref) for ref in op.inputs)
    return -1 if weighs or op.kind in ("linear", "addmm") else None


def of_weights(tape: StepTape, ref: Ref) -> bool:
    return depends_on(tape, ref) == PARAMETER
