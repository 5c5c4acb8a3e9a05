"""The recorder's ear for collectives: each becomes an Op, or a line in the log of the autograd.Function it ran in.

In a forward pass the Op stands where the script waited for the result. A backward pass is not taped; what a Function's
backward asks of the other ranks is kept with the Function, and handed out when a replay runs that backward.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from traindoctor.ground import frames
from traindoctor.ground.collective import Collective
from traindoctor.ground.exchange import GROUPING, MEETING, RECEIVING, Request, backward_node
from traindoctor.ground.names import is_trainable_leaf
from traindoctor.ground.quiet import quiet
from traindoctor.ground.torch_private import DisableTorchFunction
from traindoctor.tape.ops import FunctionCall, Op, Ref
from traindoctor.tape.own_share import own_share, reduction
from traindoctor.tape.page import Page

FRAMES_OF_OURS = 3
# What they bring comes from other ranks alone or with the script's own data: a batch, not a result of the step.
BRINGING = (*RECEIVING, "broadcast", "scatter", "allgather", "_allgather_base")


@dataclass(slots=True)
class Heard:
    """A collective of the script's that is under way."""

    request: Request
    place: frames.Place
    function: FunctionCall | None = None
    given: tuple[Tensor, ...] = ()
    backward: bool = False
    depends_on: int = 0
    inputs: tuple[Ref, ...] = ()
    targets: tuple[Ref, ...] = ()
    update: list[Tensor] = field(default_factory=list)
    """Parameters that it writes to."""

    @property
    def kept(self) -> bool:
        """A replay may need it. (Gradients that are averaged by hand after the backward pass are not copied.)"""
        return bool(self.depends_on) or self.function is not None


class Recording(Protocol):
    """What is asked of the recorder that listens."""

    page: Page
    seconds: float
    done: bool

    @property
    def in_step(self) -> bool: ...

    @property
    def in_backward(self) -> bool: ...

    def fail(self, error: Exception) -> None: ...


class CollectiveWriter:
    """A Listener (ground/exchange.py) for one taped step."""

    def __init__(self, recorder: Recording) -> None:
        self.recorder = recorder
        self.draft, self.tensors = recorder.page.draft, recorder.page.tensors
        self.functions = recorder.page.functions
        self.thread = threading.get_ident()
        self._waiting: dict[int, tuple[Any, list[Heard]]] = {}
        """Work by identity: what it will have done once the script has waited for it."""

    @property
    def unfinished(self) -> bool:
        """The script has not waited for something that the step's values may depend on."""
        return any(heard.depends_on for _, many in self._waiting.values() for heard in many)

    def clear(self) -> None:
        self._waiting.clear()

    def asked(self, request: Callable[[], Request]) -> Heard | None:
        heard: Heard | None = self._guarded(lambda: self._asked(request()))
        return heard

    def issued(self, heard: Heard, work: Any) -> None:
        if work is None:  # the backend has waited already
            self._guarded(lambda: self._complete(heard))
        else:
            self._waiting[id(work)] = (work, [heard])

    def coalesced(self, work: Any) -> None:
        """One Work stands for all that were begun together."""
        if work is not None and self._waiting:
            together = [heard for _, many in self._waiting.values() for heard in many]
            self._waiting = {id(work): (work, together)}

    def waited(self, work: Any) -> None:
        _, done = self._waiting.pop(id(work), (None, []))
        for heard in done:
            self._guarded(partial(self._complete, heard))

    def _guarded(self, action: Callable[[], Any]) -> Any:
        recorder = self.recorder
        if recorder.done:
            return None
        try:
            began = time.perf_counter()
            # The script's modes hear nothing of ours.
            with quiet(), torch.no_grad(), DisableTorchFunction():
                found = action()
            recorder.seconds += time.perf_counter() - began
        except Exception as error:  # the border: the script's collective goes on
            recorder.fail(error)
            return None
        return found

    # -- before and after ---------------------------------------------------------------------------

    def _asked(self, request: Request) -> Heard | None:
        recorder = self.recorder
        if recorder.in_step or request.name in (*MEETING, *GROUPING):
            return None
        if recorder.in_backward:
            return self._asked_in_backward(request)
        if threading.get_ident() != self.thread:
            return None
        place = frames.here(FRAMES_OF_OURS)
        function = self.functions.innermost(place, self.tensors.ref)
        heard = Heard(request, place, function)
        for tensor in request.given:
            heard.depends_on |= self.tensors.storage(tensor).depends_on
        if heard.kept:
            heard.given = self._copies(request.given)
        heard.update = [t for t in request.targets if self._is_parameter(t)]
        if heard.depends_on and not heard.update:
            heard.inputs = tuple(self.tensors.ref(t, function) for t in request.given)
            for target in request.targets:
                storage = self.tensors.storage(target)
                if storage.base is None and not (storage.made and storage.depends_on):
                    self.tensors.keep_base(target, storage)
            heard.targets = tuple(self.tensors.ref(t, function) for t in request.targets)
        return heard

    def _asked_in_backward(self, request: Request) -> Heard | None:
        node = backward_node()
        if node is None:
            # Gradients are joined after their pass (DistributedDataParallel), or a checkpoint recomputes.
            if self.draft.hooked_values:
                self.draft.gap("a hook of the script's joins gradients of several ranks")
            return None
        call = self.functions.of_node(node)
        if call is None:
            self.draft.gap(
                f"the backward pass of {type(node)._forward_cls.__name__} joins gradients of several ranks "  # type: ignore[attr-defined]
                "in a graph that the tape does not know"
            )
            return None
        place = frames.here(FRAMES_OF_OURS)
        return Heard(request, place, call, self._copies(request.given), backward=True)

    def _complete(self, heard: Heard) -> None:
        request, call = heard.request, heard.function
        if heard.kept:
            collective = self._collective(heard)
            if heard.backward:
                assert call is not None
                call.backward_log.append(collective)
                return
            while call is not None:
                call.forward_log.append(collective)
                call = call.parent
            if heard.depends_on and not heard.update:
                self._write(heard, collective)
                return
        for parameter in heard.update:
            self.recorder.page.writer.updated(parameter)
        for target in request.targets:
            self.tensors.received(target, as_data=request.name in BRINGING)

    def _collective(self, heard: Heard) -> Collective:
        request = heard.request
        return Collective(
            name=request.name,
            reduce=reduction(request),
            rank=request.rank,
            size=request.size,
            given=heard.given,
            results=self._copies(request.targets),
            links=own_share(request),
            line=heard.place.line or heard.place.package_line,
        )

    def _write(self, heard: Heard, collective: Collective) -> None:
        for target in heard.request.targets:
            self.tensors.storage(target).depends_on |= heard.depends_on
        op = Op(
            number=0,
            name=collective.public_name,
            func=collective.hand_out,
            args=(list(heard.inputs), list(heard.targets)),
            kwargs={},
            inputs=tuple(dict.fromkeys(heard.inputs)),
            outputs=(),
            writes=tuple(dict.fromkeys(heard.targets)),
            depends_on=heard.depends_on,
            function=heard.function,
        )
        self.draft.append(op, heard.place)

    def _is_parameter(self, tensor: Tensor) -> bool:
        return is_trainable_leaf(tensor) or self.tensors.storage(tensor).leaf is not None

    def _copies(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(self.draft.copy(tensor) for tensor in tensors)
