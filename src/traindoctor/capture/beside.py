"""Compiled code on a tape: it runs as ever, and beside it the uncompiled code runs once for the recorder.

A tape's mode around a compiled call would make torch compile again, and running uncompiled code instead would
change the last bits. So the recorder steps aside for the compiled call; then the same code runs uncompiled on the
same inputs from the same random state, on the tape, and is thrown away. What the rest of the step does with the
compiled results is taped as if it had the uncompiled ones.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.capture.hub import hub
from traindoctor.errors import ReplayError
from traindoctor.ground import side_effects
from traindoctor.ground.hooks_aside import has_hooks
from traindoctor.ground.memory import memory
from traindoctor.ground.modes import random_state_restored, random_states, set_random_state
from traindoctor.ground.names import SHARDED, sharded
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.no_communication import no_communication
from traindoctor.ground.no_trace import attributes_restored
from traindoctor.tape.recorder import StepRecorder


class Beside:
    """`beside(call, uncompiled, arguments, modules)` gives what `call()` gives."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder = recorder
        self._running = False

    def __call__(
        self,
        call: Callable[[], Any],
        uncompiled: Callable[[], Any],
        arguments: Any,
        modules: Sequence[nn.Module],
    ) -> Any:
        if self._running:
            return (
                call()
            )  # inside another one: `module.compile()` compiles a function of the module
        self._running = True
        try:
            if self.recorder.writing and torch.is_grad_enabled():
                return self._both(call, uncompiled, arguments, modules)
            with self.recorder.aside():
                return call()
        finally:
            self._running = False

    def _both(
        self,
        call: Callable[[], Any],
        uncompiled: Callable[[], Any],
        arguments: Any,
        modules: Sequence[nn.Module],
    ) -> Any:
        recorder = self.recorder
        try:
            before = Before(arguments, modules)
        except Exception as error:  # the border: a copy that does not fit is our affair
            recorder.fail(error)
            with recorder.aside():
                return call()
        passes, counted = recorder.num_passes, recorder.seconds
        with recorder.aside():
            result = call()
        began = time.perf_counter()
        try:
            if recorder.num_passes != passes:
                raise ReplayError("compiled code that calls backward itself cannot be repeated")
            refuse_if_joined(modules)
            before.refuse_if_written(result)
            reason = side_effects.of_modules(modules) or side_effects.of_callable(uncompiled)
            if any(has_hooks(module) for module in modules):
                reason = "its modules have hooks"
            if reason is not None:
                raise ReplayError(f"compiled code is not repeated: {reason}")
            self._run(uncompiled, result, before, modules)
        except Exception as error:  # the border: what we run beside the script must not reach it
            recorder.fail(error)
        recorder.seconds = counted + time.perf_counter() - began
        return result

    def _run(
        self,
        uncompiled: Callable[[], Any],
        result: Any,
        before: Before,
        modules: Sequence[nn.Module],
    ) -> None:
        cache = torch.is_autocast_cache_enabled()
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(no_communication())
                stack.enter_context(random_state_restored())
                stack.enter_context(attributes_restored(modules))
                stack.enter_context(before.buffers_of_then(self.recorder))
                stack.enter_context(_no_events())
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                # The graph is never walked: it need not keep the activations alive.
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_drop, _dropped))
                stack.enter_context(torch.compiler.set_stance("force_eager"))
                torch.set_autocast_cache_enabled(False)
                for device, state in before.states:
                    set_random_state(device, state)
                twin = uncompiled()
                drew = before.drew()
                self.recorder.adopt(result, twin, drew=drew)
        finally:
            torch.set_autocast_cache_enabled(cache)


class Before:
    """What the uncompiled run must find as the compiled one found it, and what neither may have changed."""

    def __init__(self, arguments: Any, modules: Iterable[nn.Module]) -> None:
        self.given = list(tensors_in(arguments))
        self.parameters = [p for module in modules for p in module.parameters()]
        self.states = random_states([*self.given, *self.parameters[:1]])
        self.versions = [t._version for t in self._watched]
        self.buffers = [
            (inner, name, buffer)
            for module in modules
            for inner in module.modules()
            for name, buffer in inner._buffers.items()
            if buffer is not None
        ]
        if sum(buffer.nbytes for _, _, buffer in self.buffers) > memory.room():
            raise ReplayError("the model's buffers do not fit into the memory bound")
        self.copies = {id(buffer): buffer.clone() for _, _, buffer in self.buffers}

    @property
    def _watched(self) -> list[Tensor]:
        return [t for t in (*self.given, *self.parameters) if not t.is_inference()]

    def refuse_if_written(self, result: Any) -> None:
        """A step of an optimizer, a running sum: not to be done a second time."""
        if [t._version for t in self._watched] != self.versions:
            raise ReplayError("compiled code that writes to its arguments cannot be repeated")
        if not any(t.requires_grad for t in tensors_in(result)):
            raise ReplayError("compiled code whose result has no gradient is not repeated")

    def drew(self) -> bool:
        """Whether random numbers were drawn since these states."""
        now = random_states([*self.given, *self.parameters[:1]])
        return any(not torch.equal(a, b) for (_, a), (_, b) in zip(self.states, now))

    @contextlib.contextmanager
    def buffers_of_then(self, recorder: StepRecorder) -> Iterator[None]:
        """Copies of what they were. (Running statistics are written without a trace in their version.)"""
        for inner, name, buffer in self.buffers:
            copy = self.copies[id(buffer)]
            recorder.draft.names.stands_for(copy, buffer)
            inner._buffers[name] = copy
        try:
            yield
        finally:
            for inner, name, buffer in self.buffers:
                inner._buffers[name] = buffer


def refuse_if_joined(modules: Iterable[nn.Module]) -> None:
    """Wrappers that talk to other ranks as soon as they are called: not to be called a second time."""
    for module in modules:
        for inner in module.modules():
            if isinstance(inner, nn.parallel.DistributedDataParallel):
                raise ReplayError(
                    "compiled code around DistributedDataParallel cannot be repeated: it "
                    "communicates"
                )
        if sharded(module.parameters()):
            raise ReplayError(SHARDED)


@contextlib.contextmanager
def _no_events() -> Iterator[None]:
    """Modules and losses called inside are part of one call that has been told already."""
    hub.module_depth += 1
    hub.call_depth += 1
    try:
        yield
    finally:
        hub.module_depth -= 1
        hub.call_depth -= 1


def _drop(tensor: Tensor) -> None:
    return None


def _dropped(nothing: None) -> Tensor:
    raise AssertionError("the graph of the uncompiled run is never walked")
