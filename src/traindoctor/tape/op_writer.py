"""One torch function becomes one Op: what is known before the call, and what the call made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from traindoctor.ground import frames
from traindoctor.ground.modes import random_states
from traindoctor.ground.names import is_trainable_leaf, local
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.tape.conventions import ESCAPES, SHAPE_ONLY, draws, selected_by, written_to
from traindoctor.tape.draft import Draft, changed_between
from traindoctor.tape.ops import DATA, PARAMETER, Escape, FunctionCall, Op
from traindoctor.tape.running_functions import RunningFunctions
from traindoctor.tape.step_gradients import world_size
from traindoctor.tape.tensors import TensorTable, version

# before() and __torch_function__ stand between the caller's frame and frames.here().
FRAMES_OF_OURS = 3


@dataclass(slots=True)
class Call:
    """What is known of a call before it happens."""

    tensors: list[Tensor]
    depends_on: int
    args: Any = None
    kwargs: Any = None
    versions: Sequence[int] = ()
    place: frames.Place | None = None
    function: FunctionCall | None = None
    rng: tuple[tuple[str, Tensor], ...] = ()
    index: Tensor | None = None
    updated: list[Tensor] = field(default_factory=list)
    """Parameters that it writes to."""

    @property
    def changed(self) -> bool:
        """Whether it has written to any of its arguments."""
        return any(version(tensor) != old for tensor, old in zip(self.tensors, self.versions))


class OpWriter:
    """`call = before(name, args, kwargs)`, the call itself, `after(call, name, func, result)`."""

    def __init__(self, draft: Draft, tensors: TensorTable, functions: RunningFunctions) -> None:
        self.draft = draft
        self.tensors = tensors
        self.functions = functions

    def before(self, name: str, args: Any, kwargs: Any) -> Call:
        arguments = list(tensors_in((args, kwargs)))
        depends_on = 0
        for tensor in arguments:
            depends_on |= self.tensors.storage(tensor).depends_on
        if name in SHAPE_ONLY:
            depends_on = 0
        call = Call(arguments, depends_on)
        drawn = draws(name) and not self.draft.complete and kwargs.get("generator") is None
        if not depends_on and drawn:
            call.place = frames.here(FRAMES_OF_OURS)
            if call.place.module is not None:
                # What a model draws itself (which patches it hides) is another one at each step, as data are.
                call.depends_on = depends_on = DATA
        if not depends_on:
            return call
        call.place = call.place or frames.here(FRAMES_OF_OURS)
        call.function = function = self.functions.innermost(call.place, self.tensors.ref)
        if name in ESCAPES:
            return call
        call.versions = [version(tensor) for tensor in arguments]
        for target in written_to(name, args, kwargs):
            storage = self.tensors.storage(target)
            if storage.leaf is not None or is_trainable_leaf(target):
                call.updated.append(target)  # by a hand-written optimizer, never part of a loss
                continue
            if storage.base is None and not (storage.made and storage.depends_on):
                self.tensors.keep_base(target, storage)
        if call.updated:
            return call
        call.args = replace(args, Tensor, lambda t: self.tensors.ref(t, function))
        call.kwargs = replace(kwargs, Tensor, lambda t: self.tensors.ref(t, function))
        generator = kwargs.get("generator")
        if generator is not None:
            # The script's own stays the script's: a replay draws from a copy.
            call.kwargs = {**call.kwargs, "generator": generator.clone_state()}
        if draws(name):
            call.rng = random_states(arguments, kwargs.get("device"))
        call.index = selected_by(name, args, kwargs)
        return call

    def after(self, call: Call, name: str, func: Callable[..., Any], result: Any) -> None:
        if call.updated:
            for target in call.updated:
                self.updated(target)
            return
        outputs = [result] if isinstance(result, Tensor) else list(tensors_in(result))
        if call.args is None:
            if call.depends_on & PARAMETER and name in ESCAPES:
                self._escaped(name, call)
            for output in outputs:
                self.tensors.storage(output, made=True)
            return
        if not outputs and not call.changed:
            return  # a size, a number: `x[i] = y` has no result either, but it writes
        refs = [self.tensors.ref(tensor, call.function) for tensor in call.tensors]
        written = []
        for tensor, ref, before in zip(call.tensors, refs, call.versions):
            storage = self.tensors.storage(tensor)
            if version(tensor) != before and (storage.base is not None or storage.made):
                storage.depends_on |= call.depends_on
                written.append(ref)
        op = Op(
            number=0,
            name=name,
            func=func,
            args=call.args,
            kwargs=call.kwargs,
            inputs=tuple(dict.fromkeys(refs)),
            outputs=tuple(
                self.tensors.output(tensor, call.depends_on, call.function) for tensor in outputs
            ),
            writes=tuple(dict.fromkeys(written)),
            depends_on=call.depends_on,
            function=call.function,
            rng=call.rng,
            index=call.index,
        )
        self.draft.append(op, call.place)

    def updated(self, target: Tensor) -> None:
        """A parameter was changed by hand. Before the first backward pass the new value is the step's."""
        if self.draft.complete:
            return
        storage = self.tensors.storage(target)
        for name, leaf in self.draft.leaves.items():
            tensor = self.tensors.leaf_tensors[name]()
            if leaf.ref == storage.leaf and tensor is not None:
                if self.draft.roots and world_size() == 1:
                    self.draft.changed = name
                    return
                if self.draft.roots:
                    self.draft.gap(changed_between(name))
                leaf.value.copy_(local(tensor).detach())

    def _escaped(self, name: str, call: Call) -> None:
        place = call.place
        line = place.line if place else None
        module = self.draft.names.of_module(place.module) if place and place.module else None
        if call.function is not None:
            call.function.escapes.append(name)
        values = tuple(self.tensors.ref(tensor, call.function) for tensor in call.tensors)
        self.draft.escapes.append(Escape(name, line, module, values))
