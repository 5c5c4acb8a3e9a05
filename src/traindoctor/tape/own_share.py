"""Which part of a collective's result is this rank's own, by the kind of the collective."""

from __future__ import annotations

from typing import Any

from traindoctor.ground.collective import Link
from traindoctor.ground.exchange import RECEIVING, Request

# The result is a sum of what all ranks gave; AVG divides it by their number.
SUMS = frozenset({"SUM", "AVG"})
GATHERED_LISTS = ("allgather", "gather")
GATHERED_WHOLE = (
    *("_allgather_base", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced"),
)
SCATTERED_WHOLE = (
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
)


def reduction(request: Request) -> str | None:
    """`SUM`, `MAX`, ...; None where nothing is reduced."""
    for option in request.options:
        found = getattr(option, "reduceOp", option)
        kind = getattr(found, "op", found)
        if type(kind).__name__ == "RedOpType":
            return str(kind.name)
    reduces = request.name.startswith(("allreduce", "reduce", "_reduce"))
    return "SUM" if reduces else None  # torch's default


def root(request: Request) -> int | None:
    """The rank that a broadcast comes from, or a reduction goes to."""
    for option in request.options:
        found = getattr(option, "rootRank", option)
        if isinstance(found, int):
            return found
    return None


def own_share(request: Request) -> tuple[Link, ...] | None:
    """Links from what was given to what comes back; None where they are not known."""
    name, rank, size = request.name, request.rank, request.size
    reduce = reduction(request)
    if reduce is not None and reduce not in SUMS:
        return None
    factor = 1 / size if reduce == "AVG" else 1.0
    given, targets = request.given, request.targets
    is_root = root(request) == rank
    if name.startswith("allreduce") or (name == "reduce" and is_root):
        return tuple(Link(i, i, factor=factor) for i in range(len(given)))
    if name == "broadcast":
        return tuple(Link(i, i, slot=True) for i in range(len(given))) if is_root else ()
    if name in RECEIVING or not targets:
        return ()
    if name in GATHERED_LISTS:
        return (Link(rank, 0, slot=True),) if len(given) == 1 else None
    if name in GATHERED_WHOLE:
        return tuple(
            Link(i, i, to=rank * given[i].numel(), length=given[i].numel(), slot=True)
            for i in range(len(given))
        )
    if name == "scatter":
        return (Link(0, rank, slot=True),) if is_root else ()
    if name == "reduce_scatter":
        return (Link(0, rank, factor=factor),) if len(targets) == 1 else None
    if name in SCATTERED_WHOLE:
        return tuple(
            Link(i, i, of=rank * targets[i].numel(), length=targets[i].numel(), factor=factor)
            for i in range(len(targets))
        )
    if name == "alltoall":
        return (Link(rank, rank, slot=True),)
    if name in ("alltoall_base", "all_to_all_single"):
        return _own_split(request)
    return None


def _own_split(request: Request) -> tuple[Link, ...] | None:
    """The stretch that this rank sends to itself; without split sizes all stretches are alike."""
    rank, size = request.rank, request.size
    (given,), (target,) = request.given, request.targets
    splits = [list(option) for option in request.options if isinstance(option, list | tuple)]
    received, sent = (*splits, [], [])[:2]
    to, length = _stretch(target, received, rank, size)
    of, sent_length = _stretch(given, sent, rank, size)
    return (Link(0, 0, to, of, length, slot=True),) if length == sent_length else None


def _stretch(tensor: Any, splits: list[int], rank: int, size: int) -> tuple[int, int]:
    """Start and length in numbers; splits count rows."""
    if not splits:
        length = tensor.numel() // size
        return rank * length, length
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return sum(splits[:rank]) * row, splits[rank] * row
