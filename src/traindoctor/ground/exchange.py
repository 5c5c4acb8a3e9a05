"""Every collective of torch.distributed passes a method of its process group: here those methods are replaced.

Above them stand the functions of `torch.distributed`, in whatever way a script imported them, its object collectives
and `torch.distributed.nn`. The compiler knows those functions by identity, so they stay as they are.

A call of the script's is issued as ever; while a step is taped the recorder is told of it. A call of ours is never
issued: it is handed what the step got, or refused.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils import checkpoint

from traindoctor.errors import ReplayError
from traindoctor.ground import quiet
from traindoctor.ground.collective import Handing
from traindoctor.ground.nested import tensors_in

REFUSED = "this would communicate with the other ranks, which traindoctor never does"

# What the first tensors of a call are. The rest of its arguments are options.
IN_PLACE = ("allreduce", "allreduce_coalesced", "broadcast", "reduce")
RESULT_FIRST = (
    *("allgather", "allgather_coalesced", "_allgather_base", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "gather", "scatter"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single"),
)
SENDING, RECEIVING = ("send",), ("recv", "recv_anysource")
# They move no tensor of the script's.
MEETING = ("barrier", "monitored_barrier")
# They make groups: nothing to hand out.
GROUPING = ("split_group", "merge_remote_group")

# On a node of a replay's own graph: what its backward pass is handed.
HANDING = "_traindoctor_handing"

_FUNCTION = BackwardCFunction.apply.__code__.co_filename
_CHECKPOINT = checkpoint.__file__


@dataclass(frozen=True)
class Request:
    """One call of a process group's method."""

    name: str
    rank: int
    size: int
    given: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    options: tuple[Any, ...]


class Listener(Protocol):
    """The recorder of a taped step. It raises nothing."""

    def asked(self, request: Callable[[], Request]) -> Any: ...

    def issued(self, heard: Any, work: Any) -> None: ...

    def waited(self, work: Any) -> None: ...

    def coalesced(self, work: Any) -> None: ...


class Mine(threading.local):
    """Of one thread: our code that communicates with nobody, and what it is handed."""

    depth = 0
    handing: Handing | None = None


listener: Listener | None = None
mine = Mine()
_installed = 0
_replaced: list[tuple[type, str, Any, Any]] = []


def listen(new: Listener | None) -> None:
    global listener
    listener = new


def install() -> None:
    """Replaces the methods; as many `uninstall` calls give them back."""
    global _installed
    _installed += 1
    if _installed > 1 or not dist.is_available():
        return
    for name in (*IN_PLACE, *RESULT_FIRST, *SENDING, *RECEIVING, *MEETING, *GROUPING):
        _replace(dist.ProcessGroup, name, _collective)
    _replace(dist.ProcessGroup, "_end_coalescing", _end_coalescing)
    _replace(dist.Work, "wait", _wait)


def uninstall() -> None:
    global _installed
    _installed -= 1
    if _installed == 0:
        for owner, name, original, replacement in _replaced:
            if getattr(owner, name) is replacement:  # else someone patched it after us
                setattr(owner, name, original)
        _replaced.clear()


def _replace(owner: type, name: str, make: Callable[[str, Any], Any]) -> None:
    original = vars(owner).get(name)
    if original is not None:
        # Read through the class it is a plain function; what lies in the class binds its object.
        function = getattr(owner, name)
        replacement = functools.wraps(function)(make(name, function))
        _replaced.append((owner, name, original, replacement))
        setattr(owner, name, replacement)


def _collective(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
        if quiet.active() or mine.depth:
            handing = _handing()
            if handing is not None or is_ours():
                return _answer(handing, request_of(name, group, args, kwargs))
        hearing = listener
        if hearing is None or torch.compiler.is_compiling():
            return original(group, *args, **kwargs)
        heard = hearing.asked(lambda: request_of(name, group, args, kwargs))
        work = original(group, *args, **kwargs)
        if heard is not None:
            hearing.issued(heard, work)
        return work

    return collective


def _wait(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        if listener is not None:
            listener.waited(work)
        return result

    return wait


def _end_coalescing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def end_coalescing(group: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(group, *args, **kwargs)
        if listener is not None:
            listener.coalesced(work)
        return work

    return end_coalescing


def is_ours() -> bool:
    """This thread runs our code. (Another thread of the script's may well communicate meanwhile.)"""
    return mine.depth > 0 or quiet.active_here()


def request_of(name: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Request:
    values = (*args, *kwargs.values())
    first = tuple(tensors_in(values[0])) if values else ()
    given: tuple[Tensor, ...] = ()
    targets: tuple[Tensor, ...] = ()
    options = values[1:]
    if name in IN_PLACE:
        given = targets = first
    elif name in RESULT_FIRST:
        given, targets, options = tuple(tensors_in(values[1])), first, values[2:]
    elif name in SENDING:
        given = first
    elif name in RECEIVING:
        targets = first
    return Request(name, group.rank(), group.size(), given, targets, options)


# -- what is handed out -----------------------------------------------------------------------------


@contextmanager
def handing_out(handing: Handing) -> Iterator[None]:
    """Collectives that this thread asks for inside get what was recorded."""
    before, mine.handing = mine.handing, handing
    try:
        yield
    finally:
        mine.handing = before


def backward_node() -> BackwardCFunction | None:
    """The node of the innermost autograd.Function whose backward runs in this thread; None while a checkpoint recomputes."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename == _CHECKPOINT:
            return None
        if filename == _FUNCTION:
            node = frame.f_locals.get("self")
            if isinstance(node, BackwardCFunction):
                return node
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _handing() -> Handing | None:
    found = getattr(backward_node(), HANDING, None)
    return found if found is not None else mine.handing


def _answer(handing: Handing | None, request: Request) -> Handed:
    if request.name in MEETING and handing is not None:
        return Handed(())
    if handing is None or request.name in GROUPING:
        raise ReplayError(REFUSED)
    handing.hand_out(request.name, request.given, request.targets)
    return Handed(request.targets)


class Handed:
    """Stands for torch's Work: all is there."""

    def __init__(self, results: tuple[Tensor, ...]) -> None:
        self.results = list(results)

    def wait(self, *_: Any) -> bool:
        return True

    synchronize = is_completed = is_success = wait

    def result(self) -> list[Tensor]:
        return self.results

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        future.set_result(self.results)
        return future
