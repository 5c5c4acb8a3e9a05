"""What an exam gets: the tapes of the run, its model and optimizers, and a way to leave no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.record import RecordWriter
from traindoctor.replay.crash import Crash
from traindoctor.replay.names import Names, unwrap
from traindoctor.replay.quiet import quiet
from traindoctor.replay.tape import StepTape

# Tapes kept: the first two (a wrong gradient, a missing zero_grad) and the latest ones.
KEPT_LATEST = 2


@dataclass
class Patient:
    """The run, as exams see it."""

    names: Names = field(default_factory=Names)
    writer: RecordWriter | None = None
    model: nn.Module | None = None
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    tapes: dict[int, StepTape] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    """Steps that could not be taped, and why."""
    snapshot: Any = None
    """replay/snapshot.py fills it: what is needed to repeat K steps."""
    crash: Crash | None = None
    """replay/crash.py fills it: the first step that was not finite."""
    facts: dict[str, Any] = field(default_factory=dict)
    current_step: int = 0

    @property
    def step(self) -> int:
        """The step that the latest tape is of; the run's own step without one."""
        return self.tape.step if self.tape is not None else self.current_step

    @property
    def tape(self) -> StepTape | None:
        """The latest tape."""
        return self.tapes[max(self.tapes)] if self.tapes else None

    @property
    def first_tape(self) -> StepTape | None:
        return self.tapes[min(self.tapes)] if self.tapes else None

    def add_tape(self, tape: StepTape) -> None:
        """Keeps the first two and the latest few."""
        self.tapes[tape.step] = tape
        steps = sorted(self.tapes)
        for step in steps[2:-KEPT_LATEST]:
            del self.tapes[step]

    def saw(self, model: nn.Module) -> None:
        """The model, where the user says which one is meant."""
        self.names.add_module(model)
        self.model = unwrap(model)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Whatever happens inside, the run goes on as if it had not: see the tests for the list."""
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.enter_context(random_state_restored())
            stack.enter_context(modes_restored())
            stack.enter_context(modules_restored(self.model))
            stack.enter_context(gradients_restored(tensor for _, tensor in self.names.parameters()))
            yield


@contextmanager
def random_state_restored() -> Iterator[None]:
    """Python's, NumPy's and every device's."""
    import random
    import sys

    python = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


@contextmanager
def modes_restored() -> Iterator[None]:
    """Grad mode, autocast, deterministic and anomaly flags, default dtype."""
    grad = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    default = torch.get_default_dtype()
    anomaly = torch.is_anomaly_enabled()
    check_nan = torch.is_anomaly_check_nan_enabled()
    devices = ("cpu", "cuda")
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache = torch.is_autocast_cache_enabled()
    for device in devices:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        # Only where an exam changed it: the call imports torch's compiler, two seconds of it.
        if (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ) != (deterministic, warn_only):
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_default_dtype(default)
        torch.autograd.set_detect_anomaly(anomaly, check_nan)
        for device, enabled, dtype in casts:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


@contextmanager
def modules_restored(model: nn.Module | None) -> Iterator[None]:
    """Training flags of all modules."""
    flags = [] if model is None else [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def gradients_restored(tensors: Iterator[Tensor]) -> Iterator[None]:
    """The same .grad objects as before. Exams never write into them; replays work on copies."""
    kept = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf]
    try:
        yield
    finally:
        for tensor, gradient in kept:
            if tensor.grad is not gradient:
                tensor.grad = gradient
