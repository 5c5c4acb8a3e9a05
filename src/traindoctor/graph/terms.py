"""What a loss is the sum of."""

import math

from traindoctor.tape.operators import SUMS, WEIGHTING_TERMS
from traindoctor.tape.ops import Ref
from traindoctor.tape.tape import StepTape


def terms_of(tape: StepTape, root: Ref) -> list[Ref]:
    """What is added up to the root, each with a factor that is no tensor; each once, however often it is added."""
    found, queue = [], [root]
    for ref in queue:
        op = tape.producer.get(ref)
        if op is not None and op.grad_enabled and scalar(tape, ref):
            tensors = [r for r in op.inputs if scalar(tape, r)]
            weighted = op.kind in WEIGHTING_TERMS and not op.reflected and len(op.inputs) == 1
            if op.kind in SUMS or weighted:
                queue += [ref for ref in tensors if ref not in queue]
                continue
        found.append(ref)
    return found


def scalar(tape: StepTape, ref: Ref) -> bool:
    return math.prod(tape.geometry[ref.index].size) == 1
