"""Weights that change outside the optimizer's step: decay written by hand.

On sampled steps some entries of every parameter are copied before and after the optimizer's step and compared at the
next training pass, and once more at the step after it. Between them nobody should touch a weight; where all entries
of a tensor are multiplied by one number below 1, the script decays its weights itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from traindoctor.events import BackwardBegin, Event, ForwardBegin, StepBegin, StepEnd
from traindoctor.ground.names import Names
from traindoctor.ground.our_ref import OurRef
from traindoctor.ground.some_values import some_values

# Steps looked at: early ones for the replay from step 0, then one in so many.
FIRST, EVERY = (1, 2, 16), 30
# Entries of one tensor that are copied.
ENTRIES = 1024
# One multiplication rounds each entry by half a unit: the factors of a tensor's entries agree to this many units.
UNITS = 4.0
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Outside:
    """One sampled step: by which factor each tensor was multiplied outside the optimizer's step."""

    step: int
    after: Mapping[str, float] = field(default_factory=dict)
    """Between the step and the next training pass; only tensors that were."""
    before: Mapping[str, float] = field(default_factory=dict)
    """Between that pass and the next step."""
    pull: float = 0.0
    """Norm of these changes, over the sampled entries."""
    push: float = 0.0
    """Norm of the optimizer's own change of the same tensors."""
    undone: float = 0.0
    """Share of the entries that the step moved and that are back where they were, all on the grid of a half dtype."""

    def factor(self, name: str) -> float:
        return self.after.get(name, 1.0) * self.before.get(name, 1.0)


class OutsideChanges:
    """Listens to a run; `found` has a row for each sampled step that was seen to its end."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.found: list[Outside] = []
        self._tensors: dict[str, OurRef] = {}
        self._step = -1
        self._start: dict[str, Tensor] = {}
        self._left: dict[str, Tensor] = {}
        self._met: dict[str, Tensor] = {}
        self._after: dict[str, float] = {}

    def nearest(self, step: int) -> Outside | None:
        return min(self.found, key=lambda one: abs(one.step - step), default=None)

    def on(self, event: Event, step: int) -> None:
        """Every event of the run. All that is computed with is detached."""
        if isinstance(event, StepBegin):
            if self._met:
                self._close(self._samples())
            if step in FIRST or step % EVERY == FIRST[0]:
                self._learn(event.optimizer)
                self._step, self._start = step, self._samples()
                self._left, self._met = {}, {}
        elif isinstance(event, StepEnd):
            if self._start and step == self._step:
                self._left = self._samples()
        elif self._left and not self._met and self._begins(event):
            self._met = self._samples()
            self._after = factors(self._left, self._met)

    @staticmethod
    def _begins(event: Event) -> bool:
        """The next training pass; scripts without modules show it at the backward pass only."""
        return isinstance(event, BackwardBegin) or (
            isinstance(event, ForwardBegin) and event.wants_grad
        )

    def _close(self, now: dict[str, Tensor]) -> None:
        before = factors(self._met, now)
        shrunk = [n for n in {**self._after, **before} if n in self._start and n in self._left]

        def total(sizes: Callable[[str], Tensor]) -> float:
            """Norm over all tensors that shrank."""
            return math.sqrt(sum(float(sizes(name).double().square().sum()) for name in shrunk))

        made = Outside(self._step, self._after, before)
        pull = total(lambda name: (1 - made.factor(name)) * self._left[name])
        push = total(lambda name: self._left[name] - self._start[name])
        undone = share_undone(self._start, self._left, now)
        self.found.append(Outside(self._step, self._after, before, pull, push, undone))
        self._start, self._left, self._met, self._after = {}, {}, {}, {}

    def _learn(self, optimizer: torch.optim.Optimizer) -> None:
        """What the optimizer steps: parameters, or copies of them that the script keeps."""
        held = (p for group in optimizer.param_groups for p in group["params"])
        self._tensors = {
            self.names.of(p): OurRef(p) for p in held if p.numel() > 1 and p.is_floating_point()
        }

    def _samples(self) -> dict[str, Tensor]:
        found = {}
        for name, ref in self._tensors.items():
            tensor = ref()
            if tensor is not None:
                found[name] = some_values(tensor, ENTRIES)
        return found


def share_undone(
    start: Mapping[str, Tensor], left: Mapping[str, Tensor], now: Mapping[str, Tensor]
) -> float:
    """Updates of float32 weights that are written over from a coarser copy before the next step."""
    kept = (name in now and torch.equal(value, now[name]) for name, value in left.items())
    if all(kept):
        return 0.0  # as nearly always
    moved = undone = 0
    for name, was in start.items():
        if was.dtype != torch.float32 or name not in left or name not in now:
            continue
        coarse = any(torch.equal(now[name], now[name].to(d).float()) for d in HALVES)
        changed = left[name] != was
        moved += int(changed.sum())
        undone += int((changed & (now[name] == was)).sum()) if coarse else 0
    return undone / moved if moved else 0.0


def factors(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, float]:
    """Per tensor the number below 1 that all its entries were multiplied by, where there is one."""
    found = {}
    for name, was in old.items():
        now = new.get(name)
        if now is None or now.shape != was.shape or torch.equal(was, now):
            continue
        factor = uniform_factor(was, now)
        if factor is not None and factor < 1:
            found[name] = factor
    return found


def uniform_factor(was: Tensor, now: Tensor) -> float | None:
    """The factor, if it is the same for every entry within rounding of the tensor's own dtype."""
    unit = torch.finfo(was.dtype).eps
    was, now = was.double(), now.double()
    size = float(was.square().sum())
    if not size or not bool(torch.isfinite(now).all()):
        return None
    factor = float((was * now).sum()) / size
    # Entries near the smallest numbers of the dtype round by more than a unit: the largest one sets the scale.
    noise = UNITS * unit * was.abs() + UNITS * unit * 1e-6 * was.abs().max()
    return factor if bool(((now - factor * was).abs() <= noise).all()) else None
