"""While our own code runs, nothing communicates: neither through torch.distributed nor below it.

    with no_communication():
        ...  # a replay, an exam, the uncompiled twin of compiled code

The methods of process groups (ground/exchange.py) refuse by themselves. What C++ issues without them (functional
collectives, DTensor, DistributedDataParallel) is an operator of torch all the same: a dispatch mode refuses it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from traindoctor.errors import ReplayError
from traindoctor.ground import exchange
from traindoctor.ground.torch_private import OpOverload, OpOverloadPacket, TorchDispatchMode

NAMESPACES = frozenset(
    {
        "c10d",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "c10d_functional",
        "_dtensor",
        "symm_mem",
    }
)
# They wait for what is under way, or only wrap it.
HARMLESS = frozenset({"wait_tensor", "_wrap_tensor_autograd"})


def communicates(func: Any) -> bool:
    """Whether an operator is a collective."""
    if isinstance(func, OpOverload):
        namespace, name = func.namespace, func._opname
    elif isinstance(func, OpOverloadPacket):
        namespace, _, name = func._qualified_op_name.partition("::")
    else:
        return False
    return namespace in NAMESPACES and name not in HARMLESS


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.namespace in NAMESPACES and communicates(func):
            raise ReplayError(exchange.REFUSED)
        return func(*args, **(kwargs or {}))


def tensors_may_be_sharded() -> bool:
    """An ordinary function of a DTensor may communicate: reading some of its values gathers all of them."""
    return "torch.distributed.tensor" in sys.modules


@contextmanager
def no_communication() -> Iterator[None]:
    """Any collective raises ReplayError, unless a recorded one is handed out for it. Free without other ranks."""
    global _place
    if exchange.mine.depth or not dist.is_available():
        yield
        return
    if dist.is_initialized():
        _place = dist.get_rank(), dist.get_world_size(), dist.get_backend()
    if _place is None:
        yield
        return
    exchange.install()
    exchange.mine.depth += 1
    try:
        with _Refusing(), _group_there(_place):  # type: ignore[no-untyped-call]
            yield
    finally:
        exchange.mine.depth -= 1
        exchange.uninstall()


_place: tuple[int, int, str] | None = None
"""Rank, world size and backend, once there was a process group: a step that is repeated after its end asks for them again."""


@contextmanager
def _group_there(place: tuple[int, int, str]) -> Iterator[None]:
    """Where the script has destroyed its process group, one stands there that has nothing to communicate with."""
    if dist.is_initialized():
        yield
        return
    rank, size, backend = place
    group = dist.ProcessGroup(rank, size)  # type: ignore[call-arg]
    member, known = dist.distributed_c10d.GroupMember, dist.distributed_c10d._world
    member.WORLD = group
    known.pg_map[group] = backend, None  # type: ignore[assignment]
    known.pg_group_ranks[group] = {number: number for number in range(size)}
    try:
        yield
    finally:
        member.WORLD = None
        known.pg_map.pop(group, None)
        known.pg_group_ranks.pop(group, None)
