"""Losses written by hand: a log-softmax, or logits and a log-sum-exp, from which targets are picked.

They are picked by gather, by indexing, or by a product with one-hot rows.
"""

import torch
from torch import Tensor

from traindoctor.graph.origins import argument, depends_on, index_tensors, value_of, walk_back
from traindoctor.graph.sites import LossSite
from traindoctor.tape.operators import AFTER_SOFTMAX, NORMALISING, SOFTMAXES, TO_MASK, TO_SOFTMAX
from traindoctor.tape.ops import DATA, PARAMETER, Op, Ref, refs_in
from traindoctor.tape.tape import StepTape

# Where `dim` stands among the arguments.
DIM = {"gather": 1, "take_along_dim": 2}


def picked_site(tape: StepTape, op: Op) -> LossSite | None:
    """gather(x, targets), x[arange, targets]: a loss if x is, or is normalised to, a distribution."""
    source = op.args[0] if op.args else None
    index = op.index
    picks = index_tensors(op) or list(refs_in(op.kwargs))
    if not isinstance(source, Ref) or index is None or not picks:
        return None
    if depends_on(tape, picks[-1]) & PARAMETER or tape.name_of(source) is not None:
        return None  # routing by the model's own choice, or a look-up in a table
    size = tape.geometry[source.index].size
    place = DIM.get(op.kind)
    if place is not None:
        dim = argument(op, place, "dim")
        if not isinstance(dim, int) or dim % len(size) != len(size) - 1:
            return None
        if index.dim() != len(size) or index.shape[-1] != 1:
            return None
    elif op.kind == "index":
        if len(size) < 2 or len(picks) < len(size):
            return None
    else:
        return None
    return _site_of(tape, op, source, index.reshape(-1), "gather", picks[-1])


def one_hot_site(tape: StepTape, op: Op) -> LossSite | None:
    """log-probabilities times one-hot rows."""
    refs = [ref for ref in op.args if isinstance(ref, Ref)]
    if len(refs) != 2:
        return None
    for source, other in (refs, refs[::-1]):
        for _, maker in walk_back(tape, other):
            if maker is not None and maker.kind == "one_hot" and maker.index is not None:
                index = maker.index.reshape(-1)
                return _site_of(tape, op, source, index, "one_hot", other)
    return None


def _site_of(
    tape: StepTape, op: Op, source: Ref, targets: Tensor, how: str, target_ref: Ref
) -> LossSite | None:
    classes = tape.geometry[source.index].size[-1]
    found = _normalised(tape, source, op)
    if found is None:
        return None
    kind, logits = found
    size = tape.geometry[logits.index].size
    fits = bool(size) and size[-1] == classes and _count(size) == len(targets) * classes
    if not fits:
        logits, size = source, tape.geometry[source.index].size
        if _count(size) != len(targets) * classes:
            return None
    return LossSite(
        op=op,
        kind=f"{kind}_{how}",
        logits=logits,
        targets=targets,
        valid=_valid_targets(tape, op, targets),
        reduction="none",
        line=op.line,
        class_dim=len(size) - 1,
        num_classes=classes,
        from_data=depends_on(tape, target_ref) & DATA != 0,
        in_root=False,
    )


def _normalised(tape: StepTape, source: Ref, pick: Op) -> tuple[str, Ref] | None:
    """What the picked values are: of a softmax's result, or of logits that are normalised beside the pick."""
    maker = _maker(tape, source)
    if maker is not None and maker.inputs:
        if maker.kind in SOFTMAXES:
            return maker.kind, maker.inputs[0]
        if maker.kind in AFTER_SOFTMAX:
            while maker is not None and maker.inputs and maker.kind in AFTER_SOFTMAX:
                maker = _maker(tape, maker.inputs[0])
            if maker is not None and maker.inputs and maker.kind == "softmax":
                return "softmax", maker.inputs[0]
        elif maker.kind == "sub" and len(maker.inputs) == 2:
            return "logsumexp", maker.operands[0]
        elif maker.kind == "div" and len(maker.inputs) == 2:
            return "probability", source  # exp(x) / sum exp(x), by hand: a distribution
    start = {tape.geometry[ref.index].storage for ref, _ in walk_back(tape, source)}
    reached = set(start)
    for later in tape.ops:
        if any(tape.geometry[ref.index].storage in reached for ref in later.inputs):
            if later.kind in NORMALISING:
                return "probability" if _exponentials(tape, source, pick) else "logsumexp", source
            if later.kind in TO_SOFTMAX and not later.reflected:
                reached |= {tape.geometry[r.index].storage for r in later.outputs if r is not None}
    return None


def _exponentials(tape: StepTape, source: Ref, pick: Op) -> bool:
    """The scores, or a copy of them, were written over before the pick: by their exponentials, or by a softmax."""
    storage = tape.geometry[source.index].storage
    return any(
        op.number < pick.number and op.kind in NORMALISING
        for op in tape.ops
        if any(tape.geometry[ref.index].storage == storage for ref in op.writes)
    )


def _maker(tape: StepTape, ref: Ref) -> Op | None:
    """The op behind all rearrangements of its result."""
    return [op for _, op in walk_back(tape, ref)][-1]


def _count(size: tuple[int, ...]) -> int:
    total = 1
    for length in size:
        total *= length
    return total


def _valid_targets(tape: StepTape, op: Op, targets: Tensor) -> Tensor:
    """Which picked values count: a mask of 0 and 1 from the data that multiplies or selects them later."""
    valid = targets >= 0
    reached = {ref for ref in op.outputs if ref is not None}
    for later in tape.ops[op.number + 1 :]:
        if not reached & set(later.inputs):
            continue
        masks = [r for r in later.inputs if depends_on(tape, r) == DATA and r not in reached]
        for mask in masks:
            size = tape.geometry[mask.index].size
            if _count(size) != len(targets):
                continue
            value = value_of(tape, mask)
            if value is not None and bool(((value == 0) | (value == 1)).all()):
                inverted = later.kind == "masked_fill"
                chosen = value.reshape(-1).to(torch.bool)
                return valid & (~chosen if inverted else chosen)
        if later.kind in TO_MASK:
            reached |= {ref for ref in later.outputs if ref is not None}
    return valid
