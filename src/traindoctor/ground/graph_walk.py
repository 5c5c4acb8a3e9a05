"""What lies behind tensors in their autograd graph: its nodes, and the leaves that a backward pass goes to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

# A walk ends after so many nodes; the graph of a large model has some tens of thousands.
MOST_NODES = 50_000


def nodes_behind(tensors: Iterable[Tensor]) -> list[Any]:
    """Each once, in the order of the walk."""
    waiting = [tensor.grad_fn for tensor in tensors]
    met: dict[Any, None] = {}
    while waiting and len(met) < MOST_NODES:
        node = waiting.pop()
        if node is not None and node not in met:
            met[node] = None
            waiting += [before for before, _ in node.next_functions]
    return list(met)


def leaves_behind(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those that were used first come first, as far as the walk tells."""
    nodes = reversed(nodes_behind(tensors))
    return [n.variable for n in nodes if type(n).__name__ == "AccumulateGrad"]
