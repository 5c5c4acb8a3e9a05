"""Gradients of earlier steps that are still there in all of a step's backward passes."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from traindoctor.events import BackwardBegin, Event, ForwardBegin, StepEnd
from traindoctor.ground.names import local
from traindoctor.ground.torch_private import foreach_norm
from traindoctor.ground.trees import ModuleTrees
from traindoctor.probes.base import Cost, Later, parameters_of
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

# Stands for all parameters before an optimizer has stepped.
NOBODY = 0
# Optimizers with a column of their own. A script that makes a new one at every step has no need of one.
MOST = 8


@dataclass
class Held:
    """One optimizer: its number in order of first steps, and its parameters."""

    optimizer: weakref.ref[torch.optim.Optimizer]
    number: int
    stepped: set[int] = field(default_factory=set)
    parameters: set[int] = field(default_factory=set)
    """Those whose `.grad` backward passes fill for it."""


class Leftover:
    """`grad.leftover_norm`: 0 where every `.grad` is None (seen at each step, free), else their norm when due.

    Only of parameters that an optimizer steps: nobody clears the gradients of those it lacks, and nothing comes
    of them either. Each optimizer is asked by itself, from its own last step to its next: in between another
    network's loss may leave gradients (GANs), or a first pass reach no parameter (a gradient cache), as long as they are
    gone at one backward pass at least.
    """

    name: ClassVar[str] = "leftover"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 2
    hears: ClassVar[tuple[type, ...]] = (ForwardBegin, BackwardBegin, StepEnd)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._trees = ModuleTrees()
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Modules that were called with gradient in this step."""
        self._held: dict[int, Held] = {}
        """Each optimizer that has stepped and is still there."""
        self._count = 0
        self._lowest: dict[int, Tensor | float] = {}
        """Of each, the least that lay in its `.grad` at a backward pass since its own last step."""
        self._stepped: dict[int, Tensor | float] = {}
        """Of the optimizers that stepped in this step."""
        self._unmeasured = False
        """Something lay there for one of them, and nobody measured how much."""

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, ForwardBegin):
            if event.wants_grad:
                self._trees.learn(event.module)
                self._called.add(event.module)
        elif isinstance(event, StepEnd):
            # One that is stepped inside another's step may have parameters that the other lacks.
            for optimizer in (event.optimizer, *(inner for inner, _ in event.inside)):
                key = id(optimizer)
                self._hold(key, optimizer)
                for known in (key, NOBODY):
                    if known in self._lowest:
                        self._stepped[key] = self._lowest.pop(known)
                self._unmeasured = self._unmeasured or key not in self._stepped
        elif isinstance(event, BackwardBegin) and event.inputs is None:
            self._look(due=due)

    def _hold(self, key: int, optimizer: torch.optim.Optimizer) -> None:
        for old in [at for at, held in self._held.items() if held.optimizer() is None]:
            del self._held[old]
            self._lowest.pop(old, None)
        if key not in self._held:
            self._held[key] = Held(weakref.ref(optimizer), self._count)
            self._count += 1
        held = self._held[key]
        parameters = {id(p): p for g in optimizer.param_groups for p in g["params"]}
        stepped = set(parameters)
        if stepped != held.stepped:
            held.parameters = self._filled_by_backward(parameters)
            # In a step whose forward pass was not heard it is only a guess, and made again.
            held.stepped = stepped if self._called else set()

    def _filled_by_backward(self, stepped: dict[int, Tensor]) -> set[int]:
        """An optimizer over master copies is given its gradients by the script: those of the model are asked about.

        Copies have about as many numbers as the model; a learned temperature or weight of a loss has a few of its own.
        """
        own = set(stepped) & {id(p) for _, p in self._trees.parameters()}
        # A model of an earlier stage may still be there, with the gradients of its last step.
        called = {id(p): p for module in self._called for p in module.parameters()}
        copies = 2 * sum(p.numel() for p in stepped.values()) > sum(
            p.numel() for p in called.values()
        )
        return own or (set(called) if called and copies else set(stepped))

    def _look(self, *, due: bool) -> None:
        # Before the first step nobody is known to hold anything.
        known = self._held or (NOBODY,)
        if all(self._lowest.get(key) == 0.0 for key in known):
            return  # gone at an earlier pass: what lies there now is this step's own
        found = {
            id(p): local(p.grad).detach()
            for _, p in parameters_of(self.names)
            if p.grad is not None and not p.grad.is_sparse and p.grad.numel()
        }
        owners = {key: held.parameters for key, held in self._held.items()}
        for key, own in (owners or {NOBODY: set(found)}).items():
            left = [grad for at, grad in found.items() if at in own]
            if not left:
                self._lowest[key] = 0.0
            elif due and self._lowest.get(key) != 0.0:
                before, norm = self._lowest.get(key), norm_of(left)
                self._lowest[key] = (
                    torch.minimum(norm, before) if isinstance(before, Tensor) else norm
                )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        stepped, self._stepped = self._stepped, {}
        self._called.clear()
        if not self._held and NOBODY in self._lowest:
            stepped[NOBODY] = self._lowest.pop(NOBODY)  # a run that no optimizer of torch steps
        tensors = [one for one in stepped.values() if isinstance(one, Tensor)]
        if stepped:
            device = tensors[0].device if tensors else None
            values = [torch.as_tensor(one, device=device).float() for one in stepped.values()]
            numbers = [self._held[key].number if key in self._held else NOBODY for key in stepped]
            write = partial(self._write, record, step, numbers, whole=not self._unmeasured)
            self._later.put(step, torch.stack(values), write)
        self._unmeasured = False
        self._later.collect(step)

    def _write(
        self, record: RecordWriter, step: int, numbers: list[int], norms: Tensor, *, whole: bool
    ) -> None:
        if whole:  # what is free to see, that nothing lies there, must not stand for those that it does not hold for
            record.scalar("grad.leftover_norm", step, float(norms.max()))
        if 1 < self._count <= MOST:
            found = dict(zip(numbers, norms.tolist()))
            row = [found.get(number, math.nan) for number in range(self._count)]
            names = [f"optimizer {number}" for number in range(self._count)]
            record.layers("grad.leftover_by_optimizer", step, names, row)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def norm_of(gradients: list[Tensor]) -> Tensor:
    norms = [n.to(gradients[0].device).float() for n in foreach_norm(gradients)]
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total
