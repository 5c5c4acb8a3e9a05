"""Where a value on a tape comes from: what it depends on, which values it is only another form of, what it is."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.tape.execute import evaluate
from traindoctor.tape.operators import RETRACED
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref, refs_in
from traindoctor.tape.tape import StepTape


def argument(op: Op, place: int | None, name: str, default: Any = None) -> Any:
    if name in op.kwargs:
        return op.kwargs[name]
    return op.args[place] if place is not None and len(op.args) > place else default


def index_tensors(op: Op) -> list[Ref]:
    return list(refs_in(op.args[1:]))


def depends_on(tape: StepTape, ref: Any) -> int:
    if not isinstance(ref, Ref):
        return 0
    if ref in tape.constants:
        return DATA if ref in tape.data_set else 0
    if tape.name_of(ref) is not None:
        return PARAMETER
    op = tape.producer.get(ref)
    made = op.depends_on if op is not None else 0
    return made | tape.written.get(ref, 0)


def learned(tape: StepTape, ref: Ref) -> bool:
    """A gradient flows through it: a target network's answer depends on parameters too, and gets none."""
    made = tape.producer.get(ref)
    inside = made is not None and made.function is not None  # where forward always runs without
    open_ = made is None or made.grad_enabled or inside
    return open_ and bool(depends_on(tape, ref) & PARAMETER)


def walk_back(tape: StepTape, ref: Ref) -> Iterator[tuple[Ref, Op | None]]:
    """The Ref and those it is a rearrangement of, each with the op that made it: an earlier one each time."""
    while True:
        op = tape.producer.get(ref)
        yield ref, op
        if op is None or not op.inputs:
            return
        sliced = op.kind == "index" and not index_tensors(op)
        if op.kind not in RETRACED and not sliced:
            return
        ref = op.inputs[0]


def value_of(tape: StepTape, ref: Ref) -> Tensor | None:
    constant = tape.constants.get(ref)
    if constant is not None:
        return constant
    try:
        return evaluate(tape, ref)
    except ReplayError:
        return None
