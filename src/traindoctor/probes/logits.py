"""How large the scores are that enter the loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, LossCalled
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter


class Logits:
    """`logits.absmax`: the largest absolute value among the inputs of the step's first loss call."""

    name: ClassVar[str] = "logits"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 10
    hears: ClassVar[tuple[type, ...]] = (LossCalled,)

    def __init__(self) -> None:
        self._later = Later()
        self._absmax: Tensor | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, LossCalled) and due and event.wants_grad and self._absmax is None:
            if event.input.numel() and event.input.is_floating_point():
                low, high = torch.aminmax(event.input.detach())
                self._absmax = torch.maximum(high, -low)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._absmax is not None:
            self._later.put(
                step,
                self._absmax,
                lambda value: record.scalar("logits.absmax", step, float(value)),
            )
            self._absmax = None
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()
