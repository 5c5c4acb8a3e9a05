"""The spread of the numbers that a regression is asked for: what guessing their mean would cost."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from traindoctor.events import Event, LossCalled
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter

SQUARED = frozenset({"mse_loss"})


class TargetNumbers:
    """`target.variance` of the step's targets where the loss is a mean squared error, and `loss.squared`, the error."""

    name: ClassVar[str] = "target_numbers"
    gives: ClassVar[tuple[str, ...]] = ("target.variance", "loss.squared")
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (LossCalled,)

    def __init__(self) -> None:
        self._later = Later()
        self._found: Tensor | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if not isinstance(event, LossCalled) or not due or self._found is not None:
            return
        if event.kind not in SQUARED or not event.wants_grad or event.reduction != "mean":
            return
        target = event.target.detach().float()
        # Several numbers per row may each have a mean of their own.
        if target.ndim and len(target) > 1:
            variance = target.var(dim=0, unbiased=False).mean()
            self._found = variance.new_zeros(2)
            self._found[0], self._found[1] = variance, event.output.detach().float()

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        found, self._found = self._found, None
        if found is not None:
            self._later.put(
                step,
                found,
                lambda pair: record.scalars(
                    step, {"target.variance": float(pair[0]), "loss.squared": float(pair[1])}
                ),
            )
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()
