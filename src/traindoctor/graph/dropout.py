"""A tape without its dropout: the same step as an evaluation would see it."""

import dataclasses
from typing import Any

from torch import Tensor

from traindoctor.tape.ops import Op
from traindoctor.tape.tape import StepTape

# (function, place of its dropout probability, its name)
PROBABILITIES = {
    "scaled_dot_product_attention": (4, "dropout_p"),
    "multi_head_attention_forward": (10, "dropout_p"),
}


def without_dropout(tape: StepTape) -> StepTape:
    """The same values elsewhere: parameters, data and constants are shared, nothing is copied."""
    return dataclasses.replace(tape, ops=[undropped(op) for op in tape.ops])


def undropped(op: Op) -> Op:
    if op.kind == "dropout":
        return dataclasses.replace(op, func=_as_it_is, rng=())
    if op.kind in PROBABILITIES:
        place, name = PROBABILITIES[op.kind]
        args, kwargs = list(op.args), dict(op.kwargs)
        if name in kwargs:
            kwargs[name] = 0.0
        elif len(args) > place:
            args[place] = 0.0
        return dataclasses.replace(op, args=tuple(args), kwargs=kwargs, rng=())
    return op


def _as_it_is(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
    # A new object: the tape knows the result by another Ref, and in-place dropout writes to its argument.
    return tensor.view_as(tensor)
