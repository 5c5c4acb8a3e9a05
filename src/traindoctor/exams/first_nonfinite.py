"""Exam: the first operation that makes a value that is not finite."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotApplicable, exam
from traindoctor.experiment.batches import sources_of
from traindoctor.experiment.crash import Crash
from traindoctor.experiment.patient import Patient
from traindoctor.ground.nested import tensors_in
from traindoctor.tape.execute import Replay, replay, visit
from traindoctor.tape.operators import WITH_INFINITY
from traindoctor.tape.ops import PARAMETER, Op, Ref, refs_in
from traindoctor.tape.tape import StepTape


@exam(name="first_nonfinite", title="Where the first non-finite value comes from", cost=4)
def first_nonfinite(patient: Patient) -> Mapping[str, Any]:
    """`op`, `line`, `module`, ranges of its inputs, and whether the weights were calm when it happened."""
    crash: Crash | None = getattr(patient, "crash", None)
    if crash is not None:
        return at_crash(patient, crash)
    for step in sorted(patient.tapes):
        tape = patient.tapes[step]
        if not math.isfinite(tape.loss):
            found = search(tape, {}, None)
            if found is not None:
                return {
                    **found,
                    "largest_weight_at_start": largest_at_start(patient),
                    "step": step,
                    "phase": "forward",
                    **weights(tape.parameters),
                }
    raise NotApplicable("loss and gradients are finite on every step looked at")


def at_crash(patient: Patient, crash: Crash) -> dict[str, Any]:
    base = {
        "step": crash.step,
        "phase": crash.phase,
        "weights_finite": crash.weights_finite,
        "largest_weight": crash.largest_weight,
        "largest_weight_at_start": largest_at_start(patient),
        "loss": crash.value,
    }
    if not crash.weights_finite:
        return {**base, "op": None, "reason": "the weights were already not finite"}
    reasons = []
    for step in sorted(patient.tapes, key=lambda s: abs(s - crash.step)):
        tape = patient.tapes[step]
        if set(tape.parameters) - set(crash.parameters):
            reasons.append("the weights at the crash were not kept")
            continue
        chosen = {name: crash.parameters[name] for name in tape.parameters}
        try:
            batch = data_of(patient, tape, crash)
            if crash.phase == "forward":
                found = search(tape, chosen, batch)
            else:
                found = search_backward(tape, chosen, batch)
        except ReplayError as reason:
            reasons.append(str(reason))
            continue
        if found is not None:
            return {**base, **found}
        reasons.append("the replay of the crash stayed finite")
    return {**base, "op": None, "reason": "; ".join(dict.fromkeys(reasons)) or "no step was taped"}


def data_of(patient: Patient, tape: StepTape, crash: Crash) -> dict[Ref, Tensor] | None:
    """The crash's batch for the tape's own; None for the tape's where it is of that very step."""
    if tape.step == crash.step:
        return None
    logs = getattr(patient.snapshot, "logs", {}) if patient.snapshot is not None else {}
    own = logs.get(tape.step)
    if own is None and not tape.sources and tape.step <= crash.step:
        raise ReplayError("the data of the step was not kept")
    batch = {}
    told = tape.sources or (sources_of(tape, own) if own is not None else {})
    for ref in tape.data:
        seen = [crash.log.data.get(source) for source in told.get(ref, ())]
        there = [part for part in seen if part is not None]
        value = torch.cat(there) if len(there) == len(seen) > 1 else next(iter(there), None)
        # What cannot be followed keeps the taped step's value: a non-finite result proves itself.
        if value is not None and value.shape == tape.constants[ref].shape:
            batch[ref] = value
    if batch:
        return batch
    if own is None and tape.step > crash.step:
        return (
            None  # its own batch: with the weights of the crash a non-finite result proves itself
        )
    raise ReplayError("the data could not be traced to the step that broke")


def largest_at_start(patient: Patient) -> float | None:
    tape = patient.first_tape
    return None if tape is None else weights(tape.parameters)["largest_weight"]


def weights(leaves: Mapping[str, Any]) -> dict[str, Any]:
    values = [leaf.value for leaf in leaves.values() if leaf.value.numel()]
    return {
        "weights_finite": all(bool(torch.isfinite(v).all()) for v in values),
        "largest_weight": max((float(v.abs().max()) for v in values), default=0.0),
    }


def search(
    tape: StepTape, parameters: Mapping[str, Tensor], batch: Mapping[Ref, Tensor] | None
) -> dict[str, Any] | None:
    """All ops in order; the first whose result is bad though what went in was not."""
    found: list[dict[str, Any]] = []

    def look(op: Op, inputs: Any, outputs: Sequence[Tensor]) -> bool:
        if not any(bad(op, output) for output in outputs):
            return False
        fed = [t for t in tensors_in(inputs) if t.is_floating_point()]
        if any(bool(torch.isnan(t).any()) for t in fed):
            return False  # it only passes on what it got
        infinite = any(bool(torch.isinf(t).any()) for t in fed)
        nan = any(bool(torch.isnan(o).any()) for o in outputs if o.is_floating_point())
        if infinite and not nan:
            return False
        if infinite and found:
            found.append({**describe(op, fed, outputs), "fed_by_infinity": True})
            return True
        found.append({**describe(op, fed, outputs), "fed_by_infinity": infinite})
        found[-1]["chain"] = chain(tape, op)
        return nan

    visit(tape, look, parameters=parameters, batch=batch)
    if not found:
        return None
    nan_at = next((i for i, item in enumerate(found) if item["nan"]), None)
    return {**found[0], "then": found[nan_at]["op"] if nan_at else None}


def bad(op: Op, output: Tensor) -> bool:
    """NaN always; +inf always; -inf only from arithmetic, never from fills and additions of masks."""
    if not output.is_floating_point() or output.numel() == 0:
        return False
    if bool(torch.isfinite(output).all()):
        return False
    return bool(torch.isnan(output).any()) or op.kind not in WITH_INFINITY


def chain(tape: StepTape, op: Op, length: int = 6) -> list[str]:
    """Names of the ops that made the first input, the nearest first."""
    names: list[str] = []
    seen: Op | None = op
    while seen is not None and len(names) < length:
        live = [ref for ref in seen.inputs if ref in tape.producer]
        seen = tape.producer[live[0]] if live and tape.producer[live[0]] is not seen else None
        if seen is not None:
            names.append(seen.name)
    return names


def describe(op: Op, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Any]:
    floats = [o for o in outputs if o.is_floating_point()]
    return {
        "op": op.name,
        "line": op.line,
        "package_line": op.package_line,
        "module": op.module,
        "function": op.users_function.name if op.users_function else None,
        "dtype": str(floats[0].dtype).removeprefix("torch.") if floats else None,
        "inputs": [extent(t) for t in inputs[:4]],
        "nan": any(bool(torch.isnan(o).any()) for o in floats),
        "count": sum(int((~torch.isfinite(o)).sum()) for o in floats),
        "of": sum(o.numel() for o in floats),
    }


def extent(tensor: Tensor) -> dict[str, Any]:
    finite = tensor.detach()[torch.isfinite(tensor.detach())].double()
    return {
        "shape": list(tensor.shape),
        "min": float(finite.min()) if finite.numel() else None,
        "max": float(finite.max()) if finite.numel() else None,
        "smallest": float(finite.abs().min()) if finite.numel() else None,
        "infinite": int(torch.isinf(tensor).sum()),
    }


def search_backward(
    tape: StepTape, parameters: Mapping[str, Tensor], batch: Mapping[Ref, Tensor] | None
) -> dict[str, Any] | None:
    """The op whose backward turns a finite gradient into one that is not."""
    roots = [root.ref for root in tape.roots if root.ref is not None]
    ops = [op for op in tape.needed(roots) if op.depends_on & PARAMETER and not op.synthetic]
    refs = list(dict.fromkeys(r for op in ops for r in (*op.outputs, *op.inputs) if r is not None))
    spoiled = spoiled_gradients(
        replay(tape, parameters=parameters, batch=batch, gradients=True, want=refs), refs
    )

    def broken(ref: Ref | None) -> bool:
        return spoiled.get(ref, 0) > 0 if ref is not None else False

    users = Counter(ref for op in ops for ref in set(refs_in((op.args, op.kwargs))))
    candidates = []
    for op in reversed(ops):
        if any(broken(ref) for ref in op.outputs):
            continue
        passed_on = [ref for ref in refs_in((op.args, op.kwargs)) if broken(ref)]
        if passed_on:
            candidates.append((op, any(users[ref] == 1 for ref in passed_on)))
    if not candidates:
        return None
    # A value that several ops use has the sum of their gradients, and any of them may have spoiled it: an op that
    # is the only user of a spoiled value comes first.
    op = next((op for op, alone in candidates if alone), candidates[0][0])
    made = [ref for ref in op.outputs if ref is not None]
    values = replay(tape, parameters=parameters, batch=batch, want=[*op.inputs, *made])
    fed = [values[ref] for ref in op.inputs if values[ref].is_floating_point()]
    outputs = [values[ref] for ref in made]
    known = {"fed_by_infinity": False, "then": None, "chain": chain(tape, op)}
    count = sum(spoiled.get(ref, 0) for ref in set(op.inputs))
    return {**describe(op, fed, outputs), **known, "count": count}


def spoiled_gradients(replayed: Replay, refs: Sequence[Ref]) -> dict[Ref, int]:
    """How many entries of each value's gradient are not finite. They are counted as they pass, and not kept."""
    found: Counter[Ref] = Counter()

    def listener(ref: Ref) -> Callable[[Tensor], None]:
        def arrived(gradient: Tensor) -> None:
            found[ref] += int((~torch.isfinite(gradient)).sum())

        return arrived

    leaves = []
    for ref in refs:
        value = replayed[ref]
        if value.requires_grad and value.is_leaf:
            leaves.append(ref)
        elif value.requires_grad:
            value.register_hook(listener(ref))
    for root in replayed.roots:
        given = torch.autograd.grad(
            root, [replayed[ref] for ref in leaves], retain_graph=True, allow_unused=True
        )
        for ref, gradient in zip(leaves, given):
            if gradient is not None:
                listener(ref)(gradient)
    return found
