"""Nested tuples, lists, dicts and slices, as calls are given them: the leaves in them, and the same with others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor

from traindoctor.errors import ReplayError

Leaves = TypeVar("Leaves")

# Lists, tuples and dicts inside one argument, and how deep they may lie: no call of torch comes near.
MOST_CONTAINERS = 10_000
DEEPEST = 100
ENDLESS = "an argument of a call holds itself, or too many lists to be written down"


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, dicts and slices, in order."""
    return leaves_in(tree, Tensor)


def without_data(tree: Any) -> bool:
    """Tensors of the meta device, or those of a pass that only counts operations: shapes, and no values."""
    return any(tensor.is_meta or hasattr(tensor, "fake_mode") for tensor in tensors_in(tree))


def leaves_in(tree: Any, kind: type[Leaves]) -> Iterator[Leaves]:
    """Without recursion: an argument of an autograd.Function may be any object, a list that holds itself among them.

    Containers of the script's own classes are read as what they are built on: their methods may compute or import.
    """
    waiting, opened = [tree], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, kind):
            yield item
            continue
        if isinstance(item, tuple | list):
            held = tuple.__iter__(item) if isinstance(item, tuple) else list.__iter__(item)
            waiting.extend([*held][::-1])
        elif isinstance(item, dict):
            waiting.extend([*dict.values(item)][::-1])
        elif isinstance(item, slice):
            waiting += (item.step, item.stop, item.start)
        else:
            continue
        opened += 1
        if opened > MOST_CONTAINERS:
            raise ReplayError(ENDLESS)


def replace(tree: Any, kind: type, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """The tree with `change` applied to every leaf of that kind; untouched branches are the same objects.

    For trees that `leaves_in` has walked: it raises for those whose branches multiply without end.
    """
    if isinstance(tree, kind):
        return change(tree)
    if depth > DEEPEST:
        raise ReplayError(ENDLESS)
    if isinstance(tree, tuple):
        made = [replace(item, kind, change, depth + 1) for item in tree]
        if all(new is old for new, old in zip(made, tree)):
            return tree
        return type(tree)(*made) if hasattr(tree, "_fields") else tuple(made)
    if isinstance(tree, list):
        return [replace(item, kind, change, depth + 1) for item in tree]
    if isinstance(tree, dict):
        return {key: replace(item, kind, change, depth + 1) for key, item in dict.items(tree)}
    if isinstance(tree, slice):
        parts = (tree.start, tree.stop, tree.step)
        return slice(*(replace(item, kind, change, depth + 1) for item in parts))
    return tree
