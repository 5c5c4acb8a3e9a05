"""Whatever an exam does, the run goes on as if it had not: each context gives one thing back as it was."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from traindoctor.ground.modes import autocast_aside
from traindoctor.ground.torch_private import DisableTorchFunction

# Attributes that every module has.
STRUCTURE = frozenset(vars(nn.Module()))


@contextmanager
def modes_restored() -> Iterator[None]:
    """Grad mode, autocast, deterministic and anomaly flags, default dtype."""
    grad = torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    default = torch.get_default_dtype()
    anomaly = torch.is_anomaly_enabled()
    check_nan = torch.is_anomaly_check_nan_enabled()
    try:
        with autocast_aside():
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


@contextmanager
def modules_restored(model: nn.Module | None) -> Iterator[None]:
    """Training flags of all modules."""
    flags = [] if model is None else [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            vars(module)["training"] = (
                training  # a `__setattr__` of the script's hears nothing of it
            )


@contextmanager
def attributes_restored(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What a forward pass notes on its modules: counters, lists of activations, the last auxiliary loss."""
    kept = [
        (vars(inner), dict(vars(inner)), [(a, copy(a)) for a in _containers(inner)])
        for module in modules
        for inner in module.modules()
    ]
    try:
        yield
    finally:
        for attributes, before, containers in kept:
            for name in attributes.keys() - before.keys():
                del attributes[name]
            attributes.update(before)
            for container, content in containers:
                container.clear()
                if isinstance(container, list | deque):
                    container.extend(content)
                else:
                    container.update(content)


def _containers(module: nn.Module) -> list[Any]:
    """The module's own lists, dicts and sets, without those of torch that hold its structure."""
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, list | dict | set | deque) and name not in STRUCTURE
    ]


@contextmanager
def gradients_restored(tensors: Iterator[Tensor]) -> Iterator[None]:
    """The same .grad objects as before. Exams never write into them; replays work on copies."""
    with DisableTorchFunction():  # a subclass of the script's hears nothing of it
        kept = [(tensor, tensor.grad) for tensor in tensors if tensor.is_leaf]
    try:
        yield
    finally:
        with DisableTorchFunction():
            for tensor, gradient in kept:
                if tensor.grad is not gradient:
                    tensor.grad = gradient
