"""Exam: each autograd.Function of the user's, alone: is its backward the derivative of its forward?"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError, in_a_sentence
from traindoctor.exams.base import NotApplicable, exam_of_tape
from traindoctor.experiment.patient import Patient
from traindoctor.graph.origins import learned
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.numerics.finite_difference import directional_test
from traindoctor.tape.compare import Difference, compare
from traindoctor.tape.execute import arguments, look_inside, values_before
from traindoctor.tape.operators import CASTS, COMPARISONS, ROUNDING, SCALING, STEPS, SUMS
from traindoctor.tape.ops import FunctionCall, Op, Ref, is_foreign, refs_in
from traindoctor.tape.runner import apply_whole
from traindoctor.tape.tape import StepTape

# A Function called in every layer is one Function: so many different ones are tested, each once.
MAX_FUNCTIONS = 12
# Where values were clipped, such an estimator may pass nothing: so much of them it passes at least.
PASSED_ON = 0.5


@exam_of_tape(
    name="functions_alone", title="Each hand-written Function's backward", cost=2, first=True
)
def functions_alone(patient: Patient, tape: StepTape) -> Mapping[str, Any]:
    """`functions`: per Function name, line, difference, factor, pattern and by which test."""
    calls: dict[tuple[str, str | None], FunctionCall] = {}
    for call in tape.functions:
        calls.setdefault((call.name, call.line), call)
    foreign: dict[str, Op] = {}
    for op in tape.ops:
        if is_foreign(op) and op.users_function is None:
            foreign.setdefault(op.name, op)
    if not calls and not foreign:
        raise NotApplicable("the step calls no custom autograd.Function or operator")
    results = []
    for call in list(calls.values())[:MAX_FUNCTIONS]:
        try:
            results.append(examine(tape, call))
        except (ReplayError, RuntimeError, TypeError) as error:
            reason = _in_words(error)
            results.append({"name": call.name, "line": call.line, "test": "none", "reason": reason})
    for op in list(foreign.values())[:MAX_FUNCTIONS]:
        base = {"name": op.name, "line": op.nearest_line}
        try:
            results.append({**base, **operator_alone(tape, op)})
        except (ReplayError, RuntimeError, TypeError) as error:
            reason = _in_words(error)
            results.append({**base, "test": "none", "reason": reason})
    return {"functions": results}


def _in_words(error: Exception) -> str:
    """Refusals of ours are sentences already."""
    return str(error) if isinstance(error, ReplayError) else in_a_sentence(error)


def examine(tape: StepTape, call: FunctionCall) -> dict[str, Any]:
    values = values_before(tape, call)
    base = {"name": call.name, "line": call.line}
    if not call.outputs:
        return {**base, "test": "none", "reason": "no output of it takes part in a gradient"}
    live = [ref for ref in refs_in((call.args, call.kwargs)) if values[ref].is_floating_point()]
    if not live:
        return {**base, "test": "none", "reason": "it has no floating input"}
    # Nobody asks for the gradient of a table, a mask or a batch, nor of a codebook that is no parameter.
    live = [ref for ref in live if learned(tape, ref)] or live
    if call.escapes or not _sees_the_same(tape, call, values):
        return {
            **base,
            **_by_differences(lambda v: _apply(call, v), values, live, seed=call.number),
        }
    return {**base, **_by_tape(tape, call, values, live)}


def operator_alone(tape: StepTape, op: Op) -> dict[str, Any]:
    """A registered operator on its real inputs, from outside: torch sees neither forward nor backward."""
    values = {ref: value.detach().clone() for ref, value in arguments(tape, op).items()}
    live = [ref for ref, value in values.items() if value.is_floating_point()]
    if not live:
        return {"test": "none", "reason": "it has no floating input"}

    def apply(values: Mapping[Ref, Tensor]) -> tuple[Tensor, ...]:
        made = op.func(
            *replace(op.args, Ref, values.__getitem__),
            **replace(op.kwargs, Ref, values.__getitem__),
        )
        return tuple(tensors_in(made))

    return _by_differences(apply, values, live, seed=op.number)


def _apply(call: FunctionCall, values: Mapping[Ref, Tensor]) -> tuple[Tensor, ...]:
    args = replace(call.args, Ref, values.__getitem__)
    kwargs = replace(call.kwargs, Ref, values.__getitem__)
    with torch.enable_grad():
        return apply_whole(call, args, kwargs)


def _leaves(values: Mapping[Ref, Tensor], live: list[Ref]) -> dict[Ref, Tensor]:
    """Fresh leaves; a clone of each, since a forward may write to what it is given."""
    return {
        ref: value.detach().clone().requires_grad_() if ref in live else value.detach().clone()
        for ref, value in values.items()
    }


def _sees_the_same(tape: StepTape, call: FunctionCall, values: Mapping[Ref, Tensor]) -> bool:
    """Looking inside gives what the call gives: nothing was computed out of torch's sight."""
    inside = look_inside(tape, call, {ref: v.detach().clone() for ref, v in values.items()})
    outside = _apply(call, {ref: v.detach().clone() for ref, v in values.items()})
    for ref, place in call.outputs.items():
        a, b = inside[ref].detach().double(), outside[place].detach().double()
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
            return False
    return True


def _cotangents(call: FunctionCall, outputs: Mapping[Ref, Tensor]) -> dict[Ref, Tensor]:
    generator = torch.Generator().manual_seed(call.number)
    return {
        ref: torch.randn(out.shape, generator=generator).to(out)
        for ref, out in outputs.items()
        if out.requires_grad
    }


def _by_tape(
    tape: StepTape, call: FunctionCall, values: Mapping[Ref, Tensor], live: list[Ref]
) -> dict[str, Any]:
    reference, cotangents = _inside(tape, call, values, live)
    theirs = _leaves(values, live)
    outputs = _apply(call, {r: v.view_as(v) for r, v in theirs.items()})
    outside = {ref: outputs[place] for ref, place in call.outputs.items()}
    sent = cotangents or _cotangents(call, outside)
    given = _pull(outside, sent, theirs, live)
    parts = _compared(given, reference, live)
    # A derivative that is 0 everywhere (rounding, the nearest code) is replaced on purpose.
    real = [part for part in parts if part.reference_norm > 0]
    worst = _worst(real or parts)
    noise = 8 * max(torch.finfo(values[ref].dtype).eps for ref in live)
    inside = [op for op in tape.ops if op.users_function is call]
    kinds = {op.kind for op in inside}
    # A scale that is taken from what is rounded has a derivative: then the whole has one, and nobody means it.
    stepwise = jumps(inside) and _straight_through(given, sent)
    surrogate = worst is not None and (not real or stepwise)
    return {
        "test": "tape",
        "difference": 0.0 if worst is None else worst.difference,
        "noise": noise,
        "factor": None if worst is None or not worst.residue < 1e-3 else worst.factor,
        "pattern": "equal" if worst is None else worst.pattern,
        "inputs": [part.as_dict() for part in parts],
        "identity": _is_identity(values, live, outside),
        "surrogate": surrogate,
        "rounds": bool(kinds & ROUNDING),
    }


def _inside(
    tape: StepTape,
    call: FunctionCall,
    values: Mapping[Ref, Tensor],
    live: list[Ref],
) -> tuple[dict[Ref, Tensor | None], dict[Ref, Tensor]]:
    """The gradients of its forward by autograd, and the cotangents they were taken with."""
    mine = _leaves(values, live)
    # The views keep a Function that writes to its input from writing to a leaf.
    views = {r: v.view_as(v) for r, v in mine.items()}
    inside = look_inside(tape, call, views)
    cotangents = _cotangents(call, inside)
    return _pull(inside, cotangents, mine, live), cotangents


def _compared(
    given: Mapping[Ref, Tensor | None], reference: Mapping[Ref, Tensor | None], live: list[Ref]
) -> list[Difference]:
    parts = []
    for number, ref in enumerate(live):
        a, r = given[ref], reference[ref]
        if a is None and (r is None or not bool(r.any())):
            continue
        template = a if a is not None else r
        assert template is not None
        a = torch.zeros_like(template) if a is None else a
        r = torch.zeros_like(template) if r is None else r
        parts.append(compare(f"input {number}", a, r))
    return parts


def _worst(parts: list[Difference]) -> Difference | None:
    return max(
        parts,
        key=lambda p: p.difference if math.isfinite(p.difference) else 1e30,
        default=None,
    )


def jumps(ops: Sequence[Op]) -> bool:
    """A step function is part of it: of torch's, or a comparison that chooses between two numbers, or to which one is added.

    What is multiplied by a comparison, or cut off by it, need not jump: `x * (x > 0)`.
    """
    truths: set[Ref] = set()
    for op in ops:
        made = {ref for ref in op.outputs if ref is not None}
        if op.kind in COMPARISONS:
            truths |= made
        elif len(op.inputs) == 1 and op.inputs[0] in truths:
            if op.kind in SUMS or op.kind == "where":
                return True
            truths |= made if op.kind in CASTS | SCALING else set()
    return any(op.kind in STEPS for op in ops)


def _straight_through(given: Mapping[Ref, Tensor | None], sent: Mapping[Ref, Tensor]) -> bool:
    """One input gets the gradient of one output as it is, or nothing, place by place."""
    for gradient in given.values():
        for cotangent in sent.values():
            if gradient is None or gradient.shape != cotangent.shape:
                continue
            passed = gradient == cotangent
            if bool((passed | (gradient == 0)).all()) and float(passed.float().mean()) >= PASSED_ON:
                return True
    return False


def _pull(
    outputs: Mapping[Ref, Tensor],
    cotangents: Mapping[Ref, Tensor],
    leaves: Mapping[Ref, Tensor],
    live: list[Ref],
) -> dict[Ref, Tensor | None]:
    chosen = [ref for ref in cotangents if outputs[ref].requires_grad]
    if not chosen:
        return dict.fromkeys(live)
    found = torch.autograd.grad(
        [outputs[ref] for ref in chosen],
        [leaves[ref] for ref in live],
        [cotangents[ref] for ref in chosen],
        allow_unused=True,
    )
    return dict(zip(live, found))


def _is_identity(
    values: Mapping[Ref, Tensor], live: list[Ref], outputs: Mapping[Ref, Tensor]
) -> bool:
    """Forward gives its input back: a Function that only changes gradients does so on purpose."""
    return bool(outputs) and all(
        any(
            out.shape == values[ref].shape and torch.equal(out.detach(), values[ref])
            for ref in live
        )
        for out in outputs.values()
    )


def _by_differences(
    apply: Callable[[Mapping[Ref, Tensor]], tuple[Tensor, ...]],
    values: Mapping[Ref, Tensor],
    live: list[Ref],
    *,
    seed: int,
) -> dict[str, Any]:
    """What torch cannot see into is tested from outside, in its own precision: with other numbers of bytes, code that
    computes by addresses would write where it must not."""

    # An output may be None, or marked as one that has no gradient.
    chosen = [
        place
        for place, out in enumerate(apply(_leaves(values, live)))
        if isinstance(out, Tensor) and out.requires_grad
    ]
    if not chosen:
        return {"test": "none", "reason": "no output of it takes part in a gradient"}

    def function(*tensors: Tensor) -> Tensor:
        outputs = apply({**values, **dict(zip(live, tensors))})
        total = sum((outputs[place] * cotangent(outputs[place])).sum() for place in chosen)
        return total  # type: ignore[return-value]

    def cotangent(out: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(out.shape, generator=generator).to(out)

    inputs = [values[ref].detach() for ref in live]
    test = directional_test(function, inputs)
    return {
        "test": "finite differences",
        "outcome": test.outcome,
        "difference": test.difference,
        "noise": test.noise,
        "factor": test.factor,
        "pattern": test.pattern,
        "identity": False,
        "surrogate": False,
    }
