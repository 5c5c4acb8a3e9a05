"""Backward passes: `Tensor.backward`, `torch.autograd.backward`, and `grad` where parameters are asked for."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from traindoctor.capture.hub import Patches, hub
from traindoctor.events import BackwardBegin, BackwardEnd
from traindoctor.ground.nested import without_data


def install(patches: Patches) -> None:
    # Tensor.backward looks torch.autograd.backward up when it is called: one patch serves both.
    patches.replace(torch.autograd, "backward", _backward)
    patches.replace(torch.autograd, "grad", _grad)


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if hub.sink is not None and hub.border is not None:
            hub.border.backward_begins()
        if torch.compiler.is_compiling() or hub.idle or hub.backward_depth or hub.asleep:
            # A pass inside a pass is a checkpoint that recomputes: not a root of its own.
            hub.passes_asleep += not hub.backward_depth and hub.asleep > 0
            return original(tensors, *args, **kwargs)
        given = args[0] if args else kwargs.get("grad_tensors")
        if not isinstance(tensors, torch.Tensor):
            tensors = _many(tensors)  # a generator can be read only once
            if not _all_tensors(tensors):
                return original(tensors, *args, **kwargs)
        begun = hub.emit(_begin, tensors, None, given)
        hub.first_backward &= begun is None
        begin = time.perf_counter()
        hub.backward_depth += 1
        try:
            result = original(tensors, *args, **kwargs)
        finally:
            hub.backward_depth -= 1
        if begun is not None:
            hub.emit(BackwardEnd, begun.roots, time.perf_counter() - begin)
        return result

    return backward


def _grad(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or hub.idle or hub.backward_depth or hub.asleep:
            return original(outputs, inputs, *args, **kwargs)
        outputs, inputs = _many(outputs), _many(inputs)
        if not _all_tensors(outputs) or not _asks_for_parameters(inputs):
            return original(outputs, inputs, *args, **kwargs)
        given = args[0] if args else kwargs.get("grad_outputs")
        begun = hub.emit(_begin, outputs, inputs, given)
        hub.first_backward &= begun is None
        begin = time.perf_counter()
        hub.backward_depth += 1
        try:
            results = original(outputs, inputs, *args, **kwargs)
        finally:
            hub.backward_depth -= 1
        if begun is not None:
            seconds = time.perf_counter() - begin
            hub.emit(BackwardEnd, begun.roots, seconds, begun.inputs, results)
        return results

    return grad


def _begin(roots: Any, inputs: Any, given: Any) -> BackwardBegin | None:
    roots = _many(roots)
    if without_data(roots):
        return None
    gradients = None if given is None else _many(given)
    return BackwardBegin(roots, hub.first_backward, _scale_of(roots), inputs, gradients)


def _scale_of(roots: Sequence[torch.Tensor]) -> float:
    """The scaler's factor if one of the roots came out of `GradScaler.scale`."""
    for root in roots:
        reference, scale = hub.scaled_roots.get(id(root), (None, 1.0))
        if reference is not None and reference() is root:
            return scale
    return 1.0


def _many(tensors: Any) -> Any:
    """A tuple of tensors; anything that is not tensors (graph edges) stays as it came."""
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    if isinstance(tensors, dict | GradientEdge) or not hasattr(tensors, "__iter__"):
        return tensors
    return tuple(tensors)


def _all_tensors(roots: Any) -> bool:
    """Edges of a graph have no value: a pass that begins at them is not heard."""
    return isinstance(roots, tuple) and all(isinstance(root, torch.Tensor) for root in roots)


def _asks_for_parameters(inputs: Any) -> bool:
    """`grad` serves gradient penalties and attacks too; with parameters as inputs it is a training pass.

    Without any torch optimizer the script has its own, and its parameters may be plain tensors; so may those that an
    optimizer holds.
    """
    if not isinstance(inputs, tuple):
        return False
    leaves = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_leaf and x.requires_grad]
    if not len(hub.optimizers) or any(isinstance(x, torch.nn.Parameter) for x in leaves):
        return bool(leaves)
    return bool(leaves and hub.border is not None and hub.border.enter(_held, leaves))


def _held(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether an optimizer holds one of these tensors."""
    held = {id(p) for o in hub.optimizers for group in o.param_groups for p in group["params"]}
    return any(id(leaf) in held for leaf in leaves)
