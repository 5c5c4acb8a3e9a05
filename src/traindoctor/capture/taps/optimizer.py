"""Optimizer steps, zero_grad and learning-rate schedules."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import Optimizer

from traindoctor.capture.hub import Patches, hub
from traindoctor.capture.step_hooks import step_hooks
from traindoctor.events import GradsCleared, RateScheduled, StepBegin, StepEnd
from traindoctor.ground.torch_code import HOOKED


def install(patches: Patches) -> None:
    steps = _Steps()
    patches.on_undo(step_hooks.hear(steps.before, steps.after))
    patches.replace(Optimizer, "__init__", _init)
    patches.replace(Optimizer, "zero_grad", _zero_grad)
    for kind in (
        lr_scheduler.LRScheduler,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.SequentialLR,
        lr_scheduler.ChainedScheduler,
    ):
        if "__init__" in vars(kind):
            patches.replace(kind, "__init__", _made)


class _Steps:
    """Turns the global step hooks into events; a closure (LBFGS, Lightning) is run before StepBegin."""

    def __init__(self) -> None:
        self.begun = False
        self.begin = 0.0
        self.closure_seconds = 0.0
        self.inside: list[tuple[Optimizer, Sequence[float]]] = []

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.asleep:
            return None
        if hub.stepping is not None and hub.stepping is not optimizer and _steps_running() > 1:
            # An optimizer inside another one (ZeRO, a container of several): the outer step counts.
            if hub.border is not None:
                self.inside.append((optimizer, hub.border.enter(rates, optimizer) or ()))
            return None
        hub.stepping, self.begun = optimizer, False
        self.begin, self.closure_seconds, self.inside = time.perf_counter(), 0.0, []
        # args[0] is the optimizer itself: these are the arguments of the unbound `step`.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._gradients_complete(optimizer)
            return None
        wrapped = self._around(closure, optimizer)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def _around(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        @functools.wraps(closure)
        def watched() -> Any:
            hub.stepping = (
                None  # what the closure does is the script's training, not the optimizer's
            )
            begin = time.perf_counter()
            try:
                return closure()
            finally:
                hub.stepping = optimizer
                self.closure_seconds += time.perf_counter() - begin
                if not self.begun:
                    self._gradients_complete(optimizer)

        return watched

    def _gradients_complete(self, optimizer: Optimizer) -> None:
        self.begun = True
        if hub.schedulers:
            look_at_schedulers()
        hub.emit(_step_begin, optimizer)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if hub.asleep and not hub.idle:
            hub.stepping, hub.first_backward = None, True
            hub.step_asleep(optimizer)
            return
        if hub.stepping is not optimizer:
            return
        hub.stepping = None
        if not self.begun:
            self._gradients_complete(optimizer)
        hub.first_backward = True
        seconds = time.perf_counter() - self.begin - self.closure_seconds
        hub.emit(StepEnd, optimizer, -1, seconds, self.inside)


def _steps_running() -> int:
    """Optimizer steps on this thread's stack. One that raised has left no other trace."""
    running, frame = 0, sys._getframe(1)
    while frame is not None:
        running += frame.f_code is HOOKED
        frame = frame.f_back  # type: ignore[assignment]
    return running


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not hub.idle and hub.border is not None:
            hub.border.enter(_made_optimizer, self)

    return __init__


def _zero_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not torch.compiler.is_compiling() and hub.attentive:
            hub.emit(GradsCleared, self)
        return result

    return zero_grad


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not hub.idle and hub.border is not None:
            hub.border.enter(_know_scheduler, self)

    return __init__


def _know_scheduler(scheduler: Any) -> None:
    with contextlib.suppress(TypeError):  # a class of the script's that cannot be hashed
        hub.schedulers[scheduler] = _progress(scheduler)


def know_optimizer(optimizer: Optimizer) -> None:
    with contextlib.suppress(TypeError):
        hub.optimizers.setdefault(optimizer, ())


def _made_optimizer(optimizer: Optimizer) -> None:
    with contextlib.suppress(TypeError):
        hub.optimizers[optimizer] = rates(optimizer)


def _step_begin(optimizer: Optimizer) -> StepBegin:
    with contextlib.suppress(TypeError):
        return StepBegin(optimizer, -1, given_rates=hub.optimizers.get(optimizer, ()))
    return StepBegin(optimizer, -1)


def look_at_schedulers() -> None:
    """Who has stepped since the last look. `step` itself is not replaced: torch warns from it at its caller's line."""
    moved = hub.border.enter(_moved_schedulers) if hub.border is not None else None
    for scheduler, missed in moved or ():
        hub.emit(_scheduled, scheduler, missed)


def _moved_schedulers() -> list[tuple[Any, int]]:
    known = list(hub.schedulers.items())
    inside = {id(one) for outer, _ in known for one in vars(outer).get("_schedulers") or ()}
    moved = []
    for scheduler, (steps, epoch) in known:
        now = _progress(scheduler)
        if now != (steps, epoch) and id(scheduler) not in inside:
            hub.schedulers[scheduler] = now
            moved.append((scheduler, max(now[0] - steps, now[1] - epoch, 1) - 1))
    return moved


def _progress(scheduler: Any) -> tuple[int, int]:
    counts = (vars(scheduler).get(name, 0) for name in ("_step_count", "last_epoch"))
    steps, epoch = (count if isinstance(count, int) else 0 for count in counts)
    return steps, epoch


def _scheduled(scheduler: Any, missed: int) -> RateScheduled:
    return RateScheduled(scheduler, rates(scheduler.optimizer), missed)


def rates(optimizer: Optimizer) -> Sequence[float]:
    """The learning rate of each group; NaN where it lies on a device and would have to be waited for."""
    return [
        float("nan") if isinstance(lr, torch.Tensor) and lr.device.type != "cpu" else float(lr)
        for lr in (
            group["lr"] if "lr" in group else float("nan") for group in optimizer.param_groups
        )
    ]
