"""The border: every call from torch into our code passes it, and the run finds everything as it left it.

    border.enter(handler, event)

Inside, torch is in a state of our own: no function modes (a default device, the script's modes, our tape), no grad,
no autocast, no inference mode, default dtype float32, nothing deterministic or anomalous, warnings silent, compiler
off. No exception of ours comes out: the first one switches the border off, is kept, and the script goes on.
KeyboardInterrupt and SystemExit belong to the script. What passes is timed: `seconds` is what the script waited.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from traindoctor.ground import torch_private
from traindoctor.ground.quiet import quiet
from traindoctor.ground.torch_private import (
    DisableTorchFunction,
    dispatch_mode_stack,
    num_function_modes,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    set_anomaly_enabled,
    set_deterministic,
    top_saved_hooks,
)
from traindoctor.ground.watchdog import Overdue

# Looked up once: these are asked at every event.
_is_compiling, _is_tracing = torch.compiler.is_compiling, torch_private.is_tracing
_is_transforming = torch_private.is_transforming
_num_dispatch_modes = torch_private.num_dispatch_modes
_profiling = torch_private.is_profiling
_grad_enabled, _set_grad = torch.is_grad_enabled, torch_private.set_grad_enabled
_any_autocast, _inference = (
    torch_private.is_any_autocast_enabled,
    torch.is_inference_mode_enabled,
)
_default_dtype = torch.get_default_dtype
_deterministic, _anomaly = torch_private.get_deterministic, torch.is_anomaly_enabled
_set_compiler = torch_private.set_compiler
_warn_always, _set_warn_always = torch_private.get_warn_always, torch_private.set_warn_always
_uses_cuda, _capturing = torch_private.uses_cuda, torch_private.is_capturing
_now = time.perf_counter_ns

# `warnings.catch_warnings` would make the script's own warnings appear again: the list is exchanged instead.
PLAIN = (types.FunctionType, types.MethodType)
SILENT = [("ignore", None, Warning, None, 0)]
IN_THREADS = "several threads of the script train at once, and one may not look at gradients that another writes"


class TrainsInThreads(Exception):
    """No fault of anyone's: we may not look."""


class Border:
    """One for the process. One thread is inside at a time; events of another thread meanwhile are not heard."""

    def __init__(self) -> None:
        self.on = True
        self.fault: str | None = None
        """What switched it off. Text: an exception would hold the script's frames and all their tensors."""
        self.when_broken: Callable[[BaseException], None] | None = None
        """Told of that, once."""
        self._nanoseconds = 0
        self._began = 0
        """When the entry that is under way began; 0 outside."""
        self._lock = threading.Lock()
        self._trainer = 0
        """The thread whose backward passes we know."""

    @property
    def lock(self) -> threading.Lock:
        """Held by the thread inside: a process that forked in that moment would leave torch in our state in the child."""
        return self._lock

    @property
    def seconds(self) -> float:
        """Wall time that the script has waited for us so far, this entry included."""
        running = _now() - self._began if self._began else 0
        return (self._nanoseconds + running) * 1e-9

    def charge(self, seconds: float) -> None:
        """What no clock here can see: the price of a tap's own frame, kernels on a device, other threads."""
        self._nanoseconds += int(seconds * 1e9)

    @property
    def closed(self) -> bool:
        """Switched off, occupied, or torch is in a state in which we must not touch anything."""
        return (
            not self.on
            or self._began != 0
            or _is_compiling()
            or _is_tracing()
            or _is_transforming()
            or _profiling()  # our calls would be in the script's profile
            or (_num_dispatch_modes() > 0 and _traced())
            or (_uses_cuda() and _capturing())  # they would be part of its CUDA graph
        )

    def enter(self, handler: Callable[..., Any], *args: Any) -> Any:
        """What the handler gives; None where we stay outside, or fail."""
        if self.closed or not self._lock.acquire(blocking=False):
            return None
        self._began = began = _now()
        compiler = _set_compiler(None)
        filters, warnings.filters = warnings.filters, SILENT
        always = _warn_always()
        profile, trace = sys.getprofile(), sys.gettrace()
        # A profiler written in C (cProfile) cannot be put back as it was: it goes on, and sees us.
        plain = all(one is None or isinstance(one, PLAIN) for one in (profile, trace))
        observed = plain and (profile is not None or trace is not None)
        try:
            if observed:
                observe(None, None)
            if not always:
                _set_warn_always(True)  # torch warns once: ours must not use that up
            with quiet(), DisableTorchFunction():
                grad = _grad_enabled()
                try:
                    if grad:
                        _set_grad(False)  # modes hear this call too: only in here
                    if usual_state():
                        return handler(*args)
                    with state_set_aside():
                        return handler(*args)
                finally:
                    if grad:
                        _set_grad(True)
        except (Exception, Overdue) as error:
            if raised_by_signal(error):
                raise  # the script's own handler ran while we were inside
            self._break(error)
            return None
        finally:
            if not always:
                _set_warn_always(False)
            warnings.filters = filters
            _set_compiler(compiler)
            self._nanoseconds += _now() - began
            self._began = 0
            self._lock.release()
            if observed:
                observe(profile, trace)

    def backward_begins(self) -> None:
        """Before every backward pass. A second thread that trains ends our watching, for good.

        Passes write gradients without Python's lock: whoever looks at `.grad` in another thread meanwhile may find freed
        memory. So the pass waits until the thread that is inside has left.
        """
        thread = threading.get_ident()
        if thread == self._trainer or not self.on or not _of_python(thread):
            return
        if _of_python(self._trainer):
            with self._lock:
                self._break(TrainsInThreads(IN_THREADS))
        self._trainer = thread

    def _break(self, error: Exception | Overdue) -> None:
        self.on, self.fault = False, "".join(traceback.format_exception(error))
        if self.when_broken is not None:
            try:
                self.when_broken(error)
            except Exception as second:
                self.fault += "".join(traceback.format_exception(second))

    def begin_anew(self) -> None:
        """In a forked child: another thread of the parent may have been inside when it forked."""
        self._lock = threading.Lock()
        self._began = self._nanoseconds = self._trainer = 0
        self.when_broken = None


def _of_python(thread: int) -> bool:
    """A living thread that Python started: autograd's own run passes inside a pass, on behalf of another."""
    found = threading._active.get(thread)  # type: ignore[attr-defined]
    return found is not None and not isinstance(found, threading._DummyThread)


def raised_by_signal(error: BaseException) -> bool:
    """Whether an exception comes out of a signal handler of the script's, such as one for a time limit."""
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    handlers.discard(None)
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def observe(profile: Any, trace: Any) -> None:
    """The functions that Python calls for every call and line: the script's profile counts none of ours."""
    sys.setprofile(profile)
    sys.settrace(trace)


def usual_state() -> bool:
    """Nothing has to be set aside: as in nearly all steps."""
    return not (
        _any_autocast()
        or _inference()
        or _default_dtype() is not torch.float32
        or _deterministic()
        or _anomaly()
        or _num_dispatch_modes()
    )


def _traced() -> bool:
    """A dispatch mode of torch's own machinery is at work: tensors may hold no numbers."""
    stack = dispatch_mode_stack()
    return any(getattr(mode, "_mode_key", None) is not None for mode in stack)


@contextmanager
def state_set_aside() -> Iterator[None]:
    """What the script switched on is off inside, and on again after.

    Some of it is the whole process's: where the script has other threads that stays on, and what we call may fail.
    """
    alone = threading.active_count() == 1
    dtype, deterministic = _default_dtype(), _deterministic() and alone
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly, check_nan = _anomaly() and alone, torch.is_anomaly_check_nan_enabled()
    casting = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    modes = [pop_dispatch_mode() for _ in range(_num_dispatch_modes())]
    try:
        if alone:
            torch.set_default_dtype(torch.float32)
        if deterministic:
            set_deterministic(False)
        if anomaly:
            set_anomaly_enabled(False)
        for kind in casting:
            torch.set_autocast_enabled(kind, False)
        if _inference():
            with torch.inference_mode(False), torch.no_grad():
                yield
        else:
            yield
    finally:
        for kind in casting:
            torch.set_autocast_enabled(kind, True)
        if anomaly:
            set_anomaly_enabled(True, check_nan)
        if deterministic:
            set_deterministic(True, warn_only=warn_only)
        if alone:
            torch.set_default_dtype(dtype)
        for mode in reversed(modes):
            push_dispatch_mode(mode)


@contextmanager
def silent_warnings() -> Iterator[None]:
    """No warning inside. Nothing is registered: the script's own appear as often as without us."""
    filters, warnings.filters = warnings.filters, SILENT
    try:
        yield
    finally:
        warnings.filters = filters


@contextmanager
def modes_aside() -> Iterator[None]:
    """For exams: no mode or subclass of the script's hears what we call, and no hook of its own sees our graphs.

    The stack of modes is empty, so that a step of our own making is heard alone.
    """
    kept: list[TorchFunctionMode] = []
    while num_function_modes():
        kept.append(pop_function_mode())
    hooked = top_saved_hooks(True) is not None
    try:
        with ExitStack() as stack:
            if hooked:  # the innermost pair counts
                hooks = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _same)
                stack.enter_context(hooks)
            stack.enter_context(DisableTorchFunction())
            yield
    finally:
        while num_function_modes():
            pop_function_mode()
        for mode in reversed(kept):
            push_function_mode(mode)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


border = Border()
