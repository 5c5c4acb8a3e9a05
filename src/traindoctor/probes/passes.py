"""How many forward and backward passes a step has."""

from __future__ import annotations

from typing import ClassVar

from traindoctor.events import BackwardBegin, Event, ForwardBegin
from traindoctor.ground.nested import tensors_in
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter


class Passes:
    """`forward.calls` counts outermost training calls that want a gradient; evaluation is not among them.

    `forward.batch` is the first dimension of the first tensor such a call was given: 1 with many calls is a
    loop over examples.
    """

    name: ClassVar[str] = "passes"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (BackwardBegin, ForwardBegin)

    def __init__(self) -> None:
        self._forward = self._backward = self._into_grad = 0
        self._batch: int | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad:
            self._forward += 1
            if self._batch is None:
                self._batch = batch_size(event)
        elif isinstance(event, BackwardBegin):
            self._backward += 1
            self._into_grad += event.inputs is None

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        record.scalar("forward.calls", step, self._forward)
        record.scalar("backward.calls", step, self._backward)
        record.scalar("backward.into_grad", step, self._into_grad)
        if self._batch is not None:
            record.scalar("forward.batch", step, self._batch)
        self._forward = self._backward = self._into_grad = 0
        self._batch = None


def batch_size(event: ForwardBegin) -> int | None:
    sizes = (tensor.shape[0] for tensor in tensors_in((event.args, event.kwargs)) if tensor.ndim)
    return next(sizes, None)
