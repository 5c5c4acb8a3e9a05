"""Which stage of the run a step belongs to: what its optimizer holds, and by which loss that is trained."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from traindoctor.tape.tape import StepTape

# Of a stage that begins later than this the next step is taped at once.
LATER = 5
# Stages that are told apart (layers that thaw one by one make many).
MOST = 4
# Later optimizers over parameters that are known: so many are looked at for another loss.
MOST_LOOKS = 3


@dataclass
class Stage:
    held: frozenset[int]
    """The parameters that it trains."""
    losses: frozenset[str | None] | None = None
    """The lines at which its losses were made; None before a step of it was taped."""


@dataclass
class Stepping:
    optimizer: weakref.ref[torch.optim.Optimizer]
    stage: int
    unsure: bool
    """It trains what another one has trained before: by another loss it is another stage."""


class Stages:
    """`of(optimizer, step)` is its stage as far as it is known; `taped` settles it."""

    def __init__(self) -> None:
        self.asks = False
        """The optimizer that was asked about last begins something: its next step is worth a tape."""
        self._stages: list[Stage] = []
        self._stepping: dict[int, Stepping] = {}
        self._looks_left = MOST_LOOKS

    def of(self, optimizer: torch.optim.Optimizer, step: int) -> int:
        known = self._stepping.get(id(optimizer))
        self.asks = known is None or known.optimizer() is not optimizer
        if known is None or self.asks:
            known = self._stepping[id(optimizer)] = self._meet(optimizer, late=step >= LATER)
        return known.stage

    def _meet(self, optimizer: torch.optim.Optimizer, *, late: bool) -> Stepping:
        held = frozenset(id(p) for group in optimizer.param_groups for p in group["params"])
        stage = next((n for n, one in enumerate(self._stages) if one.held == held), None)
        unsure = late and stage is not None and self._looks_left > 0
        self._looks_left -= unsure
        self.asks = unsure or (late and stage is None and len(self._stages) < MOST)
        if stage is None:
            stage = self._add(held)
        return Stepping(weakref.ref(optimizer), stage, unsure)

    def taped(self, tape: StepTape, stage: int, optimizer: torch.optim.Optimizer | None) -> int:
        """A step of it is written down: the stage it belongs to, by the parameters and the loss."""
        made = [tape.producer.get(root.ref) for root in tape.roots if root.ref is not None]
        losses = frozenset(op.nearest_line for op in made if op is not None)
        known = self._stepping.get(id(optimizer))
        if known is not None and known.unsure:
            held, known.unsure = self._stages[stage].held, False
            alike = [n for n, one in enumerate(self._stages) if one.held == held]
            same = [n for n in alike if self._stages[n].losses in (None, losses)]
            stage = known.stage = same[0] if same else self._add(held)
        if stage < len(self._stages) and self._stages[stage].losses is None:
            self._stages[stage].losses = losses
        return stage

    def _add(self, held: frozenset[int]) -> int:
        """A new stage; the last one stands for all that are too many."""
        if len(self._stages) < MOST:
            self._stages.append(Stage(held))
        return len(self._stages) - 1
