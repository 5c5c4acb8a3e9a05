"""What each loss call of a step was asked: the tokens embedded before it and its targets, on the host.

Several probes read the same tensors: a tensor is copied once. On a GPU the copy is asynchronous and
read one step later, so that the run never waits for us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from traindoctor.events import BackwardEnd, Event, ForwardBegin, LossCalled, TokensEmbedded
from traindoctor.graph.alignment import Mask, Tokens, looks_like_positions
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef
from traindoctor.tape.operators import BINARY_LOSSES, CLASS_LOSSES

if TYPE_CHECKING:
    from torch import Tensor

# Images and audio are told apart by so many of their values per row; all of them would cost a step.
MOST_PER_ROW = 256
# A step of many micro-batches is described by its first ones.
MOST_SAMPLES = 16
# A GPU may be a few steps behind the script: its copies are waited for only when they are so many steps old.
PATIENCE = 8


class HostCopy:
    """A copy of a tensor in host memory; `read()` waits for a GPU's copy, if it still runs."""

    def __init__(self, tensor: Tensor) -> None:
        import torch

        source = tensor.detach()
        self._event: Any = None
        if source.device.type == "cuda":
            self._host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._host.copy_(source, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = source.cpu().clone()

    @cached_property
    def positions(self) -> bool:
        """Whether the numbers count places; looked at once, whoever asks."""
        return looks_like_positions(self.read())

    @property
    def late(self) -> bool:
        """Whether reading now would make the run wait."""
        return self._event is not None and not self._event.query()

    def read(self) -> NDArray[Any]:
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        host = self._host
        return host.numpy() if str(host.dtype) != "torch.bfloat16" else host.float().numpy()


_recent: deque[tuple[OurRef, int, HostCopy]] = deque(maxlen=32)


def host_copy(tensor: Tensor) -> HostCopy:
    """The copy of this tensor in its present version, shared by all who ask."""
    version = tensor._version if not tensor.is_inference() else 0
    for known, at, copy in _recent:
        if known() is tensor and at == version:
            return copy
    copy = HostCopy(tensor)
    _recent.append((OurRef(tensor), version, copy))
    return copy


@dataclass
class Sample:
    """One loss call. `tokens` are the indices embedded before it that look like data."""

    kind: str
    shape: tuple[int, ...]
    classes: int
    ignore_index: int
    wants_grad: bool
    target: HostCopy
    tokens: list[HostCopy] = field(default_factory=list)
    dense: HostCopy | None = None
    """The first floating-point argument of the model, thinned, where nothing was embedded."""
    lengths: frozenset[int] = frozenset()
    """Of the tensors that the model was given."""

    @property
    def binary(self) -> bool:
        return self.kind in BINARY_LOSSES

    @property
    def targets(self) -> Tokens:
        raw = self.target.read()
        return np.ascontiguousarray(raw > 0.5 if self.binary else raw).astype(np.int64, copy=False)

    @property
    def valid(self) -> Mask:
        y = self.targets
        valid: Mask = (y != self.ignore_index) & (y >= 0) & (y < self.classes)
        return valid

    def inputs(self) -> list[Tokens]:
        """The token indices that name data, not places."""
        return [
            copy.read().astype(np.int64, copy=False)
            for copy in self.tokens
            if copy.read().ndim >= 1 and not copy.positions
        ]

    @property
    def contrastive(self) -> bool:
        """Targets 0, 1, 2, ... against a square of scores: each row is its own class."""
        y = self.targets.reshape(-1)
        return y.size == self.classes and np.array_equal(y, np.arange(y.size))


class Samples:
    """Collects the loss calls of a step with the tokens that led to them."""

    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, TokensEmbedded, LossCalled, BackwardEnd)

    def __init__(self) -> None:
        self._tokens: list[HostCopy] = []
        self._dense: HostCopy | None = None
        self._lengths: set[int] = set()
        self._now: list[Sample] = []
        self._waiting: list[tuple[int, list[Sample]]] = []

    def on(self, event: Event) -> None:
        match event:
            case ForwardBegin():
                # A loss module is a forward of its own: it keeps what the model's has left.
                if event.wants_grad:
                    given = tensors_in((event.args, event.kwargs))
                    self._lengths |= {len(x) for x in given if x.ndim and x.grad_fn is None}
                if self._dense is None and not self._tokens and event.wants_grad:
                    for tensor in dense_arguments(event.args, event.kwargs):
                        self._dense = host_copy(thinned(tensor))
                        break
            case TokensEmbedded():
                if is_integer(event.index) and len(self._tokens) < MOST_SAMPLES:
                    self._tokens.append(host_copy(event.index))
            case LossCalled():
                named = event.kind in CLASS_LOSSES and is_integer(event.target)
                if named or (event.kind in BINARY_LOSSES and event.target.ndim == 2):
                    self._add(event)
            case BackwardEnd():
                self._forget()

    def take(self, step: int) -> list[tuple[int, list[Sample]]]:
        """The samples that can be read without waiting: this step's on a CPU, the last one's on a GPU."""
        if self._now:
            self._waiting.append((step, self._now))
        self._now = []
        self._forget()
        ready = [
            (at, samples)
            for at, samples in self._waiting
            if step - at >= PATIENCE or not any(s.target.late for s in samples)
        ]
        self._waiting = [entry for entry in self._waiting if entry not in ready]
        return ready

    def _add(self, event: LossCalled) -> None:
        if len(self._now) >= MOST_SAMPLES:
            return
        scores = event.input
        classes = scores.shape[1] if scores.ndim > 1 else scores.shape[0]
        self._now.append(
            Sample(
                kind=event.kind,
                shape=tuple(event.target.shape),
                classes=int(classes),
                ignore_index=event.ignore_index,
                wants_grad=event.wants_grad,
                target=host_copy(event.target),
                tokens=list(self._tokens),
                dense=None if self._tokens else self._dense,
                lengths=frozenset(self._lengths),
            )
        )
        if not event.wants_grad:
            self._forget()

    def _forget(self) -> None:
        self._tokens.clear()
        self._lengths.clear()
        self._dense = None


def is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def thinned(tensor: Tensor) -> Tensor:
    """At most MOST_PER_ROW values of each row, evenly spaced."""
    flat = tensor.detach()
    if flat.ndim < 2 or flat[0].numel() <= MOST_PER_ROW:
        return flat
    flat = flat.reshape(flat.shape[0], -1)
    return flat[:, :: flat.shape[1] // MOST_PER_ROW][:, :MOST_PER_ROW]


def arguments_with_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Data among a module's arguments. Activations of an outer part of the model carry a graph; data does not."""
    for item in tensors_in((args, kwargs)):
        if item.ndim >= 2 and item.grad_fn is None and item.numel():
            if str(item.layout) == "torch.strided":
                yield item


def dense_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    return (item for item in arguments_with_rows(args, kwargs) if item.is_floating_point())
