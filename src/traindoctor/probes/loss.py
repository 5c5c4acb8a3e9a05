"""The loss: what backward was called on, and what the script read of it."""

from __future__ import annotations

from typing import ClassVar

import torch

from traindoctor.events import BackwardBegin, Event, ScalarRead
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter


class Loss:
    """`loss.root`: the sum of the step's roots, a scaler's factor divided out. `loss.read`: the last scalar read
    that depends on the parameters, or repeats a root's value."""

    name: ClassVar[str] = "loss"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (BackwardBegin, ScalarRead)

    def __init__(self) -> None:
        self._later = Later()
        self._root: torch.Tensor | None = None
        self._sum: float | None = None
        self._values: list[float] = []
        self._read: float | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BackwardBegin):
            if event.gradients is not None and any(g is not None for g in event.gradients):
                return  # not a loss: the script passes a gradient on
            for root in event.roots:
                if isinstance(root, torch.Tensor) and root.numel() == 1:
                    self._add(root.detach(), event.scale)
        elif isinstance(event, ScalarRead):
            if event.tensor.requires_grad or event.value in self._values:
                self._read = event.value

    def _add(self, root: torch.Tensor, scale: float) -> None:
        if root.device.type == "cpu":
            # One read is cheaper than any arithmetic on tensors, and nobody has to be waited for.
            value = root.item()
            self._values.append(value)
            self._sum = (self._sum or 0.0) + value / scale
        else:
            loss = root.reshape(()).float() / scale
            self._root = loss if self._root is None else self._root + loss.to(self._root.device)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._sum is not None:
            record.scalar("loss.root", step, self._sum)
        elif self._root is not None:
            self._later.put(
                step, self._root, lambda value: record.scalar("loss.root", step, float(value))
            )
        if self._read is not None:
            record.scalar("loss.read", step, self._read)
        self._root, self._sum, self._read = None, None, None
        # A script prints its loss after the step: the values of this step stay for the reads to come.
        self._values = self._values[-64:]
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()
