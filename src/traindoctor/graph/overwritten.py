"""Values that a backward pass needs and that are written over before it.

Autograd keeps the results of the forward pass. A write through `.data` (or a NumPy view) into one of them is not
noticed by it: the loss is that of the old values, the gradient is made of the new ones.
"""

from collections.abc import Mapping

from torch import Tensor

from traindoctor.tape.execute import replay
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape


def late_writes(tape: StepTape) -> list[Op]:
    """Writes, before the backward pass, into what the loss was made of, that the loss itself no longer sees."""

    def storage(ref: Ref) -> int:
        return tape.geometry[ref.index].storage

    way = tape.needed(root.ref for root in tape.roots if root.ref is not None)
    touched = {storage(ref) for op in way for ref in (*op.inputs, *op.outputs) if ref is not None}
    touched -= {storage(leaf.ref) for leaf in tape.parameters.values()}
    numbers = {op.number for op in way}
    return [
        op
        for op in tape.ops
        if op.number not in numbers
        and op.segment < len(tape.roots)
        and any(storage(ref) in touched for ref in op.writes)
    ]


def gradients_after(tape: StepTape, write: Op) -> Mapping[str, Tensor | None]:
    """The gradients of the step when this write is made as well."""
    return replay(tape, gradients=True, want=tuple(write.writes)).gradients()
