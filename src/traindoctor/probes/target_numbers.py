"""The spread of the numbers that a regression is asked for: what guessing their mean would cost."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from traindoctor.events import BackwardEnd, Event, LossCalled
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter

SQUARED = frozenset({"mse_loss"})


class TargetNumbers:
    """`target.variance` of the step's targets where the loss is a mean squared error, and `loss.squared`, the error.

    Of several such errors in a step (a code book's and the reconstruction's) the one that is least beside its variance
    speaks: a run that learns some of its numbers learns.
    """

    name: ClassVar[str] = "target_numbers"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (LossCalled, BackwardEnd)

    def __init__(self) -> None:
        self._later = Later()
        self._found: list[Tensor] = []
        self._whole = False  # a further micro-batch says the same again

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, BackwardEnd):
            self._whole = bool(self._found)
        if not isinstance(event, LossCalled) or not due or self._whole:
            return
        if event.kind not in SQUARED or not event.wants_grad or event.reduction != "mean":
            return
        target = event.target.detach().float()
        # Several numbers per row may each have a mean of their own.
        if target.ndim and len(target) > 1:
            variance = target.var(dim=0, unbiased=False).mean()
            pair = variance.new_zeros(2)
            pair[0], pair[1] = variance, event.output.detach().float()
            self._found.append(pair)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        found, self._found, self._whole = self._found, [], False
        if found:
            device = found[0].device
            self._later.put(
                step,
                torch.stack([pair.to(device) for pair in found]),
                lambda pairs: record.scalars(step, best_learned(pairs)),
            )
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def best_learned(pairs: Tensor) -> dict[str, float]:
    """The pair (variance, error) whose error is the smallest share of its variance; constant targets only alone."""
    shares = torch.where(pairs[:, 0] > 0, pairs[:, 1] / pairs[:, 0], torch.inf)
    variance, error = pairs[int(shares.nan_to_num(nan=torch.inf).argmin())].tolist()
    return {"target.variance": variance, "loss.squared": error}
