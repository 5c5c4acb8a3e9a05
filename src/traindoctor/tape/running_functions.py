"""Which autograd.Function a torch function runs in, and which of its outputs the step uses."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch import Tensor

from traindoctor.ground import frames
from traindoctor.ground.names import Names
from traindoctor.ground.nested import replace, tensors_in
from traindoctor.tape.ops import FunctionCall, Ref

# The Ref of a tensor that the given call uses.
ToRef = Callable[[Tensor, FunctionCall | None], Ref]


class RunningFunctions:
    """Function.apply is not seen by a TorchFunctionMode: calls are known by their frames on the stack."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._running: list[tuple[FrameType, FunctionCall]] = []
        self._num_calls = 0
        self._last: dict[Any, FunctionCall] = {}
        self._nodes: dict[int, tuple[weakref.ref[Any], FunctionCall]] = {}
        """Node of the script's graph, by identity -> the call that made it."""

    def clear(self) -> None:
        """Frames hold all that their functions hold."""
        self._running.clear()

    def innermost(self, place: frames.Place, to_ref: ToRef) -> FunctionCall | None:
        """The innermost call that runs at this place, outer ones as its parents."""
        running = place.functions or ()
        alive = set(map(id, running))
        # A finished frame is held until here, so that a new call cannot have its id.
        self._running = [(frame, call) for frame, call in self._running if id(frame) in alive]
        known = {id(frame): call for frame, call in self._running}
        parent = None
        for frame in reversed(running):
            call = known.get(id(frame))
            if call is None:
                call = self._new_call(frame, place, parent, to_ref)
            parent = call
        return parent

    def _new_call(
        self, frame: FrameType, place: frames.Place, parent: FunctionCall | None, to_ref: ToRef
    ) -> FunctionCall:
        cls, args, kwargs = frames.arguments(frame)
        for _ in tensors_in((args, kwargs)):  # any objects: raises where they have no end
            pass
        self._num_calls += 1
        call = FunctionCall(cls, self._num_calls, (), {}, place.line, parent=parent)
        call.args = replace(args, Tensor, lambda t: to_ref(t, parent))
        call.kwargs = replace(kwargs, Tensor, lambda t: to_ref(t, parent))
        caller = frame.f_back
        while caller is not None and frames.kind_of(caller.f_code.co_filename) == "torch":
            caller = caller.f_back
        if caller is not None:
            call.line = frames.name_line(caller)
        if place.module is not None:
            call.module = self._names.of_module(place.module)
        self._running.append((frame, call))
        self._last[cls] = call
        return call

    def maker(self, tensor: Tensor) -> FunctionCall | None:
        """The Function that made a tensor which no torch function has made."""
        cls = getattr(type(tensor.grad_fn), "_forward_cls", None)
        return self._last.get(cls) if cls is not None else None

    def mark_output(self, tensor: Tensor, ref: Ref, producer: FunctionCall) -> None:
        """Seen outside the Function it was made in: note which output of it this is."""
        history = tensor.grad_fn
        if history is None:
            return
        call: FunctionCall | None = producer
        while call is not None:
            call.differentiable = True
            if getattr(type(history), "_forward_cls", None) is call.cls:
                call.outputs[ref] = tensor.output_nr
                self._nodes[id(history)] = (weakref.ref(history), call)
            call = call.parent

    def of_node(self, node: Any) -> FunctionCall | None:
        found = self._nodes.get(id(node))
        return found[1] if found is not None and found[0]() is node else None
