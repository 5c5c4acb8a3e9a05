"""Exam: is the gradient that the optimizer gets the gradient of the loss that was computed?"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotPossible, exam, no_tape
from traindoctor.experiment.held_fixed import held_fixed
from traindoctor.experiment.patient import Patient
from traindoctor.graph.overwritten import gradients_after, late_writes
from traindoctor.tape.compare import compare_all
from traindoctor.tape.execute import replay
from traindoctor.tape.faithful import distance_from_step
from traindoctor.tape.ops import is_foreign
from traindoctor.tape.tape import StepTape

# The replay must be the step: bit for bit as a rule, rounding of fused kernels at most.
FAITHFUL = 1e-5
# Right gradients differ by 0 (80 of 88 runs) to 9e-7 in float32: about eight roundings.
ROUNDINGS = 8
# Above it the float64 gradient is asked how well the step is conditioned.
SUSPICIOUS = 1e-5
# A gradient is wrong that differs by more than this and by so many times its noise: wrong ones differ by 0.2 and more.
WRONG, TIMES_NOISE = 1e-4, 10.0
NUM_WORST = 5
# Such a gradient has next to nothing of its reference (cosine under 0.44): kept from another step 0.93 to 1; clipped, scaled 0 to 0.58.
TURNED = 0.9
# Each is tried by one more replay.
MOST_WRITES = 4


@exam(name="tape_gradient", title="Gradient against the replayed step's own", cost=3)
def tape_gradient(patient: Patient) -> Mapping[str, Any]:
    """`difference`: the largest over the taped steps, relative; `noise` beside it; details under `steps`."""
    steps, refusals = [], []
    for step in sorted(patient.tapes):
        try:
            steps.append(judge(patient.tapes[step]))
        except ReplayError as reason:
            refusals.append(f"step {step}: {reason}")
    if not steps:
        raise NotPossible("; ".join(refusals[:2])) if refusals else no_tape(patient)
    worst = max(steps, key=lambda item: item["difference"] / item["noise"])
    moving = held_fixed(patient.tapes[worst["step"]])
    return {
        **worst,
        "steps": steps,
        "last_step": steps[-1]["step"],
        "refusals": refusals,
        "held_fixed": moving,
    }


def judge(tape: StepTape) -> dict[str, Any]:
    if tape.gaps:
        raise ReplayError(tape.gaps[0])
    faithful = distance_from_step(tape)
    # Compiled code rounds in other places; how far its results lie apart was measured on this step.
    if not faithful <= max(FAITHFUL, 2 * (tape.compiled or 0.0)):
        raise ReplayError(
            f"the repeated step's loss is off by {faithful:.1e}, so part of the step was not "
            "captured"
        )
    if not math.isfinite(tape.loss):
        raise ReplayError("the loss is not finite")
    if not any(gradient is not None for gradient in tape.fresh.values()):
        raise ReplayError("no gradient was given")
    reference = replay(tape, gradients=True).gradients()
    whole, parts = compare_all(tape.fresh, reference)
    difference = max([whole, *(part.difference for part in parts)])
    noise = ROUNDINGS * rounding(tape)
    if difference > SUSPICIOUS:
        noise = max(noise, conditioning(tape, reference))
    limit = max(TIMES_NOISE * noise, WRONG)
    leftover, _ = compare_all(tape.given, tape.added)
    hooked = [name for name, leaf in tape.parameters.items() if leaf.hooked]
    return {
        "step": tape.step,
        "difference": difference,
        "whole": whole,
        "noise": noise,
        "faithful": faithful,
        "worst": [part.as_dict() for part in parts[:NUM_WORST]],
        "parameters": len(parts),
        "wrong": sum(part.difference > limit for part in parts),
        "factor": common_factor(parts),
        "leftover": leftover,
        "hooked": [*hooked, *dict.fromkeys(tape.hooked_values)],
        "turned": sum(part.residue >= TURNED for part in parts),
        "written_over": written_over(tape, limit) if difference > limit else None,
        "functions": sorted({call.name for call in tape.functions}),
        # Their own backward passes made the reference too: they must be tested from outside.
        "opaque": sorted(
            {call.name for call in tape.functions if call.escapes or call.joins_ranks}
            | {op.name for op in tape.ops if is_foreign(op)}
        ),
        "world_size": tape.world_size,
        "local": True,  # of this rank alone, also where .grad is a mean over ranks
    }


def written_over(tape: StepTape, limit: float) -> dict[str, Any] | None:
    """The write into a value of the forward pass with which the replay gives the very gradient of the script."""
    for write in late_writes(tape)[:MOST_WRITES]:
        try:
            whole, parts = compare_all(tape.fresh, gradients_after(tape, write))
        except ReplayError:
            continue
        difference = max([whole, *(part.difference for part in parts)])
        if difference <= limit:
            return {"op": write.name, "line": write.line, "difference": difference}
    return None


def rounding(tape: StepTape) -> float:
    """The coarsest spacing that the step computes in."""
    dtypes = {leaf.value.dtype for leaf in tape.parameters.values()}
    for op in tape.ops:
        if op.autocast is not None:
            dtypes |= {dtype for _, dtype in op.autocast[0]}
    return max(torch.finfo(dtype).eps for dtype in dtypes) if dtypes else 2.0**-23


def conditioning(tape: StepTape, reference: Mapping[str, torch.Tensor | None]) -> float:
    """How far the same gradient moves when it is computed in float64: what rounding can do in this step."""
    try:
        exact = replay(tape, dtype=torch.float64, gradients=True).gradients()
    except ReplayError:
        return 0.0
    whole, parts = compare_all(reference, exact)
    # The same ops round alike, so only their whole tells; a compiler moves each tensor on its own.
    moved = whole if tape.compiled is None else max([whole, *(p.difference for p in parts)])
    return 2 * moved if math.isfinite(moved) else 0.0


def common_factor(parts: list[Any]) -> float | None:
    """One factor for all tensors with a gradient worth the name, or None."""
    factors = [part.factor for part in parts if part.residue < 1e-3]
    telling = [part for part in parts if part.reference_norm > 0]
    if not factors or len(factors) < 0.8 * len(telling):
        return None
    middle = sorted(factors)[len(factors) // 2]
    close = [f for f in factors if abs(f - middle) < 1e-3 * abs(middle)]
    return middle if len(close) > 0.8 * len(factors) else None
