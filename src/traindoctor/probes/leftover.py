"""Gradients that are still there when the first backward pass after a step begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from traindoctor.events import BackwardBegin, Event, StepEnd
from traindoctor.probes.base import Cost, Later, parameters_of
from traindoctor.record import RecordWriter
from traindoctor.replay.names import local

if TYPE_CHECKING:
    from traindoctor.replay.names import Names


class Leftover:
    """`grad.leftover_norm`: 0 where every `.grad` is None (seen at each step, free), else their norm when due.

    Only of parameters that an optimizer steps: nobody clears the gradients of those it lacks, and nothing comes
    of them either.
    """

    name: ClassVar[str] = "leftover"
    gives: ClassVar[tuple[str, ...]] = ("grad.leftover_norm",)
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 2
    hears: ClassVar[tuple[type, ...]] = (BackwardBegin, StepEnd)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._norm: Tensor | float | None = None
        self._held: set[int] = set()

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, StepEnd):
            self._held.update(id(p) for g in event.optimizer.param_groups for p in g["params"])
            return
        if not isinstance(event, BackwardBegin) or not event.first or event.inputs is not None:
            return
        found = [
            local(p.grad).detach()
            for _, p in parameters_of(self.names)
            if (not self._held or id(p) in self._held)
            and p.grad is not None
            and not p.grad.is_sparse
            and p.grad.numel()
        ]
        if not found:
            self._norm = 0.0
        elif due:
            norms = [norm.to(found[0].device).float() for norm in torch._foreach_norm(found)]
            self._norm = torch.linalg.vector_norm(torch.stack(norms))

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        norm, self._norm = self._norm, None
        if isinstance(norm, float):
            record.scalar("grad.leftover_norm", step, norm)
        elif norm is not None:
            self._later.put(
                step, norm, lambda value: record.scalar("grad.leftover_norm", step, float(value))
            )
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()
