"""Keeps the state of the first step whose loss or gradients are not finite, before the optimizer spoils it.

Looking costs a few microseconds per step: the root, and the gradients of three small parameters (whatever is
not finite in a backward pass spreads to all layers before it). On a device looking would mean waiting for it, so
the answer is read one pass later there, which is too late for the weights: they are kept for runs on the CPU only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    BatchFetched,
    Clipped,
    Event,
    ForwardBegin,
    LossCalled,
    StepBegin,
    StepEnd,
    TokensEmbedded,
)
from traindoctor.experiment.snapshot import Source, StepLog, _plain
from traindoctor.experiment.variables import data_variables
from traindoctor.ground.memory import memory, nbytes
from traindoctor.ground.names import Names, is_trainable_leaf, local
from traindoctor.ground.nested import tensors_in
from traindoctor.ground.our_ref import OurRef

NUM_WATCHED = 3
SEEN: dict[type, str] = {
    ForwardBegin: "forward",
    LossCalled: "loss",
    TokensEmbedded: "tokens",
    BatchFetched: "batch",
    BackwardBegin: "backward begins",
    BackwardEnd: "backward ended",
    Clipped: "clipped",
    StepBegin: "step begins",
    StepEnd: "step ended",
}
# What was given to modules and losses in a step of which only the pulse is heard: kind of call, weak references.
Notes = Sequence[tuple[str, Sequence[OurRef]]]


@dataclass
class Crash:
    """The step as it was when the first non-finite number was seen."""

    step: int
    phase: Literal["forward", "backward"]
    value: float
    parameters: dict[str, Tensor]
    log: StepLog
    weights_finite: bool
    largest_weight: float
    tried: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(map(nbytes, (*self.parameters.values(), *self.log.data.values())))


class CrashKeeper:
    """Listens to the run until the first crash."""

    def __init__(self, names: Names, notes: Notes = ()) -> None:
        self.names = names
        self.notes = notes
        self.crash: Crash | None = None
        self._data: dict[Source, Tensor] = {}
        """Of this step, until it is over: its backward pass needs most of it as long."""
        self._counts: dict[str, int] = {}
        self._steps = False
        """A torch optimizer steps in this run."""
        self._value = math.nan
        """Of the last root."""
        self._norm: float | None = None
        """Of the gradients that the step will find, where the script took it."""
        self._watched: list[Tensor] | None = None

    def on(self, event: Event, step: int) -> None:
        """Every event of every step passes here: one look-up for those of no interest."""
        kind = SEEN.get(type(event))
        if kind is None or self.crash is not None:
            return
        if kind == "forward":
            if event.grad:  # type: ignore[union-attr]
                self._see(kind, (event.args, event.kwargs))  # type: ignore[union-attr]
        elif kind == "loss":
            if event.wants_grad:  # type: ignore[union-attr]
                self._see(kind, event.target)  # type: ignore[union-attr]
        elif kind == "tokens":
            if event.wants_grad:  # type: ignore[union-attr]
                self._see(kind, event.index)  # type: ignore[union-attr]
        elif kind == "batch":
            self._see(kind, event.batch)  # type: ignore[union-attr]
        elif kind == "backward begins":
            self._counts["backward"] = self._counts.get("backward", -1) + 1
            for root in event.roots:  # type: ignore[union-attr]
                if root.is_cuda:
                    continue
                self._value = _total(root)
                if not math.isfinite(self._value):
                    self._keep(step, "forward", self._value)
                    return
        elif kind == "backward ended":
            if not self._steps:  # an optimizer of the script's own gives no other moment
                self._look_at_gradients(step)
                self._forget()
        elif kind == "clipped":
            # The script's own look at all of its gradients: nothing has to be added up.
            norm = event.total_norm  # type: ignore[union-attr]
            if norm is not None and not getattr(norm, "is_cuda", False):
                self._norm = float(local(norm))
        elif kind == "step begins":
            self._steps = True
            self._look_at_gradients(step)
            self._forget()
        else:
            self._forget()

    def _look_at_gradients(self, step: int) -> None:
        norm, self._norm = self._norm, None
        broken = self._gradients_broken() if norm is None else not math.isfinite(norm)
        if broken:
            self._keep(step, "backward", self._value)

    def _forget(self) -> None:
        self._data.clear()
        self._counts.clear()

    def _see(self, kind: str, tree: Any) -> None:
        number = self._counts[kind] = self._counts.get(kind, -1) + 1
        found = (tree,) if isinstance(tree, Tensor) else tensors_in(_plain(tree))
        for place, tensor in enumerate(found):
            if not tensor.requires_grad:
                self._data[kind, number, place] = tensor

    def seen(self) -> dict[Source, Tensor]:
        """The data of the step so far, and what the script's variables hold now."""
        held = data_variables(self._counts.get("backward", 0))
        return self._data | {("variable", number, place): tensor for number, place, tensor in held}

    def _gradients_broken(self) -> bool:
        if self._watched is None:
            small = [
                p for _, p in self.names.parameters() if is_trainable_leaf(p) and not p.is_cuda
            ]
            small = [p for p in small if p.numel() <= 4096 and p.grad is not None]
            middle = len(small) // 2
            chosen = [*small[:1], *small[middle : middle + 1], *small[-1:]]
            if not chosen:
                return False
            self._watched = chosen[:NUM_WATCHED]
        # The first use of an operation after a pass costs most of it: nothing but sums and reads.
        grads = (p.grad for p in self._watched)
        return any(g is not None and not math.isfinite(local(g).sum().item()) for g in grads)

    def _keep(self, step: int, phase: Literal["forward", "backward"], value: float) -> None:
        for kind, refs in self.notes:
            self._see(kind, [tensor for ref in refs if (tensor := ref()) is not None])
        named = [(n, local(p).detach()) for n, p in self.names.parameters() if is_trainable_leaf(p)]
        data = self.seen()
        total = sum(nbytes(p) for _, p in named) + sum(nbytes(t) for t in data.values())
        log = StepLog(step)
        kept: dict[str, Tensor] = {}
        if total <= memory.room():
            kept = {name: p.clone() for name, p in named}
            log.data = {source: local(t).detach().clone() for source, t in data.items()}
        largest = max((float(p.abs().max()) for _, p in named if p.numel()), default=0.0)
        finite = all(bool(torch.isfinite(p).all()) for _, p in named)
        self.crash = Crash(step, phase, value, kept, log, finite, largest)
        self._data.clear()


def _total(root: Tensor) -> float:
    """The value of what backward is called on; roots are nearly always one number."""
    return root.item() if root.numel() == 1 else float(root.detach().sum())
