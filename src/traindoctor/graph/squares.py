"""Losses on numbers written by hand: the square of a prediction less a target, or how far they lie apart."""

import math

import torch

from traindoctor.graph.origins import argument, depends_on, learned, value_of
from traindoctor.graph.sites import LossSite
from traindoctor.tape.operators import COMPARING_NUMBERS
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref
from traindoctor.tape.tape import StepTape

BY_HAND = "squares_by_hand"


def by_hand(tape: StepTape, op: Op) -> LossSite | None:
    """`(prediction - target) ** 2`, or `.abs()` of it, where the one depends on parameters and the other on the batch alone."""
    if op.kind != "abs" and not _squares(op):
        return None
    made = tape.producer.get(op.inputs[0]) if op.inputs else None
    if made is None or made.kind != "sub" or len(made.inputs) != 2:
        return None
    predicted = [ref for ref in made.inputs if depends_on(tape, ref) & PARAMETER]
    targets = [ref for ref in made.inputs if depends_on(tape, ref) == DATA]
    if len(predicted) != 1 or len(targets) != 1:
        return None
    sizes = [tape.geometry[ref.index].size for ref in (predicted[0], targets[0])]
    value = value_of(tape, targets[0]) if sizes[0] == sizes[1] and sizes[0] else None
    if value is None or not value.is_floating_point():
        return None
    flat = value.detach().reshape(-1)
    return LossSite(
        op=op,
        kind=BY_HAND,
        logits=predicted[0],
        targets=flat,
        valid=torch.ones_like(flat, dtype=torch.bool),
        reduction="none",
        line=op.line,
        class_dim=None,
        num_classes=1,
        from_data=True,
        in_root=False,
    )


def _squares(op: Op) -> bool:
    """`pow` with the exponent 2; `square` has none."""
    exponent = 2 if op.kind == "square" else argument(op, 1, "exponent")
    return not isinstance(exponent, Ref) and exponent == 2 and not op.reflected


def compared_numbers(tape: StepTape) -> list[tuple[Op, bool]]:
    """Where predictions of the loss meet numbers that get no gradient, and whether each meets all of them: (N, 1) beside (N,).

    Two axes that were made on purpose have as many axes each; an accident of broadcasting has one more on one side.
    """
    roots = [root.ref for root in tape.roots if root.ref is not None]
    found = []
    for op in tape.needed(roots):
        if op.kind not in COMPARING_NUMBERS or len(op.inputs) < 2:
            continue
        refs = op.inputs[:2]
        if [learned(tape, ref) for ref in refs].count(True) != 1:
            continue
        one, other = (tape.geometry[ref.index].size for ref in refs)
        values = [[length for length in size if length != 1] for size in (one, other)]
        try:
            broad = math.prod(torch.broadcast_shapes(one, other)) > max(
                map(math.prod, (one, other))
            )
        except RuntimeError:
            continue  # not operands of one another
        found.append((op, broad and len(one) != len(other) and values[0] == values[1]))
    return found
