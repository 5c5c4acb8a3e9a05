"""Which trainable parameters the optimizer holds, by identity, over the whole run.

Missing: trainable, in a module tree that is trained, with a gradient, in no optimizer. Stale: in an optimizer, in no module
tree that is called, without a new gradient since it left the tree, or since the optimizer's first step. `requires_grad` is
the script's intention.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from traindoctor.events import (
    BackwardBegin,
    BackwardEnd,
    Event,
    ForwardBegin,
    GradsCleared,
    StepBegin,
)
from traindoctor.ground.names import Names, local
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.some_values import some_values
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost
from traindoctor.record import RecordWriter

# Looked at often at first, where a fault of construction is decided, then now and then: experts that a
# mixture uses rarely, stages that begin late.
EAGER_STEPS = 10
LATER_EVERY = 20
# Names in the fact; the counts beside them are of all.
NAMED = 12
# A few values of each parameter say whether a script without an optimizer changes its weights itself.
WATCHED_VALUES = 4
# ... and so many, evenly spread, whether one that no optimizer holds moves all the same.
MOVING_VALUES = 64


@dataclass
class Known:
    """Of one parameter that was looked at."""

    parameter: OurRef
    unheld: int = 0
    """Gradients that were seen at looks while no optimizer held it."""
    step: int = -1
    """Where the latest gradient was new."""
    last: tuple[OurRef, int] | None = None
    """The latest gradient, and its version then."""
    first_values: Tensor | None = None
    """Some of its values when it was first seen to be in no optimizer."""
    in_tree: bool = False
    """Some look found it in a module tree that is called."""
    held_elsewhere: bool | None = None
    """Whether an optimizer holds it that has not stepped yet; None: not searched for."""


class Coverage:
    """The fact `optimizer.coverage`: missing, stale, doubled and frozen parameters."""

    name: ClassVar[str] = "coverage"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (
        ForwardBegin,
        GradsCleared,
        BackwardBegin,
        BackwardEnd,
        StepBegin,
    )

    names: Names
    """Of tensors that no module holds, where there are no modules."""

    def __init__(self) -> None:
        self.trees = ModuleTrees()
        self._optimizers: dict[int, tuple[weakref.ref[torch.optim.Optimizer], int]] = {}
        """With the step that was under way when each was first heard of."""
        self._known: dict[int, Known] = {}
        """By identity, which a later parameter may get again."""
        self._looks = 0
        self._steps = self._backwards = self._step = 0
        self._first_values: list[Tensor] | None = None
        self._weights_changed: bool | None = None
        self._fact: dict[str, Any] | None = None
        self._stepping_due = False
        self._trained_before: bool | None = None
        self._since = 0
        """First step of the latest optimizer, or of the latest model."""
        self._eager, self._looked = EAGER_STEPS, 0
        """Looks at steps in a row that are left, and the step of the latest look."""
        self._again = EAGER_STEPS
        """Looks of that kind that may follow one that found something missing: what it stands for may rest since then."""

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            if event.wants_grad:
                self.trees.learn(event.module)
        elif isinstance(event, GradsCleared):
            if isinstance(event.owner, torch.optim.Optimizer):
                self._learn(event.owner, self._step)
        elif isinstance(event, BackwardBegin):
            self._backwards += 1
        elif isinstance(event, BackwardEnd):
            if self._steps == 0 and (self._backwards == 1 or self._backwards % LATER_EVERY == 0):
                self._watch_weights(event.inputs or ())
        elif isinstance(event, StepBegin):
            self._steps += 1
            if self._learn(event.optimizer, event.step):
                self._since, self._eager = event.step, EAGER_STEPS
            elif event.left_behind:
                self._begin_anew(event.step)
            # Of short steps few are heard: they are counted by their distance, not by their number.
            if self._eager > 0 or event.step - self._looked >= LATER_EVERY:
                self._eager, self._looked = self._eager - 1, event.step
                self._look(event.step)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        self._step = step + 1
        if self._fact is not None:
            record.fact("optimizer.coverage", self._fact)
            self._fact = None
        if self._stepping_due:
            record.fact("optimizer.stepping", self.stepping())
            self._stepping_due = False

    def finish(self, record: RecordWriter) -> None:
        """Of short steps the last ones are not heard; what they left is looked at once more, if it is still there."""
        if self._looks and self.trees.whole and all(ref() for ref, _ in self._optimizers.values()):
            self._look(self._step)
            record.fact("optimizer.coverage", self._fact)

    def stepping(self) -> dict[str, Any]:
        """For runs that never step: is there an optimizer at all, and do weights change without it?"""
        return {
            "optimizers": len(live_optimizers()) if self._steps == 0 else len(self._optimizers),
            "steps": self._steps,
            "backwards": self._backwards,
            "weights_changed": self._weights_changed,
        }

    def _learn(self, optimizer: torch.optim.Optimizer, step: int) -> bool:
        """Whether it is new."""
        known = self._optimizers.get(id(optimizer))
        if known is not None and known[0]() is optimizer:
            return False
        self._optimizers[id(optimizer)] = weakref.ref(optimizer), step
        return True

    def _begin_anew(self, step: int) -> None:
        """The script trains something else now: what was seen before says nothing about it."""
        self._since, self._looks, self._eager = step, 0, EAGER_STEPS
        self.trees = ModuleTrees()
        self._known.clear()

    def _watch_weights(self, asked: Iterable[Tensor]) -> None:
        """Of the parameters that got a gradient. A script may train other tensors in their place (functional_call)."""
        given = {id(tensor) for tensor in asked}
        parameters = [
            p
            for _, p in list(self.trees.parameters()) or self.names.parameters()
            if p.requires_grad and (p.grad is not None or id(p) in given)
        ]
        values = [local(p).detach().flatten()[:WATCHED_VALUES].clone() for p in parameters]
        if not parameters:
            pass  # nothing is known of its weights
        elif self._first_values is None:
            self._first_values = values
        elif len(values) == len(self._first_values):
            pairs = zip(values, self._first_values)
            changed = any(not torch.equal(a, b) for a, b in pairs if a.shape == b.shape)
            self._weights_changed = changed
        self._stepping_due = True

    def _look(self, step: int) -> None:
        self._looks += 1
        begun = [
            (parameter, first)
            for ref, first in self._optimizers.values()
            if (optimizer := ref()) is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        held, held_ids = [p for p, _ in begun], {id(p) for p, _ in begun}
        if self._looks == 1:
            self._trained_before = trained_before(self.trees.roots)
        trained = list(self.trees.parameters())
        in_trees = {id(p) for _, p in trained}
        for _, parameter in trained:
            self._of(parameter).in_tree = True
        for parameter in (*held, *(p for _, p in trained)):
            if parameter.grad is not None:
                self._meet(parameter, parameter.grad, step, held=id(parameter) in held_ids)
        missing = [
            (name, p)
            for name, p in trained
            if p.requires_grad and id(p) not in held_ids and self._of(p).unheld
        ]
        stale = [
            p
            for p, first in begun
            if p.requires_grad and id(p) not in in_trees and self._rests(p, first, step)
        ]
        missing = [one for one in self._not_held_elsewhere(missing) if not self._moves(one[1])]
        if missing and not self._eager and self._again:
            self._eager, self._again = 1, self._again - 1
        total = _norm([p.grad for _, p in trained if p.grad is not None]) if missing else 0.0
        self._fact = {
            "looks": self._looks,
            "since": self._since,
            "trainable": sum(p.requires_grad for _, p in trained),
            "frozen": sum(not p.requires_grad for _, p in trained),
            "held": len(held_ids),
            "doubled": len(held) - len(held_ids),
            "optimizers": len(self._optimizers),
            "trained_before": self._trained_before,
            "num_missing": len(missing),
            "num_stale": len(stale),
            "missing_share": _norm([p.grad for _, p in missing if p.grad is not None]) / total
            if total
            else 0.0,
            "missing": [self._described(name, p) for name, p in missing[:NAMED]],
            "stale": [self._described(None, p) for p in stale[:NAMED]],
        }

    def _meet(self, parameter: Tensor, gradient: Tensor, step: int, *, held: bool) -> None:
        """Counts a gradient that was not there at the last look: a model that is no longer trained keeps its last one."""
        known = self._of(parameter)
        before, known.last = known.last, (OurRef(gradient), gradient._version)
        new = before is None or before[0]() is not gradient or before[1] != gradient._version
        known.unheld += new and not held
        known.step = step if new else known.step

    def _rests(self, parameter: Tensor, first: int, step: int) -> bool:
        """Whether it has had no new gradient since it was part of the model, or since its optimizer's first step."""
        known = self._of(parameter)
        # What is found at the first step may have been left there by the step before.
        return known.step < step if known.in_tree else known.step <= first < step

    def _of(self, parameter: Tensor) -> Known:
        known = self._known.get(id(parameter))
        if known is None or known.parameter() is not parameter:
            known = self._known[id(parameter)] = Known(OurRef(parameter))
        return known

    def _moves(self, parameter: Tensor) -> bool:
        """Whether it changes all the same: from a master copy that an optimizer holds, or by hand."""
        known, now = self._of(parameter), some_values(parameter, MOVING_VALUES)
        if known.first_values is None:
            known.first_values = now
        first = known.first_values
        return first.shape == now.shape and not torch.equal(first, now)

    def _described(self, name: str | None, parameter: Tensor) -> dict[str, Any]:
        return {
            "name": name,
            "shape": list(parameter.shape),
            "looks_with_gradient": self._of(parameter).unheld,
        }

    def _not_held_elsewhere(self, missing: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Without what an optimizer holds that has not stepped yet (a second player, a later stage)."""
        new = [p for _, p in missing if self._of(p).held_elsewhere is None]
        if new:
            held = {
                id(p)
                for optimizer in live_optimizers()
                for group in optimizer.param_groups
                for p in group["params"]
            }
            for p in new:
                self._of(p).held_elsewhere = id(p) in held
        return [(name, p) for name, p in missing if not self._of(p).held_elsewhere]


def trained_before(roots: Iterable[torch.nn.Module]) -> bool | None:
    """A normalisation's gain is constant when it is built; one that varies has been trained. None: no such."""
    gains = [
        weight.detach()
        for root in roots
        for module in root.modules()
        if "norm" in type(module).__name__.lower()
        and isinstance(weight := getattr(module, "weight", None), Tensor)
    ]
    gains = [gain for gain in gains if gain.dim() == 1 and gain.numel() > 1]
    return any(bool((gain != gain[0]).any()) for gain in gains) if gains else None


def live_optimizers() -> list[torch.optim.Optimizer]:
    """Every optimizer that exists; a walk over all objects, so asked only where the answer decides."""
    return [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]


def _norm(tensors: Iterable[Tensor | None]) -> float:
    parts = [local(t).detach().float().norm() for t in tensors if t is not None]
    return float(torch.stack([p.to(parts[0].device) for p in parts]).norm()) if parts else 0.0
