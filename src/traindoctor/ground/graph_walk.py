"""What lies behind tensors in their autograd graph: its nodes, and the leaves that a backward pass goes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def nodes_behind(tensors: Iterable[Tensor], most: int) -> list[Any]:
    """Each once, in the order of a walk that ends after so many."""
    waiting = [tensor.grad_fn for tensor in tensors]
    met: dict[Any, None] = {}
    while waiting and len(met) < most:
        node = waiting.pop()
        if node is not None and node not in met:
            met[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(met)


def leaves_behind(tensors: Iterable[Tensor], most: int) -> list[Tensor]:
    """Those that were used first come first, as far as the walk tells."""
    nodes = nodes_behind(tensors, most)
    return [n.variable for n in reversed(nodes) if type(n).__name__ == "AccumulateGrad"]
