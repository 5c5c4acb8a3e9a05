"""Exam: every module alone, on its real inputs: is its gradient the derivative of what it computes?

The ops of a module are cut out of the tape and run in float64 with the inputs they had. Hand-written backward
passes are called as they are, so a wrong one shows in each module around it, and the innermost is named first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.exams.base import NotApplicable, exam
from traindoctor.numerics.finite_difference import directional_test, typical_size
from traindoctor.replay.execute import part
from traindoctor.replay.ops import PARAMETER, Op, Ref, refs_in
from traindoctor.replay.runner import CUTS
from traindoctor.replay.structure import meant_to_move

if TYPE_CHECKING:
    from traindoctor.replay.patient import Patient
    from traindoctor.replay.tape import StepTape

# The whole exam stays below so many seconds of this thread; what is left untested is said.
SECONDS = 60.0
# What is computed after the last module, and all modules together.
LOSS, MODEL = "(loss)", "(model)"
# Two directions find an error in any direction with certainty but for chance; the root exam takes four.
DIRECTIONS = 2
FAITHFUL = 1e-4


@dataclass(frozen=True)
class Section:
    """The ops of one call of a module, what goes in and what comes out."""

    module: str
    ops: tuple[Op, ...]
    entries: tuple[Ref, ...]
    parameters: tuple[str, ...]
    exits: tuple[Ref, ...]


@exam(name="layers_alone", title="Every module's gradient, alone", cost=400)
def layers_alone(patient: Patient) -> Mapping[str, Any]:
    """`layers`: per module outcome, difference, noise and pattern; innermost first, `untested` when time was up."""
    tape = patient.first_tape
    assert tape is not None
    if not tape.faithful <= FAITHFUL:
        raise NotApplicable(f"the unchanged replay differs from the step by {tape.faithful:.1e}")
    found = sections(tape)
    if not found:
        raise NotApplicable("the step calls no module with parameters or inputs of its own")
    deadline = time.thread_time() + SECONDS
    layers, untested = [], []
    for section in found:
        if time.thread_time() > deadline:
            untested.append(section.module)
            continue
        layers.append({"module": section.module, **examine(tape, section)})
    return {"layers": layers, "untested": untested, "step": tape.step}


def sections(tape: StepTape) -> list[Section]:
    """One per module of the first forward pass, the smallest first, and the loss."""
    roots = [root.ref for root in tape.roots[:1] if root.ref is not None]
    ops = [op for op in tape.needed(roots) if op.segment == 0]
    owned = [op for op in ops if op.module is not None]
    names: dict[str, None] = {}
    for op in owned:
        path = op.module or ""
        while path:
            names[path] = None
            path = path.rpartition(".")[0]
    found = [cut(tape, name, of_module(ops, name), ops) for name in names]
    if owned:
        found.append(cut(tape, MODEL, owned, ops))
        tail = [op for op in ops if op.number > owned[-1].number]
        found.append(cut(tape, LOSS, tail, ops))
    made = [section for section in found if section is not None]
    return sorted(made, key=lambda section: len(section.ops))


def of_module(ops: Sequence[Op], name: str) -> list[Op]:
    """The first call of the module: its ops up to the first one of somebody else."""
    inside = [
        op.module is not None and (op.module == name or op.module.startswith(name + "."))
        for op in ops
    ]
    first = inside.index(True)
    last = next((i for i in range(first, len(ops)) if not inside[i]), len(ops))
    return list(ops[first:last])


def cut(tape: StepTape, name: str, chosen: list[Op], ops: Sequence[Op]) -> Section | None:
    """None where nothing of it hangs on a parameter, or where it shares memory with what is around it."""
    made: set[Ref] = set()
    entries: dict[Ref, None] = {}
    parameters: dict[str, None] = {}
    for op in chosen:
        call = op.users_function
        outside = () if call is None else refs_in((call.args, call.kwargs))
        for ref in (*op.inputs, *outside):
            leaf = tape.name_of(ref)
            if leaf is not None:
                parameters[leaf] = None
            elif ref not in made and ref in tape.producer:
                entries[ref] = None
        made.update(ref for ref in op.outputs if ref is not None)
    numbers = {op.number for op in chosen}
    used = {ref for op in ops if op.number not in numbers for ref in op.inputs}
    used.update(root.ref for root in tape.roots if root.ref is not None)
    exits = [ref for ref in made if ref in used and tape.producer[ref].hangs_on & PARAMETER]
    written = {ref for op in chosen for ref in op.writes if ref not in made}
    if not exits or written or not (entries or parameters):
        return None
    exits.sort(key=lambda ref: ref.index)
    return Section(name, tuple(chosen), tuple(entries), tuple(parameters), tuple(exits))


def examine(tape: StepTape, section: Section) -> dict[str, Any]:
    if any(op.name in CUTS and op.users_function is None for op in section.ops):
        return undecided("it detaches values inside")
    try:
        given = tape.replay(want=section.entries) if section.entries else None
        live = [ref for ref in section.entries if given and given[ref].is_floating_point()]
        fixed = {ref: given[ref] for ref in section.entries if given and ref not in live}
        values = [given[ref].double() for ref in live] if given else []
        values += [tape.parameters[name].value.double() for name in section.parameters]
        function = outputs_of(tape, section, live, fixed, values)
        leaves = [value.detach().clone().requires_grad_() for value in values]
        with torch.enable_grad():
            total = function(*leaves)
        if not total.requires_grad:
            return undecided("no gradient passes it")
        claims = torch.autograd.grad(total, leaves, allow_unused=True)
        gradients = [torch.zeros_like(v) if g is None else g for g, v in zip(claims, values)]
        floor = 1e-3 * typical_size(gradients, values)
        test = directional_test(
            function, values, gradients=gradients, num_directions=DIRECTIONS, floor=floor
        )
    except (ReplayError, RuntimeError, TypeError) as error:
        return undecided(f"{type(error).__name__}: {error}")
    return {
        "outcome": test.outcome,
        "difference": test.difference,
        "noise": test.noise,
        "pattern": test.pattern,
        "line": section.ops[-1].nearest_line,
    }


def undecided(reason: str) -> dict[str, Any]:
    return {"outcome": "undecided", "difference": None, "noise": None, "pattern": reason}


def outputs_of(
    tape: StepTape,
    section: Section,
    live: Sequence[Ref],
    fixed: Mapping[Ref, Tensor],
    base: Sequence[Tensor],
) -> Callable[..., Tensor]:
    """<fixed random cotangent, outputs> as a function of the section's inputs and parameters."""
    generator = torch.Generator().manual_seed(0)
    cotangents: dict[Ref, Tensor] = {}
    masks = [*(None for _ in live), *(meant_to_move(tape, name) for name in section.parameters)]

    def function(*values: Tensor) -> Tensor:
        moved = [
            value if mask is None else here + mask * (value - here)
            for value, here, mask in zip(values, base, masks)
        ]
        inputs = {**fixed, **dict(zip(live, moved))}
        weights = dict(zip(section.parameters, moved[len(live) :]))
        made = part(tape, section.ops, inputs, weights, section.exits, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for ref in section.exits:
            out = made[ref]
            if out.is_floating_point():
                if ref not in cotangents:
                    cotangents[ref] = torch.randn(
                        out.shape, generator=generator, dtype=torch.float64
                    )
                total = total + (out * cotangents[ref].to(out.device)).sum()
        return total

    return function
