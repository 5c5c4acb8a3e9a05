"""Autograd graphs that stay alive: a leak is graphs, not bytes."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, ClassVar

from traindoctor.events import Event, ForwardEnd
from traindoctor.ground.nested import tensors_in
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# A graph that outlives so many steps is held by someone: in 76 recorded runs no other than the leaking one
# had a single such graph.
OLD = 8
# Names of the sentinels in a node's metadata.
KEY = "traindoctor"
# Sentinels that are followed; a leak of more graphs than that is proven long before.
MOST = 4096


class Sentinel:
    """Dies with the graph node that holds it."""

    __slots__ = ("__weakref__",)


class Graphs:
    """`graphs.alive` and `graphs.old`: graphs of outermost forward passes that still exist.

    A weak reference to the output itself would not do: a sum keeps the graph behind an output alive after
    the output is gone. Age is counted in steps, and in backward passes where nothing steps.
    """

    name: ClassVar[str] = "graphs"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardEnd,)

    def __init__(self) -> None:
        self._seen: deque[tuple[int, weakref.ref[Sentinel]]] = deque(maxlen=MOST)
        self._new: list[weakref.ref[Sentinel]] = []

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardEnd):
            node = first_node(event.output)
            if node is not None:
                sentinel = Sentinel()
                node.metadata[KEY] = sentinel
                self._new.append(weakref.ref(sentinel))

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._seen.extend((step, sentinel) for sentinel in self._new)
        self._new.clear()
        alive = deque((item for item in self._seen if item[1]() is not None), maxlen=MOST)
        self._seen = alive
        record.scalar("graphs.alive", step, len(alive))
        record.scalar("graphs.old", step, sum(step - born >= OLD for born, _ in alive))


def first_node(output: Any) -> Any:
    """The graph node of the first tensor in an output that has one."""
    for tensor in tensors_in(output):
        if tensor.grad_fn is not None:
            return tensor.grad_fn
    return None
