"""Losses on numbers written by hand: the square of a prediction less a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from traindoctor.replay.ops import DATA, PARAMETER, Op, Ref
from traindoctor.replay.origins import hangs_on, value_of
from traindoctor.replay.sites import LossSite

if TYPE_CHECKING:
    from traindoctor.replay.tape import StepTape

SQUARES = frozenset({"square", "pow", "__pow__", "square_", "pow_"})
BY_HAND = "squares_by_hand"
DIFFERENCES = frozenset({"sub", "__sub__", "__rsub__", "sub_", "__isub__", "subtract"})


def by_hand(tape: StepTape, op: Op) -> LossSite | None:
    """`(prediction - target) ** 2`, where the one hangs on parameters and the other on the batch alone."""
    if not _squares(op):
        return None
    made = tape.producer.get(op.inputs[0]) if op.inputs else None
    if made is None or made.name not in DIFFERENCES or len(made.inputs) != 2:
        return None
    predicted = [ref for ref in made.inputs if hangs_on(tape, ref) & PARAMETER]
    targets = [ref for ref in made.inputs if hangs_on(tape, ref) == DATA]
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
    if op.name.startswith("square"):
        return True
    exponent: Any = op.kwargs.get("exponent", op.args[1] if len(op.args) > 1 else None)
    return not isinstance(exponent, Ref) and exponent == 2
