"""Exam: do attention weights sum to 1 over the axis that is contracted with the values?"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import argument
from traindoctor.graph.structure import Attention, Structure
from traindoctor.ground.nested import replace
from traindoctor.tape.execute import Replay, replay
from traindoctor.tape.operators import PASSING_ON
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# Rows within so many units in the last place of 1 are whole; where the rest of others went is followed entry by entry.
ROUNDINGS = 16


@exam_of_tape(name="softmax_axis", title="Attention weights sum to 1 over the keys", cost=2)
def softmax_axis(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`attentions`: per hand-written softmax the median of |sum - 1| before dropout.

    What a sink or a null key took is counted in: its weight belongs to the same softmax and is cut off before the
    product. torch's own attention functions cannot have the fault; they are counted in `built_in`.
    """
    structure = Structure(tape)
    if not structure.attentions and not structure.weighted_sums:
        raise NotApplicable("the step has no attention: no softmax is multiplied with data")
    by_hand = [a for a in structure.attentions if a.kind == "softmax"]
    built_in = len(structure.attentions) - len(by_hand)
    by_hand += structure.weighted_sums
    rows = [row for a in by_hand if (row := examine(tape, structure, a)) is not None]
    return {"attentions": rows, "built_in": built_in}


def examine(tape: StepTape, structure: Structure, attention: Attention) -> dict[str, Any] | None:
    axis = contracted_axis(structure, attention)
    softmax = attention.op.outputs[0]
    if axis is None or softmax is None:
        return None
    others = [ref for op in attention.path for ref in op.inputs]
    partners = factors_beside(tape, attention)
    replayed = replay(tape, want=[softmax, *others, *partners])
    start = replayed[softmax].detach()
    plain = follow(attention, start, replayed, keep=PASSING_ON)
    whole = follow(attention, start, replayed, keep=None)
    sums, noise = plain.float().sum(axis), float(torch.finfo(start.dtype).eps)
    off, off_at_product = gap(sums), gap(whole.float().sum(axis))
    if off is None or any(is_a_mean(replayed[one], plain.shape[axis]) for one in partners):
        return None
    if off > ROUNDINGS * noise:
        entries = torch.arange(start.numel(), device=start.device).reshape(start.shape)
        places = follow(attention, entries, replayed, keep=PASSING_ON)
        off = gap(sums + cut_off(start, softmax_dim(attention.op), places, axis))
    return {
        "off": off,
        # A mask laid on after the softmax, or weights normalised once more, change the sum.
        "off_at_product": off_at_product,
        "noise": noise,
        "module": attention.op.module,
        "line": attention.op.line,
        "dim": softmax_dim(attention.op),
        "after_softmax": [
            op.name for op in attention.path if op.kind not in PASSING_ON | {"dropout"}
        ],
    }


def factors_beside(tape: StepTape, attention: Attention) -> list[Ref]:
    """What the weights are multiplied with."""
    product = attention.product
    assert product is not None
    if attention.kind == "weighted sum":
        product = tape.producer[product.inputs[0]]
    return [ref for ref in product.inputs if ref != attention.weights]


def is_a_mean(other: Tensor, size: int) -> bool:
    """The other factor holds the weights of the mean: a mixture of distributions, each of them a softmax too."""
    other = other.detach().float()
    if not bool((other >= 0).all()):
        return False
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps
    axes = (axis for axis, length in enumerate(other.shape) if length == size)
    return any(bool(((other.sum(axis) - 1).abs() <= rounding).all()) for axis in axes)


def follow(
    attention: Attention, value: Tensor, replayed: Replay, *, keep: frozenset[str] | None
) -> Tensor:
    """The weights as they enter the product, without dropout; `keep` are the kinds of ops that are applied."""
    softmax = attention.op.outputs[0]
    assert softmax is not None
    current = {softmax: value}

    def read(ref: Ref) -> Tensor:
        return current.get(ref, replayed[ref]).detach()

    for op in attention.path:
        source = next(ref for ref in op.inputs if ref in current)
        made = op.outputs[0]
        assert made is not None
        applied = op.kind != "dropout" and (keep is None or op.kind in keep)
        result = apply(op, read) if applied else current[source]
        # The numbers of the entries are no weights: another dtype would only round them.
        rounds = result.is_floating_point() and not value.is_floating_point()
        current[made] = current[source] if rounds else result
    assert attention.weights is not None
    return current[attention.weights]


def cut_off(softmax: Tensor, dim: int | None, places: Tensor, axis: int) -> Tensor | float:
    """What the entries that never reach the product took of each sum's softmax: a sink, a null key, another block.

    `places` says which entry of the softmax stands where in the product. 0 where entries of several softmaxes are
    added up: nothing is owed to those.
    """
    if dim is None or softmax.ndim == 0:
        return 0.0
    used = torch.zeros(softmax.numel(), dtype=torch.bool, device=softmax.device)
    used[places.flatten()] = True
    taken = softmax.float().masked_fill(used.reshape(softmax.shape), 0.0).sum(dim, keepdim=True)
    groups = torch.arange(taken.numel(), device=softmax.device).reshape(taken.shape)
    groups = groups.expand_as(softmax).flatten()[places]
    first = groups.select(axis, 0)
    together = (groups == first.unsqueeze(axis)).all(axis)
    return taken.flatten()[first] * together


def gap(sums: Tensor) -> float | None:
    """Median of |sum - 1|: a row whose keys are all padding may sum to 0, a few of those do not matter."""
    off = (sums - 1).abs()
    off = off[torch.isfinite(off)]
    return float(off.median()) if off.numel() else None


def apply(op: Op, read: Callable[[Ref], Tensor]) -> Tensor:
    args = replace(op.args, Ref, lambda ref: read(ref).clone())
    kwargs = replace(op.kwargs, Ref, lambda ref: read(ref).clone())
    with torch.no_grad():
        result = op.func(*args, **kwargs)
    return result if isinstance(result, Tensor) else result[0]


def softmax_dim(op: Op) -> int | None:
    dim = argument(op, 1, "dim")
    return dim if isinstance(dim, int) else None


def contracted_axis(structure: Structure, attention: Attention) -> int | None:
    """The axis of the weights that the product sums over."""
    product, weights = attention.product, attention.weights
    assert product is not None
    assert weights is not None
    ndim = len(structure.shape(weights))
    if product.kind == "einsum":
        return einsum_axis(product, weights, ndim)
    if attention.kind == "weighted sum":
        return summed_axis(structure, product, weights)
    operands = [a for a in product.args if isinstance(a, Ref)]
    if product.kind == "baddbmm":
        operands = operands[1:]
    if product.reflected:
        operands.reverse()
    if len(operands) != 2 or ndim < 2:
        return None
    return -1 if operands[0] == weights else -2


def summed_axis(structure: Structure, summed: Op, weights: Ref) -> int | None:
    """The axis of the sum, counted from behind as broadcasting does; None where the weights do not have it."""
    source, dim = summed.inputs[0], argument(summed, 1, "dim")
    behind = dim if dim < 0 else dim - len(structure.shape(source))
    shape = structure.shape(weights)
    return behind if -behind <= len(shape) and shape[behind] > 1 else None


def einsum_axis(op: Op, weights: Ref, ndim: int) -> int | None:
    equation = op.args[0]
    if not isinstance(equation, str):
        return None
    operands = [a for a in op.args[1:] if isinstance(a, Ref)]
    if not operands and len(op.args) > 1 and isinstance(op.args[1], list | tuple):
        operands = [a for a in op.args[1] if isinstance(a, Ref)]
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != len(operands) or ("..." in left and ndim < 2):
        return None
    term = terms[operands.index(weights)]
    summed = [letter for letter in term.replace("...", "") if letter not in right]
    if len(summed) != 1:
        return None
    behind = term.replace("...", "")[::-1].index(summed[0])
    return -1 - behind if not term.endswith("...") else None
