"""Whether the scores that are compared with one target are those of one place, as the last layer made them.

The layer's values are exchanged for the number of their place, which rearrangements carry on to the loss.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.graph.origins import argument, depends_on, walk_back
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import CONVOLUTIONS, PRODUCTS, SOFTMAXES, TAKING_WEIGHTS
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape


@dataclass(frozen=True)
class Carried:
    """For each row of scores that the loss is given: the lowest and the highest number of the places they come from."""

    lowest: Tensor
    highest: Tensor
    places: list[int]
    """How many the layer has along each axis."""


def mixed_rows(tape: StepTape, given: Ref, classes: int) -> int | None:
    """Targets whose scores, along the axis `classes` of what the loss is given, come from several places."""
    found = carried(tape, given, classes)
    return None if found is None else int((found.highest > found.lowest).sum())


def mixed_frames(tape: StepTape, given: Ref) -> int | None:
    """Frames (T, B, classes) of an alignment that stand beside frames of another example."""
    found = carried(tape, given, -1)
    if found is None or len(found.places) != 2 or found.lowest.ndim != 2:
        return None
    frames, inner = found.lowest, found.places[1]
    # The examples are one of the layer's two axes, whichever.
    outer_apart, inner_apart = (
        (axis != axis[:1]).any(0)
        for axis in (frames.div(inner, rounding_mode="floor"), frames % inner)
    )
    torn = (found.highest > frames).any(0) | (outer_apart & inner_apart)
    return int(torn.sum()) * len(frames)


def carried(tape: StepTape, given: Ref, classes: int) -> Carried | None:
    """None where no layer gives each place one score per class."""
    made, op = list(walk_back(tape, given))[-1]
    axis = None if op is None else axis_of_classes(tape, op)
    size = tape.geometry[made.index].size
    if axis is None or len(size) < 2 or size[axis] != tape.geometry[given.index].size[classes]:
        return None
    places = [length for number, length in enumerate(size) if number != axis % len(size)]
    total = math.prod(places)
    device = next(iter(tape.parameters.values())).value.device
    numbers = torch.arange(total, dtype=torch.float32, device=device).view(places).unsqueeze(axis)
    first, second = (
        replay(tape, substitute={made: told.expand(size).contiguous()}, want=[given])[given]
        .detach()
        .movedim(classes, -1)
        for told in (numbers, numbers + total)
    )
    # What the script writes over them (the score of a class that may not be) is of no place.
    kept = second - first == total
    return Carried(
        torch.where(kept, first, torch.inf).amin(-1),
        torch.where(kept, first, -torch.inf).amax(-1),
        places,
    )


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
    weighs = op.kind in PRODUCTS | TAKING_WEIGHTS
    return -1 if weighs and any(of_weights(tape, ref) for ref in op.inputs) else None


def of_weights(tape: StepTape, ref: Ref) -> bool:
    passing = {leaf.ref for leaf in tape.parameters.values() if leaf.passing}
    behind = {ref, *(one for op in tape.needed([ref]) for one in op.inputs)}
    return depends_on(tape, ref) == PARAMETER and not passing & behind
