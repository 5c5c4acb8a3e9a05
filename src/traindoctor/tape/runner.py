"""The state of one run of a tape: values by Ref, and each op executed in the mode it had."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError, in_a_sentence
from traindoctor.ground import exchange, side_effects
from traindoctor.ground.collective import Handing, same
from traindoctor.ground.device_asserts import refuse_hidden_state, refuse_what_would_assert
from traindoctor.ground.modes import Autocast, set_autocast_state, set_random_state
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.ground.no_communication import no_communication
from traindoctor.ground.torch_private import uses_cuda
from traindoctor.tape.dtypes import cast, target
from traindoctor.tape.operators import CASTS
from traindoctor.tape.ops import FunctionCall, Op, Ref, is_float, op_name, refs_in
from traindoctor.tape.tape import StepTape

# Calls by which a Function gives away where a tensor lies in memory.
BY_ADDRESS = frozenset({"data_ptr", "__dlpack__", "untyped_storage", "storage"})


class TapeRunner:
    """`put_leaves`, `put_batch`, then `run(ops, wanted)`. Call it under `quiet` and `restored`."""

    def __init__(
        self,
        tape: StepTape,
        *,
        dtype: torch.dtype | None = None,
        look_through: bool | Collection[Op] = False,
        opaque: bool = False,
        gradients: bool = False,
        substitute: Mapping[Ref, Tensor] | None = None,
    ) -> None:
        self.tape = tape
        self.dtype = dtype
        self.look_through = look_through
        through = () if isinstance(look_through, bool) else look_through
        self._written_through = {ref for op in through for ref in op.writes}
        self.opaque = opaque
        self.asked = gradients
        """Gradients are wanted of what is run."""
        self.gradients = gradients or bool(tape.differentiated)
        self.substitute = substitute or {}
        self.indices: Mapping[Op, Tensor] = {}
        """Other tokens at the calls that look them up."""
        self.changed = bool(substitute) or dtype is not None or bool(look_through)
        """Some value may be another one than in the script's step."""
        self.look: Callable[[Op, Any, Sequence[Tensor]], bool] | None = None
        self.stopped = False
        self.early: Mapping[int, Ref] = {}
        """Values that are wanted as they were before the op of that number, and are written over later."""
        self.overwritten_roots: Mapping[int, Ref] = {}
        """What backward was called on, by the number of the later op that writes over it."""
        self.roots: dict[Ref, Tensor] = {}
        """Their values before that."""
        self.own_random = True
        """Each op draws from the state it had; else all draw on from the one that was given."""
        self.leaves: dict[str, Tensor] = {}
        self.env: dict[Ref, Tensor] = {}
        self.called: dict[FunctionCall, Any] = {}
        self.autocast: Autocast | None = None
        self.segment = 0

    def put_leaves(self, parameters: Mapping[str, Tensor]) -> None:
        self.changed = self.changed or bool(parameters)
        for name, leaf in self.tape.parameters.items():
            value = parameters.get(name, leaf.value).detach()
            if self.dtype is not None:
                value = cast(value, self.dtype)
            # Also where no gradient is asked for: torch multiplies by a weight that wants one in another order.
            value = value.detach().requires_grad_(
                leaf.value.is_floating_point() or leaf.value.is_complex()
            )
            self.leaves[name] = value
            self.env[leaf.ref] = value

    def put_batch(self, batch: Sequence[Tensor] | Mapping[Ref, Tensor]) -> None:
        if not isinstance(batch, Mapping):
            if len(batch) != len(self.tape.data):
                raise ReplayError(
                    f"the step used {len(self.tape.data)} data tensors, {len(batch)} were given"
                )
            batch = dict(zip(self.tape.data, batch))
        if self.tape.conditional and any(not self._as_taped(r, v) for r, v in batch.items()):
            raise ReplayError(
                "the step combines results of several ranks, and those of the others belong to "
                "another batch"
            )
        self.changed = True
        for ref, value in batch.items():
            self.env[ref] = self.differentiable(ref, value.clone())

    def _as_taped(self, ref: Ref, value: Tensor) -> bool:
        taped = self.tape.constants.get(ref)
        return taped is not None and same(value, taped)

    def run(self, ops: Sequence[Op], wanted: set[Ref]) -> dict[Ref, Tensor]:
        """The wanted values. Nothing of it communicates: collectives are handed out."""
        with no_communication():
            return self._run(ops, wanted)

    def _run(self, ops: Sequence[Op], wanted: set[Ref]) -> dict[Ref, Tensor]:
        last_use = {}
        kept: dict[Ref, Tensor] = {}
        moments = sorted(self.early, reverse=True)
        for number, op in enumerate(ops):
            for ref in (*op.inputs, *op.outputs, *refs_in(_call_arguments(op))):
                last_use[ref] = number
        dying: dict[int, list[Ref]] = {}
        for ref, number in last_use.items():
            if ref is not None and ref not in wanted and self.tape.name_of(ref) is None:
                dying.setdefault(number, []).append(ref)
        for number, op in enumerate(ops):
            while moments and op.number >= moments[-1]:
                ref = self.early[moments.pop()]
                if ref in wanted:
                    kept[ref] = self.value(ref).clone()
            if op.number in self.overwritten_roots:
                ref = self.overwritten_roots[op.number]
                torch.set_grad_enabled(self.gradients)
                self.roots[ref] = self.value(ref).clone()
            try:
                self.step(op)
            except ReplayError:
                raise
            except Exception as error:
                place = f" ({op.line})" if op.line else ""
                raise ReplayError(
                    f"{op.name}{place} cannot be repeated: {in_a_sentence(error)}"
                ) from error
            if self.stopped:
                return {}
            for ref in dying.get(number, ()):
                self.env.pop(ref, None)
        for ref in wanted:
            if ref not in self.env:
                self.env[ref] = self.value(ref)
        found = {ref: self.env[ref] for ref in wanted} | kept
        if self.asked or not self.gradients:
            return found
        return {ref: value.detach() for ref, value in found.items()}

    def value(self, ref: Ref) -> Tensor:
        found = self.env.get(ref)
        if found is None:
            constant = self.tape.constants.get(ref)
            if constant is None:
                raise ReplayError("a value used in the step was computed before watching began")
            # A copy: ops may write into it.
            found = constant.clone(memory_format=torch.preserve_format)
            if self.dtype is not None:
                found = cast(found, self.dtype)
            found = self.env[ref] = self.differentiable(ref, found)
        return found

    def differentiable(self, ref: Ref, value: Tensor) -> Tensor:
        """Places at which the step itself asks for a slope."""
        if ref not in self.tape.differentiated or value.requires_grad:
            return value
        return value.detach().requires_grad_()

    def step(self, op: Op) -> None:
        call = op.unit
        if call is not None and call.outputs and self.runs_whole(call):
            self.call_function(call)
            if all(ref in call.outputs for ref in op.outputs):
                for ref in op.outputs:
                    if ref is not None:
                        self.env[ref] = self.called[call][call.outputs[ref]]
                return
        args = replace(op.args, Ref, self.value)
        kwargs = replace(op.kwargs, Ref, self.value)
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": kwargs["generator"].clone_state()}
        if op in self.indices:
            args, kwargs = _with_index(op, args, kwargs, self.indices[op])
        func = op.func
        if self.dtype is not None:
            func, args, kwargs = self.in_dtype(op, func, args, kwargs)
        self.set_modes(op)
        if op.kind == "detach" and self.goes_through(op):
            result = args[0].view_as(args[0])
        elif op.kind == "tensor" and self.goes_through(op):
            result = args[0].clone()
        else:
            self.refuse_harm(op, args, kwargs)
            result = self.call(func, args, kwargs)
        outputs = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if self.look is not None and not op.synthetic:
            self.stopped = self.look(op, (args, kwargs), outputs)
        for ref, value in zip(op.outputs, outputs):
            if ref is None:
                continue
            if self.dtype is not None and is_float(value):
                value = cast(value, self.dtype)
            self.env[ref] = self.differentiable(ref, self.substitute.get(ref, value))

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A result that is written into memory of the step is copied there: `out=` knows no gradients."""
        place = kwargs.get("out")
        if not isinstance(place, Tensor) or not torch.is_grad_enabled():
            return self.call_in_a_dtype_it_knows(func, args, kwargs)
        return place.copy_(func(*args, **{k: v for k, v in kwargs.items() if k != "out"}))

    def call_in_a_dtype_it_knows(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Some functions (a grouped product) know no float64: they are run in float32, the rest stays as it is."""
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            if self.dtype != torch.float64 or op_name(func).endswith("_"):
                raise
            down = partial(cast_from, torch.float64, torch.float32)
            result = func(*replace(args, Tensor, down), **replace(kwargs, Tensor, down))
            return replace(result, Tensor, partial(cast_from, torch.float32, torch.float64))

    def refuse_harm(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing a replay calls may reach the script's device: no assertion there, no random state of its own."""
        if uses_cuda() and any(t.is_cuda for t in tensors_in((args, kwargs))):
            refuse_hidden_state(op.name, args)
            if self.changed or self.indices:
                refuse_what_would_assert(op.name, args, kwargs)

    def runs_whole(self, call: FunctionCall) -> bool:
        return self.opaque or call.joins_ranks or bool(call.escapes)

    def looks_through(self, op: Op) -> bool:
        """Everywhere, nowhere, or at the ops that are named."""
        chosen = self.look_through
        if isinstance(chosen, bool):
            return chosen
        # A view that only ties an alias to its memory is looked through with what writes there: torch refuses to write
        # with gradients into one that was made without.
        return op in chosen or (op.synthetic and bool(self._written_through & {*op.outputs}))

    def goes_through(self, op: Op) -> bool:
        return self.looks_through(op) or op.users_function is not None

    def set_modes(self, op: Op) -> None:
        function = op.function
        if not self.gradients:
            enabled = False
        elif self.looks_through(op):
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
        set_autocast_state(op.autocast)

    def in_dtype(self, op: Op, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        dtype = self.dtype
        assert dtype is not None
        if op.kind in CASTS and args and isinstance(args[0], Tensor) and is_float(args[0]):
            # A method that names a precision is, in another precision, a conversion to that one.
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
        if call.is_users and (
            BY_ADDRESS & {*call.escapes} or side_effects.uses_addresses(call.cls)
        ):
            self.require_own_form(call, (args, kwargs))
        torch.set_grad_enabled(self.gradients and call.differentiable)
        self.called[call] = apply_whole(call, args, kwargs)

    def require_own_form(self, call: FunctionCall, given: Any) -> None:
        """Code that computes by addresses may rely on the sizes it was written for, in bytes."""
        refs = refs_in((call.args, call.kwargs))
        shapes = [self.tape.geometry[ref.index].size for ref in refs]
        if self.dtype is not None or shapes != [tuple(t.shape) for t in tensors_in(given)]:
            raise ReplayError(
                f"{call.name} works on raw memory and is only called with the script's own "
                "shapes and dtypes"
            )


def cast_from(old: torch.dtype, new: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(new) if tensor.dtype == old else tensor


def apply_whole(call: FunctionCall, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Calls a Function of the step again; it and its backward pass are handed what their collectives gave."""
    reason = side_effects.of_function(call.cls) or side_effects.of_arguments((args, kwargs))
    if reason is not None:
        raise ReplayError(f"{call.name} is not called a second time: {reason}")
    with exchange.handing_out(Handing(call.forward_log)):
        result = call.cls.apply(*args, **kwargs)  # type: ignore[attr-defined]
    results = tuple(result) if isinstance(result, tuple | list) else (result,)
    if call.backward_log:
        handing = Handing(call.backward_log, gradient=True)
        for tensor in tensors_in(results):
            if getattr(type(tensor.grad_fn), "_forward_cls", None) is call.cls:
                setattr(tensor.grad_fn, exchange.HANDING, handing)
    return results


def _call_arguments(op: Op) -> Any:
    call = op.unit
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
