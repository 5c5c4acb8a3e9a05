"""How far a step moves the weights: parameter norm, update norm and their ratio, by layer and in all."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, ForwardBegin, StepBegin, StepEnd
from traindoctor.ground.memory import memory
from traindoctor.ground.torch_private import foreach_norm
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# One copy of the parameters for the time of one step; larger models are not copied.


class Update:
    """Norms of the parameters and of their change over one sampled step."""

    name: ClassVar[str] = "update"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 10
    hears: ClassVar[tuple[type, ...]] = (
        ForwardBegin,
        StepBegin,
        StepEnd,
    )

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._before: list[tuple[Tensor, Tensor]] = []
        self._optimizer: torch.optim.Optimizer | None = None
        self._norms: tuple[Tensor, Tensor] | None = None
        self._gradient: Tensor | None = None
        self._sizes: list[int] = []
        self._names: list[str] = []

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin) and event.wants_grad:
            self.trees.learn(event.module)
        elif isinstance(event, StepBegin) and due:
            parameters = [
                p
                for group in event.optimizer.param_groups
                for p in group["params"]
                if p.requires_grad and p.numel() and not hasattr(p, "to_local")
            ]
            if parameters and sum(p.nbytes for p in parameters) <= memory.room():
                self._optimizer = event.optimizer
                self._before = [(p, p.detach().clone()) for p in parameters]
                self._gradient = total_norm([p.grad for p in parameters if p.grad is not None])
        elif isinstance(event, StepEnd) and event.optimizer is self._optimizer:
            before, self._before, self._optimizer = self._before, [], None
            if self._gradient is None:  # a closure makes its gradients inside of the step
                self._gradient = total_norm([p.grad for p, _ in before if p.grad is not None])
            self._measure(before)

    @torch.no_grad()
    def _measure(self, before: list[tuple[Tensor, Tensor]]) -> None:
        names = self.trees.names()
        self._names = [names.get(id(p), f"parameter {i}") for i, (p, _) in enumerate(before)]
        self._sizes = [p.numel() for p, _ in before]
        old = [b.float() for _, b in before]
        change = [p.detach().float() - b for (p, _), b in zip(before, old)]
        device = change[0].device
        self._norms = (
            torch.stack([n.to(device) for n in foreach_norm(old)]),
            torch.stack([n.to(device) for n in foreach_norm(change)]),
        )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._norms is None:
            return
        weights, updates = (norms.double().cpu() for norms in self._norms)
        gradient, self._gradient, self._norms = self._gradient, None, None
        param_norm, update_norm = float(weights.norm()), float(updates.norm())
        record.scalars(
            step,
            {
                "grad.norm_at_step": 0.0 if gradient is None else float(gradient),
                "param.norm": param_norm,
                "update.norm": update_norm,
                "update.ratio": update_norm / param_norm if param_norm else math.inf,
            },
        )
        root = torch.tensor(self._sizes, dtype=torch.float64).sqrt()
        record.layers("weight.rms", step, self._names, (weights / root).numpy())
        record.layers("update.rms", step, self._names, (updates / root).numpy())


@torch.no_grad()
def total_norm(gradients: list[Tensor]) -> Tensor | None:
    """What the optimizer finds; None where it finds nothing."""
    dense = [g for g in gradients if not g.is_sparse]
    if not dense:
        return torch.tensor(math.nan) if gradients else None
    norms = foreach_norm(dense)
    total: Tensor = torch.stack([n.to(norms[0].device).float() for n in norms]).norm()
    return total
