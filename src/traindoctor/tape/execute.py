"""Runs a tape again: other weights, other dtype, other tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.ground.modes import restored, set_random_state
from traindoctor.ground.no_communication import no_communication
from traindoctor.ground.quiet import quiet
from traindoctor.tape.ops import FunctionCall, Op, Ref, refs_in
from traindoctor.tape.runner import TapeRunner
from traindoctor.tape.tape import StepTape


@dataclass
class Replay:
    """Values of one run of a tape. `replay[ref]` for those that were wanted."""

    tape: StepTape
    roots: list[Tensor]
    leaves: dict[str, Tensor]
    values: dict[Ref, Tensor]
    _gradients: dict[str, Tensor | None] | None = field(default=None, repr=False)

    def __getitem__(self, ref: Ref) -> Tensor:
        return self.values[ref]

    @property
    def loss(self) -> Tensor:
        """The sum of the roots, each with the cotangent the script gave it."""
        return sum(self.roots[1:], start=self.roots[0])

    def gradients(self) -> dict[str, Tensor | None]:
        """By parameter; the passes are made one by one and added, as the script's were. None: not reached."""
        if self._gradients is None:
            self._gradients = gradients_of(self.roots, self.leaves)
        return self._gradients

    def gradients_of(self, value: Tensor) -> dict[str, Tensor | None]:
        """By parameter, of one wanted scalar. Call it before `gradients`, which frees the graph."""
        return gradients_of([value], self.leaves, keep=True)


def gradients_of(
    roots: Sequence[Tensor], leaves: Mapping[str, Tensor], *, keep: bool = False
) -> dict[str, Tensor | None]:
    total: dict[str, Tensor | None] = dict.fromkeys(leaves)
    tensors = list(leaves.values())
    reached = [root for root in roots if root.requires_grad]
    with quiet(), no_communication(), torch.enable_grad():
        for number, root in enumerate(reached):
            last = number == len(reached) - 1
            try:
                found = torch.autograd.grad(
                    root, tensors, retain_graph=keep or not last, allow_unused=True
                )
            except RuntimeError as error:
                raise ReplayError(f"the repeated step has no gradient: {error}") from error
            for name, gradient in zip(leaves, found):
                old = total[name]
                if gradient is not None:
                    total[name] = gradient if old is None else old + gradient
    return total


def replay(
    tape: StepTape,
    *,
    dtype: torch.dtype | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    substitute: Mapping[Ref, Tensor] | None = None,
    indices: Mapping[Op, Tensor] | None = None,
    batch: Sequence[Tensor] | Mapping[Ref, Tensor] | None = None,
    random: Mapping[str, Tensor] | None = None,
    look_through: bool | Collection[Op] = False,
    opaque_functions: bool = False,
    gradients: bool = False,
    want: Sequence[Ref] = (),
) -> Replay:
    """Runs the step again; see docs/architecture.md. Raises ReplayError where it cannot."""
    roots = [root.ref for root in tape.roots]
    if not roots or any(ref is None for ref in roots):
        raise ReplayError("backward was called on something computed outside of the step")
    ops = tape.needed([*(ref for ref in roots if ref is not None), *want])
    unknown = set(parameters or {}) - set(tape.parameters)
    if unknown:
        raise ReplayError(f"not part of the repeated step: {', '.join(sorted(unknown)[:3])}")
    runner = TapeRunner(
        tape,
        dtype=dtype,
        look_through=look_through,
        opaque=opaque_functions,
        gradients=gradients,
        substitute=substitute,
    )
    runner.indices = indices or {}
    if batch is not None:
        runner.put_batch(batch)
    runner.put_leaves(parameters or {})
    runner.own_random = random is None
    runner.early = tape.overwritten_predictions
    runner.overwritten_roots = overwritten_roots(tape)
    with quiet(), restored(), memory_kept(ops) if gradients else nullcontext():
        for device, state in (random or {}).items():
            set_random_state(device, state)
        kept = runner.run(ops, {*(ref for ref in roots if ref is not None), *want})
        made = []
        for root in tape.roots:
            assert root.ref is not None
            value = runner.roots.get(root.ref, kept[root.ref])
            if root.gradient is not None:
                value = (value * root.gradient).sum()
            made.append(value if value.dim() == 0 else value.sum())
    return Replay(tape, made, runner.leaves, {ref: kept[ref] for ref in want})


def replay_given(
    tape: StepTape, given: Mapping[Ref, Tensor], *want: Ref, gradients: bool = False
) -> Replay:
    """In float64: tensors of the batch are given to the replay, values made of them are put in their place."""
    of_batch = {ref: value for ref, value in given.items() if ref in tape.constants}
    made = {ref: value for ref, value in given.items() if ref not in tape.constants}
    return replay(
        tape,
        dtype=torch.float64,
        batch=of_batch,
        substitute=made,
        gradients=gradients,
        want=want,
    )


@contextmanager
def memory_kept(ops: Sequence[Op]) -> Iterator[None]:
    """A Function that writes over its own memory is differentiated all the same: what backward needs is copied."""
    if any(op.writes for op in ops if op.unit is not None):
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, lambda kept: kept):
            yield
    else:
        yield


def evaluate(tape: StepTape, ref: Ref) -> Tensor:
    """One value of the step as it was, without going on to the roots."""
    runner = TapeRunner(tape)
    runner.put_leaves({})
    runner.early = tape.overwritten_predictions
    with quiet(), restored():
        return runner.run(tape.needed([ref]), {ref})[ref]


def overwritten_roots(tape: StepTape) -> dict[int, Ref]:
    """What backward was called on, and a later op writes over (the mean over ranks, to be printed), by that op."""
    found: dict[int, Ref] = {}
    for root in tape.roots:
        assert root.ref is not None
        storage = tape.geometry[root.ref.index].storage
        for op in tape.ops[root.num_ops :]:
            if any(tape.geometry[ref.index].storage == storage for ref in op.writes):
                found[op.number] = root.ref
                break
    return found


def visit(
    tape: StepTape,
    look: Callable[[Op, Any, Sequence[Tensor]], bool],
    *,
    parameters: Mapping[str, Tensor] | None = None,
    batch: Mapping[Ref, Tensor] | None = None,
    substitute: Mapping[Ref, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Runs every op of the step, also those off the way to the loss, until `look(op, inputs, outputs)` is True."""
    runner = TapeRunner(tape, dtype=dtype, substitute=substitute)
    if batch is not None:
        runner.put_batch(batch)
    runner.put_leaves(parameters or {})
    runner.look = look
    with quiet(), restored():
        runner.run(tape.ops, set())


def values_before(tape: StepTape, call: FunctionCall) -> dict[Ref, Tensor]:
    """The tensors that a Function was called with, as they were then."""
    refs = set(refs_in((call.args, call.kwargs)))
    first = min(op.number for op in tape.ops if op.users_function is call)
    runner = TapeRunner(tape)
    runner.put_leaves({})
    with quiet(), restored():
        return runner.run([op for op in tape.needed(refs) if op.number < first], refs)


def arguments(tape: StepTape, op: Op) -> dict[Ref, Tensor]:
    """The tensors that an op was called with, as they were then."""
    refs = set(op.inputs)
    runner = TapeRunner(tape)
    runner.put_leaves({})
    with quiet(), restored():
        return runner.run([o for o in tape.needed(refs) if o.number < op.number], refs)


def part(
    tape: StepTape,
    ops: Sequence[Op],
    inputs: Mapping[Ref, Tensor],
    parameters: Mapping[str, Tensor],
    wanted: Sequence[Ref],
    *,
    dtype: torch.dtype,
) -> dict[Ref, Tensor]:
    """Some ops of the step by themselves, as the script runs them: each user Function is called as one op."""
    runner = TapeRunner(tape, dtype=dtype, opaque=True, gradients=torch.is_grad_enabled())
    runner.env.update((ref, value.clone()) for ref, value in inputs.items())
    runner.env.update((tape.parameters[name].ref, value) for name, value in parameters.items())
    with quiet(), restored():
        return runner.run(ops, set(wanted))


def look_inside(
    tape: StepTape,
    call: FunctionCall,
    values: Mapping[Ref, Tensor],
    *,
    dtype: torch.dtype | None = None,
) -> dict[Ref, Tensor]:
    """The forward of one Function, run op by op with autograd on: outputs by Ref."""
    runner = TapeRunner(tape, dtype=dtype, look_through=True, gradients=True)
    runner.put_leaves({})
    runner.env.update(values)
    ops = [op for op in tape.ops if op.users_function is call]
    with quiet(), restored():
        return runner.run(ops, set(call.outputs))
