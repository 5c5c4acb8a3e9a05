"""Runs a tape again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.replay.dtypes import CASTS, cast, target
from traindoctor.replay.ops import FunctionCall, Op, Ref, is_float, refs_in, replace, tensors_in
from traindoctor.replay.quiet import quiet

if TYPE_CHECKING:
    from traindoctor.replay.sites import InputSite
    from traindoctor.replay.tape import StepTape

# They cut the graph; `look_through` makes copies of them that do not.
CUTS = frozenset({"detach", "detach_", "data"})


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
    with quiet(), torch.enable_grad():
        for number, root in enumerate(reached):
            last = number == len(reached) - 1
            try:
                found = torch.autograd.grad(
                    root, tensors, retain_graph=keep or not last, allow_unused=True
                )
            except RuntimeError as error:
                raise ReplayError(f"the replay has no gradient: {error}") from error
            for name, gradient in zip(leaves, found):
                old = total[name]
                if gradient is not None:
                    total[name] = gradient if old is None else old + gradient
    return total


def run(
    tape: StepTape,
    *,
    dtype: torch.dtype | None,
    parameters: Mapping[str, Tensor],
    substitute: Mapping[Ref, Tensor],
    indices: Mapping[InputSite, Tensor],
    batch: Sequence[Tensor] | Mapping[Ref, Tensor] | None,
    random: Mapping[str, Tensor] | None,
    look_through: bool,
    opaque_functions: bool,
    gradients: bool,
    want: Sequence[Ref],
) -> Replay:
    roots = [root.ref for root in tape.roots]
    if not roots or any(ref is None for ref in roots):
        raise ReplayError("backward was not called on anything that the tape has seen")
    ops = tape.needed([*(ref for ref in roots if ref is not None), *want])
    unknown = set(parameters) - set(tape.parameters)
    if unknown:
        raise ReplayError(f"not on the tape: {', '.join(sorted(unknown)[:3])}")
    runner = _Runner(tape, dtype, look_through, opaque_functions, gradients, dict(substitute))
    runner.indices = {site.op: index for site, index in indices.items()}
    if batch is not None:
        runner.put_batch(batch)
    runner.put_leaves(parameters)
    runner.own_random = random is None
    with quiet(), _restored():
        for device, state in (random or {}).items():
            set_random_state(device, state)
        kept = runner.run(ops, {*(ref for ref in roots if ref is not None), *want})
        made = []
        for root in tape.roots:
            assert root.ref is not None
            value = kept[root.ref]
            if root.gradient is not None:
                value = (value * root.gradient).sum()
            made.append(value if value.dim() == 0 else value.sum())
    return Replay(tape, made, runner.leaves, {ref: kept[ref] for ref in want})


def evaluate(tape: StepTape, ref: Ref) -> Tensor:
    """One value of the step as it was, without going on to the roots."""
    runner = _Runner(tape, None, False, False, False, {})
    runner.put_leaves({})
    with quiet(), _restored():
        return runner.run(tape.needed([ref]), {ref})[ref]


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
    runner = _Runner(tape, dtype, False, False, False, dict(substitute or {}))
    if batch is not None:
        runner.put_batch(batch)
    runner.put_leaves(parameters or {})
    runner.look = look
    with quiet(), _restored():
        runner.run(tape.ops, set())


def values_before(tape: StepTape, call: FunctionCall) -> dict[Ref, Tensor]:
    """The tensors that a Function was called with, as they were then."""
    refs = set(refs_in((call.args, call.kwargs)))
    first = min(op.number for op in tape.ops if op.users_function is call)
    runner = _Runner(tape, None, False, False, False, {})
    runner.put_leaves({})
    with quiet(), _restored():
        return runner.run([op for op in tape.needed(refs) if op.number < first], refs)


def look_inside(
    tape: StepTape,
    call: FunctionCall,
    values: Mapping[Ref, Tensor],
    *,
    dtype: torch.dtype | None = None,
) -> dict[Ref, Tensor]:
    """The forward of one Function, run op by op with autograd on: outputs by Ref."""
    runner = _Runner(tape, dtype, True, False, True, {})
    runner.put_leaves({})
    runner.env.update(values)
    ops = [op for op in tape.ops if op.users_function is call]
    with quiet(), _restored():
        return runner.run(ops, set(call.outputs))


class _Runner:
    """The state of one run."""

    def __init__(
        self,
        tape: StepTape,
        dtype: torch.dtype | None,
        look_through: bool,
        opaque: bool,
        gradients: bool,
        substitute: dict[Ref, Tensor],
    ) -> None:
        self.tape = tape
        self.dtype = dtype
        self.look_through = look_through
        self.opaque = opaque
        self.gradients = gradients
        self.substitute = substitute
        self.indices: dict[Op, Tensor] = {}
        self.look: Callable[[Op, Any, Sequence[Tensor]], bool] | None = None
        self.stopped = False
        self.own_random = True
        """Each op draws from the state it had; else all draw on from the one that was given."""
        self.leaves: dict[str, Tensor] = {}
        self.env: dict[Ref, Tensor] = {}
        self.called: dict[FunctionCall, Any] = {}
        self.autocast: tuple[Any, ...] | None = None
        self.segment = 0

    def put_leaves(self, parameters: Mapping[str, Tensor]) -> None:
        for name, leaf in self.tape.parameters.items():
            value = parameters.get(name, leaf.value).detach()
            if self.dtype is not None:
                value = cast(value, self.dtype)
            if self.gradients:
                value = value.detach().requires_grad_()
            self.leaves[name] = value
            self.env[leaf.ref] = value

    def put_batch(self, batch: Sequence[Tensor] | Mapping[Ref, Tensor]) -> None:
        if not isinstance(batch, Mapping):
            if len(batch) != len(self.tape.data):
                raise ReplayError(
                    f"the taped step used {len(self.tape.data)} tensors of data, {len(batch)} were given"
                )
            batch = dict(zip(self.tape.data, batch))
        for ref, value in batch.items():
            self.env[ref] = value.clone()

    def run(self, ops: Sequence[Op], wanted: set[Ref]) -> dict[Ref, Tensor]:
        last_use = {}
        for number, op in enumerate(ops):
            for ref in (*op.inputs, *op.outputs, *refs_in(_call_arguments(op))):
                last_use[ref] = number
        dying: dict[int, list[Ref]] = {}
        for ref, number in last_use.items():
            if ref not in wanted and self.tape.name_of(ref) is None:
                dying.setdefault(number, []).append(ref)
        for number, op in enumerate(ops):
            try:
                self.step(op)
            except ReplayError:
                raise
            except Exception as error:
                place = f" ({op.line})" if op.line else ""
                raise ReplayError(
                    f"{op.name}{place} cannot be run again: {type(error).__name__}: {error}"
                ) from error
            if self.stopped:
                return {}
            for ref in dying.get(number, ()):
                self.env.pop(ref, None)
        for ref in wanted:
            if ref not in self.env:
                self.env[ref] = self.value(ref)
        return {ref: self.env[ref] for ref in wanted}

    def value(self, ref: Ref) -> Tensor:
        found = self.env.get(ref)
        if found is None:
            constant = self.tape.constants.get(ref)
            if constant is None:
                raise ReplayError("a value of the step was made before the tape began")
            # A copy: ops may write into it.
            found = constant.clone(memory_format=torch.preserve_format)
            if self.dtype is not None:
                found = cast(found, self.dtype)
            self.env[ref] = found
        return found

    def step(self, op: Op) -> None:
        call = op.users_function
        if call is not None and (self.opaque or call.escapes) and call.outputs:
            self.call_function(call)
            if all(ref in call.outputs for ref in op.outputs):
                for ref in op.outputs:
                    if ref is not None:
                        self.env[ref] = self.called[call][call.outputs[ref]]
                return
        args = replace(op.args, Ref, self.value)
        kwargs = replace(op.kwargs, Ref, self.value)
        if op in self.indices:
            args, kwargs = _with_index(op, args, kwargs, self.indices[op])
        func = op.func
        if self.dtype is not None:
            func, args, kwargs = self.in_dtype(op, func, args, kwargs)
        self.set_modes(op)
        if op.name in CUTS and self.goes_through(op):
            result = args[0].view_as(args[0])
        elif op.name == "tensor" and self.goes_through(op):
            result = args[0].clone()
        else:
            result = func(*args, **kwargs)
        outputs = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if self.look is not None and not op.synthetic:
            self.stopped = self.look(op, (args, kwargs), outputs)
        for ref, value in zip(op.outputs, outputs):
            if ref is None:
                continue
            if self.dtype is not None and is_float(value):
                value = cast(value, self.dtype)
            self.env[ref] = self.substitute.get(ref, value)

    def goes_through(self, op: Op) -> bool:
        return self.look_through or op.users_function is not None

    def set_modes(self, op: Op) -> None:
        function = op.function
        if not self.gradients:
            enabled = False
        elif self.look_through:
            enabled = True
        elif function is not None:
            enabled = function.differentiable
        else:
            enabled = op.grad_enabled
        torch.set_grad_enabled(enabled)
        for device, state in op.rng if self.own_random else ():
            set_random_state(device, state)
        if self.dtype is None and not op.synthetic:
            self.set_autocast(op)

    def set_autocast(self, op: Op) -> None:
        if op.segment != self.segment or (self.autocast is not None and op.autocast is None):
            torch.clear_autocast_cache()
        self.segment = op.segment
        if op.autocast == self.autocast:
            return
        self.autocast = op.autocast
        on, cache = op.autocast if op.autocast is not None else ((), True)
        chosen = dict(on)
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, device in chosen)
            if device in chosen:
                torch.set_autocast_dtype(device, chosen[device])
        torch.set_autocast_cache_enabled(cache)

    def in_dtype(self, op: Op, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        dtype = self.dtype
        assert dtype is not None
        if op.name in CASTS and args and isinstance(args[0], Tensor) and is_float(args[0]):
            return Tensor.to, (args[0], dtype), {}
        if op.name == "type" and len(args) > 1:
            args = (args[0], _type_name(args[1]), *args[2:])
        change = lambda found: target(found, dtype)  # noqa: E731
        return func, replace(args, torch.dtype, change), replace(kwargs, torch.dtype, change)

    def call_function(self, call: FunctionCall) -> None:
        if call in self.called:
            return
        args = replace(call.args, Ref, self.value)
        kwargs = replace(call.kwargs, Ref, self.value)
        torch.set_grad_enabled(self.gradients and call.differentiable)
        result = call.cls.apply(*args, **kwargs)  # type: ignore[attr-defined]
        self.called[call] = result if isinstance(result, tuple | list) else (result,)


def set_random_state(device: str, state: Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _call_arguments(op: Op) -> Any:
    call = op.users_function
    return () if call is None else (call.args, call.kwargs)


def _with_index(op: Op, args: Any, kwargs: Any, index: Tensor) -> tuple[Any, Any]:
    """Other tokens at an embedding call, or other rows of a parameter."""

    def swap(value: Tensor) -> Tensor:
        integer = not is_float(value) and value.dtype != torch.bool
        return index.to(value) if integer and value.shape == index.shape else value

    return replace(args, Tensor, swap), replace(kwargs, Tensor, swap)


def _type_name(name: Any) -> Any:
    """`x.type('torch.FloatTensor')` names a dtype in the old way."""
    old = {"Float": torch.float32, "Double": torch.float64, "Half": torch.float16}
    if isinstance(name, str):
        for word, dtype in old.items():
            if name.endswith(f"{word}Tensor"):
                return dtype
    return name


@contextmanager
def _restored() -> Iterator[None]:
    """Random states, grad mode and autocast as they were."""
    grad = torch.is_grad_enabled()
    devices = ("cpu", "cuda")
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache = torch.is_autocast_cache_enabled()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=list(cuda)):
        torch.autocast_increment_nesting()
        for device in devices:
            torch.set_autocast_enabled(device, False)
        try:
            yield
        finally:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
            torch.set_grad_enabled(grad)
            for device, enabled, dtype in casts:
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            torch.set_autocast_cache_enabled(cache)
