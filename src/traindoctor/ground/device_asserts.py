"""Calls that a GPU answers with an assertion instead of an exception.

On a CPU an index out of range is an error that a replay can refuse. On a CUDA device it ends every later call of the
process, the script's too. A replay of the unchanged step cannot meet one: the script has just made the same calls. One
with other tokens or weights can (a mask that selects more, a row that is computed), so its arguments are looked at first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from traindoctor.errors import ReplayError

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def refuse_what_would_assert(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises ReplayError. Waits for the device: only where something was changed."""
    look = LOOKS.get(name.removesuffix("_") if name not in LOOKS else name)
    if look is not None and not look(args, kwargs):
        raise ReplayError(f"with other values {name} would be called outside its valid range")


def refuse_hidden_state(name: str, args: tuple[Any, ...]) -> None:
    """cuDNN's recurrent layers draw their dropout from a state of their own, which nobody can put back."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    if name in RECURRENT and any(t.is_cuda for t in tensors):
        if any(type(a) is float and a > 0 for a in args):
            raise ReplayError(f"{name} with dropout keeps its own random state on a GPU")


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return kwargs[name] if name in kwargs else args[place] if len(args) > place else None


def _within(index: Any, low: int, high: int) -> bool:
    if not isinstance(index, Tensor) or index.is_floating_point() or not index.numel():
        return True
    least, most = torch.aminmax(index)
    return bool(least >= low) and bool(most < high)


def _along(place: int = 2) -> Callable[[tuple[Any, ...], dict[str, Any]], bool]:
    """`f(input, dim, index)`"""

    def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        source, dim = _given(args, kwargs, 0, "input"), _given(args, kwargs, 1, "dim")
        if not isinstance(source, Tensor) or not isinstance(dim, int) or not source.ndim:
            return True
        return _within(_given(args, kwargs, place, "index"), 0, source.shape[dim])

    return look


def _embedding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    weight = _given(args, kwargs, 1, "weight")
    return not isinstance(weight, Tensor) or _within(
        _given(args, kwargs, 0, "input"), 0, weight.shape[0]
    )


def _classes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    scores, target = _given(args, kwargs, 0, "input"), _given(args, kwargs, 1, "target")
    if not isinstance(scores, Tensor) or not isinstance(target, Tensor) or scores.ndim == 0:
        return True
    ignored = kwargs.get("ignore_index", -100)
    return _within(target[target != ignored], 0, scores.shape[1 if scores.ndim > 1 else 0])


def _masked_scatter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    target, mask = _given(args, kwargs, 0, "input"), _given(args, kwargs, 1, "mask")
    source = _given(args, kwargs, 2, "source")
    if not (isinstance(target, Tensor) and isinstance(mask, Tensor) and isinstance(source, Tensor)):
        return True
    return int(mask.expand_as(target).sum()) <= source.numel()


def _picked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """`x[index]`, `x[index] = y`, `x.index_put_(index, y)`"""
    source, index = args[0], args[1] if len(args) > 1 else None
    if not isinstance(source, Tensor):
        return True
    axis = 0
    for one in index if isinstance(index, tuple | list) else (index,):
        if one is Ellipsis or one is None:
            return True if one is Ellipsis else _picked_after_none(source, index)
        if isinstance(one, Tensor) and one.dtype == torch.bool:
            axis += one.ndim
            continue
        if axis < source.ndim and not _within(one, -source.shape[axis], source.shape[axis]):
            return False
        axis += 1
    return True


def _picked_after_none(source: Tensor, index: Any) -> bool:
    """With new axes between the indices each may stand for any axis: the shortest is safe."""
    least = min(source.shape, default=0)
    return all(_within(one, -least, least) for one in index if isinstance(one, Tensor))


def _chances(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    chance = _given(args, kwargs, 0, "input")
    if not isinstance(chance, Tensor) or not chance.is_floating_point() or not chance.numel():
        return True
    return bool(torch.isfinite(chance).all()) and bool((chance >= 0).all())


LOOKS: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], bool]] = {
    "embedding": _embedding,
    "gather": _along(),
    "index_select": _along(),
    "index_add": _along(),
    "index_copy": _along(),
    "index_fill": _along(),
    "scatter": _along(),
    "scatter_add": _along(),
    "scatter_reduce": _along(),
    "cross_entropy": _classes,
    "nll_loss": _classes,
    "masked_scatter": _masked_scatter,
    "__getitem__": _picked,
    "__setitem__": _picked,
    "index_put": _picked,
    "multinomial": _chances,
    "bernoulli": _chances,
    "poisson": _chances,
}
