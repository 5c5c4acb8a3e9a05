"""Hooks that a script registered for everything: set aside while modules and optimizers of ours run.

A global forward hook would count our reference model, a global step hook our optimizer, a `saved_tensors_hooks` around
the training loop would pack our activations.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from traindoctor.ground.torch_private import top_saved_hooks

_PLACES: tuple[tuple[ModuleType, str], ...] = tuple(
    (place, name)
    for place in (modules, optimizers)
    for name, value in vars(place).items()
    if name.startswith("_global_") and isinstance(value, dict)
)


@contextlib.contextmanager
def hooks_aside() -> Iterator[None]:
    """No hook of the script's is called inside; all are there again afterwards."""
    kept: list[tuple[ModuleType, str, Any]] = [(m, n, getattr(m, n)) for m, n in _PLACES]
    try:
        for place, name, hooks in kept:
            if hooks:
                setattr(place, name, OrderedDict())
        with _nothing_packed():
            yield
    finally:
        for place, name, hooks in kept:
            setattr(place, name, hooks)


def _nothing_packed() -> contextlib.AbstractContextManager[Any]:
    """Only the innermost pair of saved-tensor hooks is called: one that does nothing hides the script's."""
    if top_saved_hooks(False) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def has_hooks(root: torch.nn.Module) -> bool:
    """Whether calling the model, or a copy of it, calls functions that the script registered on its modules."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(vars(module).get(kind) for module in root.modules() for kind in kinds)
