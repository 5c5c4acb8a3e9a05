"""Exam: how sharp is attention, and by what number are its scores scaled?

Legend: d is the length of a query; scores q.k are customarily divided by sqrt(d).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotApplicable, NotPossible, exam_of_tape
from traindoctor.experiment.moved_weights import stirred
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import argument
from traindoctor.graph.structure import Attention, Structure
from traindoctor.tape.execute import replay
from traindoctor.tape.operators import MASKS, PASSING_ON, PRODUCTS
from traindoctor.tape.ops import Op, Ref
from traindoctor.tape.tape import StepTape

# Below this a score is masked, not merely small.
MASKED = -1e4
# Vectors whose lengths differ by less than this share of them were normalised (projections: 0.1 to 0.5).
ONE_LENGTH = 0.01
# Weights are moved by this share of their size to see whether a reach is learned. Fixed ones stay to the epsilon of the
# normalisation (0.01 and less), a learned temperature or gain takes them along by a fifth and more.
MOVED, LEARNED = 0.5, 0.1


@dataclass(frozen=True)
class Reading:
    """One attention's scores and how they were made."""

    scores: Tensor
    factor: float | None = None
    """On q.k; None where it is no number."""
    length: int | None = None
    """d"""
    spread: float | None = None
    """Standard deviation over mean of the lengths of queries and keys, the smaller of the two: 0 where one is normalised."""
    reach: float | None = None
    """The largest score that can be, where queries and keys are both normalised: their lengths times the factor."""


@exam_of_tape(
    name="attention_scores", title="Spread and scaling of attention scores", cost=3, first=True
)
def attention_scores(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`attentions`: std of scores, entropy over ln(keys), the factor applied to q.k and d.

    The first tape is read: later a healthy model may have sharpened its attention by itself.
    """
    structure = Structure(tape)
    if not structure.attentions:
        raise NotApplicable("the step has no attention: no softmax is multiplied with data")
    rows = []
    for attention in structure.attentions[:24]:
        reading = read(tape, structure, attention)
        if reading is None:
            continue
        row = describe(attention, reading)
        if reading.reach is not None:
            row["learned"] = is_learned(tape, structure, attention, reading.reach)
        rows.append(row)
    if not rows:
        raise NotPossible("no attention scores could be read")
    return {"attentions": rows, "step": tape.step}


def is_learned(tape: StepTape, structure: Structure, attention: Attention, length: float) -> bool:
    """Whether a reach of this length changes with the weights: a temperature that is learned, the gain of a norm.

    Every weight goes up or down by a share of its tensor's size; what is normalised behind it keeps its length.
    """
    try:
        other = read(tape, structure, attention, stirred(tape, MOVED))
    except (
        ReplayError
    ):  # with other weights the step takes another way: nothing can be said to be fixed
        return True
    return other is None or other.reach is None or abs(other.reach / length - 1) > LEARNED


def describe(attention: Attention, reading: Reading) -> dict[str, Any]:
    scores, factor, length = reading.scores, reading.factor, reading.length
    open_ = torch.isfinite(scores) & (scores > MASKED)
    weights = scores.masked_fill(~open_, -math.inf).softmax(-1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    choices = open_.sum(-1)
    several = choices > 1
    share = (entropy[several] / choices[several].float().log()) if several.any() else entropy[:0]
    return {
        "std": float(scores[open_].std()) if open_.sum() > 1 else 0.0,
        "entropy": float(share.mean()) if share.numel() else None,
        "open": float(open_.float().mean()),
        "rows_masked": float((choices == 0).float().mean()),
        "factor": factor,
        "length": length,
        # 1: divided by sqrt(d); sqrt(d): not divided; d: multiplied by it
        "scale": None if factor is None or not length else factor * math.sqrt(length),
        "spread": reading.spread,
        "reach": reading.reach,
        "keys": int(choices.max()) if choices.numel() else 0,
        "module": attention.op.module,
        "line": attention.op.line,
        "kind": attention.kind,
    }


def read(
    tape: StepTape,
    structure: Structure,
    attention: Attention,
    weights: Mapping[str, Tensor] | None = None,
) -> Reading | None:
    """`weights` in place of the step's own."""
    op = attention.op
    if attention.kind == "scaled_dot_product_attention":
        return read_sdpa(tape, structure, op, weights)
    if attention.kind == "multi_head_attention_forward":
        return read_mha(tape, op)
    source = argument(op, 0, "input")
    if not isinstance(source, Ref):
        return None
    factor, length, product = scale_of(structure, source)
    operands = [] if product is None else [r for r in product.operands if structure.of_data(r)]
    values = replay(tape, parameters=weights, want=[source, *operands])
    scores = values[source].detach().float()
    if product is None or length is None:
        return Reading(scores, factor, length)
    q, k = (values[ref].detach().float() for ref in operands)
    if product.kind == "einsum":
        dots = torch.einsum(product.args[0], q, k)
        axes = summed_axes(product) or (-1, -1)
        q, k = (x.movedim(axis, -1) for x, axis in zip((q, k), axes))
    else:
        dots, k = q @ k, k.mT
    after = None if dots.shape != scores.shape or factor is None else factor_between(dots, scores)
    return Reading(scores, factor, length, spread(q, k), reach(q, k, after))


def spread(q: Tensor, k: Tensor) -> float:
    """See Reading.spread; both with their vectors along the last axis."""
    lengths = (q.norm(dim=-1), k.norm(dim=-1))
    return min(float(x.std() / x.mean().clamp_min(1e-30)) for x in lengths)


def reach(q: Tensor, k: Tensor, factor: float | None) -> float | None:
    """See Reading.reach. `factor` is that on q.k after the product."""
    if factor is None or not (normalised(q) and normalised(k)):
        return None
    return abs(factor) * float(q.norm(dim=-1).mean() * k.norm(dim=-1).mean())


def normalised(x: Tensor) -> bool:
    """All vectors have one length, and point in different directions (a layer that starts at zero does neither)."""
    lengths = x.norm(dim=-1)
    mean = float(lengths.mean())
    if mean == 0 or float(lengths.std()) > ONE_LENGTH * mean:
        return False
    apart = (x - x.flatten(0, -2).mean(dim=0)).norm(dim=-1).mean()
    return float(apart) > ONE_LENGTH * mean


def factor_between(dots: Tensor, scores: Tensor) -> float:
    """By what number the products were multiplied on their way to the softmax, masked places left out."""
    open_ = torch.isfinite(scores) & (scores > MASKED)
    x, y = dots[open_].double(), scores[open_].double()
    return float((x * y).sum() / x.square().sum().clamp_min(1e-30))


def read_sdpa(
    tape: StepTape, structure: Structure, op: Op, weights: Mapping[str, Tensor] | None
) -> Reading:
    query, key = argument(op, 0, "query"), argument(op, 1, "key")
    mask, causal = argument(op, 3, "attn_mask"), argument(op, 5, "is_causal", False)
    want = [ref for ref in (query, key, mask) if isinstance(ref, Ref)]
    values = replay(tape, parameters=weights, want=want)
    q, k = values[query].detach().float(), values[key].detach().float()
    length = q.shape[-1]
    given = argument(op, 6, "scale")
    factor = float(given) if given is not None else length**-0.5
    if q.ndim == k.ndim == 4 and q.shape[1] != k.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores, varied, far = q @ k.mT * factor, spread(q, k), reach(q, k, factor)
    if isinstance(mask, Ref):
        m = values[mask]
        scores = scores.masked_fill(~m, -math.inf) if m.dtype == torch.bool else scores + m.float()
    if causal:
        shut = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(shut, -math.inf)
    for ref in (query, key):
        scaled, _ = walk_scale(structure, ref)
        factor *= scaled
    return Reading(scores, factor, length, varied, far)


def read_mha(tape: StepTape, op: Op) -> Reading | None:
    """The projections are made again: torch keeps the scores to itself."""
    query, key = argument(op, 0, "query"), argument(op, 1, "key")
    width, heads = argument(op, 3, "embed_dim_to_check"), argument(op, 4, "num_heads")
    weight, bias = argument(op, 5, "in_proj_weight"), argument(op, 6, "in_proj_bias")
    if not isinstance(weight, Ref):
        return None
    want = [ref for ref in (query, key, weight, bias) if isinstance(ref, Ref)]
    values = replay(tape, want=want)
    w = values[weight].detach().float()
    b = values[bias].detach().float() if isinstance(bias, Ref) else w.new_zeros(len(w))
    q = F.linear(values[query].detach().float(), w[:width], b[:width])  # (T, B, D)
    k = F.linear(values[key].detach().float(), w[width : 2 * width], b[width : 2 * width])
    length = width // heads

    def split(x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if x.ndim == 2 else x
        return x.reshape(*x.shape[:2], heads, length).permute(1, 2, 0, 3)  # (B, H, T, d)

    q, k = split(q), split(k)
    return Reading(q @ k.mT * length**-0.5, length**-0.5, length, spread(q, k))


def scale_of(structure: Structure, scores: Ref) -> tuple[float | None, int | None, Op | None]:
    """(factor between a query and its score, d, the product): on the way from q.k to the softmax, and before."""
    factor = 1.0
    ref = scores
    producer = structure.tape.producer
    for _ in range(24):
        op = producer.get(ref)
        if op is None:
            return None, None, None
        factor *= structure.factor_in_place(ref)
        if op.kind in PRODUCTS:
            operands = [r for r in op.inputs if structure.of_data(r)]
            if len(operands) != 2:
                return None, None, None
            for operand in operands:
                factor *= walk_scale(structure, operand)[0]
            alpha = op.kwargs.get("alpha", 1.0) if op.kind == "baddbmm" else 1.0
            return factor * float(alpha), contracted_length(structure, op), op
        number = structure.scalar_factor(op)
        if number is not None:
            factor *= number
        elif op.kind not in PASSING_ON | MASKS or op.reflected:
            return None, None, None  # a soft cap, a normalisation, a learned temperature
        above = [r for r in op.inputs if structure.of_data(r)]
        if not above:
            return None, None, None
        # A bias may depend on the data as well: the scores are the operand of the same shape made by a product.
        ref = max(above, key=lambda r: (structure.shape(r) == structure.shape(ref), r.index))
        if len(above) > 1:
            ref = next((r for r in above if leads_to_product(structure, r)), ref)
    return None, None, None


def leads_to_product(structure: Structure, ref: Ref) -> bool:
    return any(op.kind in PRODUCTS for _, op in structure.up(ref))


def walk_scale(structure: Structure, ref: Ref) -> tuple[float, Ref]:
    """Scalar factors on a query or key above the product, through views."""
    factor = 1.0
    producer = structure.tape.producer
    seen: set[Ref] = set()
    while ref in producer and ref not in seen:
        seen.add(ref)
        factor *= structure.factor_in_place(ref)
        op = producer[ref]
        number = structure.scalar_factor(op)
        if number is None and op.kind not in PASSING_ON:
            break
        factor *= 1.0 if number is None else number
        above = [r for r in op.inputs if structure.of_data(r)]
        if len(above) != 1:
            break
        ref = above[0]
    return factor, ref


def contracted_length(structure: Structure, op: Op) -> int | None:
    operands = [r for r in op.operands if structure.of_data(r)]
    if op.kind != "einsum":
        return structure.shape(operands[0])[-1]
    axes = summed_axes(op)
    return structure.shape(operands[0])[axes[0]] if axes else None


def summed_axes(op: Op) -> tuple[int, int] | None:
    """Of einsum's two operands: the axis of each, from behind, that it sums over; None where there is no such one."""
    equation = op.args[0]
    if not isinstance(equation, str) or "->" not in equation:
        return None
    left, right = equation.replace(" ", "").split("->")
    terms = left.split(",")
    if len(terms) != 2 or any(term.rfind("...") > 0 for term in terms):
        return None
    one, other = (term.replace("...", "") for term in terms)
    summed = [letter for letter in one if letter in other and letter not in right]
    if len(summed) != 1:
        return None
    return one.index(summed[0]) - len(one), other.index(summed[0]) - len(other)
