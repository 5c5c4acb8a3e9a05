"""Half weights whose optimizer's rule is not known: is what is smaller than their spacing kept somewhere, or lost?

A script may step them by itself, or by an optimizer of its own. How often a weight moves tells. With a master copy (or compensation, or
stochastic rounding) a weight moves once in so many steps as make up its spacing: half as often where the spacing is
twice as wide. Where each update is rounded away by itself, weights whose spacing is too wide never move at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.errors import ReplayError
from traindoctor.events import BackwardEnd, Event, ForwardBegin, StepBegin
from traindoctor.experiment.rules import rule_of
from traindoctor.ground.names import local
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

HALVES = (torch.bfloat16, torch.float16)
# A master copy begins on a weight of the grid, half a spacing away from the next: it needs some updates to get there.
FIRST, STEPS = 36, 24
# Entries of one tensor that are looked at.
ENTRIES = 4096
# Among the weights of one spacing at least this many, of which this share moves at a step: their updates are about
# as large as the spacing.
ENOUGH, RESOLVED = 100, 0.25
# They are compared with weights of four times the spacing.
WIDER = 2


@dataclass(frozen=True)
class Moves:
    """Moves of weights with the wider spacing, and how many a kept remainder would make of the same updates."""

    observed: float
    expected: float
    unmoved: float
    """Entries that had a gradient and did not move, summed over the steps."""
    entries: float


def moves_of(weights: list[Tensor], pushed: list[Tensor]) -> Moves:
    """One tensor's weights at successive steps, and which of them had a gradient (one less or as many)."""
    values = torch.stack(weights).float()
    moved = values[1:] != values[:-1]
    counted = torch.stack(pushed[: len(moved)]) & (values[:-1] != 0)
    # Below the smallest normal number the spacing no longer shrinks.
    smallest = int(torch.frexp(torch.tensor(torch.finfo(weights[0].dtype).tiny)).exponent)
    exponents = torch.frexp(values[:-1]).exponent.clamp(min=smallest)[counted]
    moved = moved[counted]
    lowest = int(exponents.min()) if len(exponents) else 0
    counts = torch.bincount(exponents - lowest).double()
    sums = torch.bincount(exponents - lowest, weights=moved.double(), minlength=len(counts))
    total, still = float(len(moved)), float(len(moved) - moved.sum())
    resolved = (counts >= ENOUGH) & (sums >= RESOLVED * counts)
    if not bool(resolved.any()):
        return Moves(0.0, 0.0, still, total)
    edge = int(resolved.nonzero().max())
    wider = edge + WIDER
    if wider >= len(counts):
        return Moves(0.0, 0.0, still, total)
    rate = float(sums[edge] / counts[edge]) / 2**WIDER
    return Moves(float(sums[wider]), rate * float(counts[wider]), still, total)


class HalfMoves:
    """The fact `weights.half_moves`, once, in runs whose optimizer has no rule that could be repeated."""

    name: ClassVar[str] = "half_moves"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, BackwardEnd, StepBegin)

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._over = False
        self._unknown = False
        """The optimizer's rule cannot be repeated: `step_accounting` refuses it."""
        self._updates = 0
        self._weights: dict[str, list[Tensor]] = {}
        self._pushed: dict[str, list[Tensor]] = {}

    def on(self, event: Event, *, due: bool) -> None:
        if self._over:
            return
        if isinstance(event, StepBegin):
            self._ask(event.optimizer)
        elif isinstance(event, ForwardBegin):
            if event.wants_grad:
                self.trees.learn(event.module)
        elif isinstance(event, BackwardEnd):
            self._look()

    def _ask(self, optimizer: torch.optim.Optimizer) -> None:
        """A rule that is known is repeated by `step_accounting`, which says more."""
        if self._unknown:
            return
        try:
            rule_of(optimizer)
            self._end()
        except ReplayError:
            self._unknown = True

    @torch.no_grad()
    def _look(self) -> None:
        """Between two backward passes lies one update, or none while gradients are accumulated."""
        now: dict[str, tuple[Tensor, Tensor]] = {}
        for name, p in self.trees.parameters():
            gradient = p.grad
            if p.dtype in HALVES and p.requires_grad and gradient is not None and p.numel():
                if gradient.is_sparse or gradient.shape != p.shape:
                    continue
                stride = max(1, local(p).numel() // ENTRIES)
                sample = local(p).detach().flatten()[::stride].clone()
                now[name] = (sample, local(gradient).detach().flatten()[::stride] != 0)
        if not now:
            self._end()
            return
        if not self._weights:
            self._keep(now)
        elif now.keys() != self._weights.keys():
            self._end()  # other parameters than before: another stage of the run
        elif any(not torch.equal(one, self._weights[name][-1]) for name, (one, _) in now.items()):
            self._updates += 1
            if self._updates <= FIRST:
                self._weights, self._pushed = {}, {}
            self._keep(now)

    def _keep(self, now: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, (sample, pushed) in now.items():
            self._weights.setdefault(name, []).append(sample)
            self._pushed.setdefault(name, []).append(pushed)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._over or not self._weights:
            return
        if len(next(iter(self._weights.values()))) > STEPS:
            record.fact("weights.half_moves", self._fact())
            self._end()

    def _fact(self) -> dict[str, Any]:
        tensors = [moves_of(rows, self._pushed[name]) for name, rows in self._weights.items()]
        dtype = next(iter(self._weights.values()))[0].dtype
        entries = sum(one.entries for one in tensors)
        return {
            "updates": self._updates,
            "steps": STEPS,
            "tensors": len(tensors),
            "dtype": str(dtype).removeprefix("torch."),
            "observed": sum(one.observed for one in tensors),
            "expected": sum(one.expected for one in tensors),
            "unmoved": sum(one.unmoved for one in tensors) / entries if entries else 0.0,
        }

    def _end(self) -> None:
        self._over = True
        self._weights, self._pushed = {}, {}
