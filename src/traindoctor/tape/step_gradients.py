"""The gradients of a taped step: what lay in .grad before it, what its backward passes left, what arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from traindoctor.ground.hook_handles import own_handles
from traindoctor.ground.names import is_trainable_leaf, local
from traindoctor.ground.quiet import quiet
from traindoctor.tape.draft import Draft
from traindoctor.tape.tensors import TensorTable
from traindoctor.tape.unit_clipping import Units, as_one, by_rows

# 1 - cosine of float32 gradients that were multiplied by one number: under 1e-12; half dtypes round to 1e-5.
PARALLEL = 1e-4


@dataclass(frozen=True)
class Meeting:
    """A gradient as it lies in .grad beside another of its shape: their product and their squares, in float64."""

    gradient: Tensor
    dot: float
    now: float
    then: float

    @classmethod
    def of(cls, gradient: Tensor, given: Tensor) -> Meeting:
        a, b = gradient.reshape(-1).double(), given.reshape(-1).double()
        dot, now, then = torch.stack((a @ b, a @ a, b @ b)).tolist()
        return cls(gradient, dot, now, then)

    @property
    def as_one(self) -> Units | None:
        return as_one(self.then**0.5, self.now**0.5, self.dot)

    @property
    def parallel(self) -> bool:
        """The same direction, to the rounding of one multiplication (clipping shortens all gradients alike)."""
        sizes = (self.now * self.then) ** 0.5
        return bool(sizes > 0 and self.dot >= (1 - PARALLEL) * sizes)


class StepGradients:
    """Copies of .grad around the backward passes of one step."""

    def __init__(self, draft: Draft, tensors: TensorTable) -> None:
        self.draft = draft
        self.tensors = tensors
        self.given: dict[str, Tensor | None] = {}
        """After the last backward pass."""
        self._before: dict[str, Tensor | None] | None = None
        self._own: dict[str, Tensor] = {}
        """Several ranks: what this rank's passes computed, before the gradients of all ranks are joined."""
        self._hooks: list[tuple[RemovableHandle, Tensor | None]] = []

    def backward_begins(self) -> None:
        if self._before is None:
            self._before = self._copies()
        elif any(old is not None for old in self._before.values()):
            self._forget_what_was_cleared(self._before)
        if world_size() > 1 and not self._hooks:
            self._listen()

    def _forget_what_was_cleared(self, before: dict[str, Tensor | None]) -> None:
        """Old gradients that the script clears between two passes (after filling a cache) are not in the later ones."""
        for name, parameter in self._trainable().items():
            if before.get(name) is not None and (
                parameter.grad is None or not parameter.grad.any()
            ):
                before[name] = None

    def backward_ended(self) -> None:
        self.close()
        self.given = self._copies()

    def _listen(self) -> None:
        """DistributedDataParallel averages as soon as a gradient is accumulated: hooks of the parameter come before."""
        with own_handles():
            for name, parameter in self._trainable().items():
                bare = parameter._backward_hooks is None
                handle = parameter.register_hook(partial(self._add_own, name))
                self._hooks.append((handle, parameter if bare else None))

    def close(self) -> None:
        """No hook stays on a parameter, and no gradient is held."""
        while self._hooks:
            handle, bare = self._hooks.pop()
            handle.remove()
            if bare is not None and not bare._backward_hooks:
                # An empty table of hooks would still be called in every later backward pass.
                bare._backward_hooks = None
        vars(self).pop("_meetings", None)

    def _add_own(self, name: str, gradient: Tensor) -> None:
        with quiet(), torch.no_grad():
            gradient = local(gradient).detach()
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            old = self._own.get(name)
            self._own[name] = dense.clone() if old is None else old.add_(dense)

    def add_results(
        self, inputs: Sequence[Tensor] | None, results: Sequence[Tensor | None]
    ) -> None:
        """What torch.autograd.grad gave back stands for .grad."""
        for tensor, gradient in zip(inputs or (), results):
            if not is_trainable_leaf(tensor) or gradient is None:
                continue
            name = self.draft.names.of(tensor)
            old = self.given.get(name)
            self.given[name] = self.draft.copy(gradient) if old is None else old.add_(gradient)

    @property
    def began_dirty(self) -> bool:
        """Gradients of something else lay in .grad before the first backward pass."""
        return any(old is not None and bool(old.any()) for old in (self._before or {}).values())

    @property
    def fresh(self) -> dict[str, Tensor | None]:
        """What this step's backward passes computed: on one rank, what they added to .grad."""
        return dict.fromkeys(self.given) | self._own if self._own else self.added

    @property
    def added(self) -> dict[str, Tensor | None]:
        """.grad after the step's backward passes, less what was there before."""
        made: dict[str, Tensor | None] = {}
        before = self._before or {}
        for name, gradient in self.given.items():
            old = before.get(name)
            dirty = gradient is not None and old is not None and bool(old.any())
            made[name] = gradient - old if dirty else gradient  # type: ignore[operator]
        return made

    @cached_property
    def _meetings(self) -> dict[str, Meeting]:
        """Each gradient that lies in .grad now, beside the one that the last backward pass left there."""
        found = {}
        for name, parameter in self._trainable().items():
            given = self.given.get(name)
            if given is None or parameter.grad is None or parameter.grad.is_sparse:
                continue
            gradient = local(parameter.grad).detach()
            if gradient.shape == given.shape:
                found[name] = Meeting.of(gradient, given)
        return found

    @property
    def arrived(self) -> tuple[float, float] | None:
        """Factor and cosine between the gradients that lie in .grad now and those of the last backward pass."""
        met = self._meetings.values()
        dot, now, then = sum(m.dot for m in met), sum(m.now for m in met), sum(m.then for m in met)
        if not now or not then:
            return None
        return dot / then, dot / (now * then) ** 0.5

    @property
    def units(self) -> dict[str, Units]:
        """Gradients that were shortened tensor by tensor or row by row; empty where they arrived in any other way."""
        found: dict[str, Units] = {}
        for name, parameter in self._trainable().items():
            given = self.given.get(name)
            if given is None or parameter.grad is None or not given.numel():
                continue
            met = self._meetings.get(name)
            units = None if met is None else met.as_one or by_rows(given, met.gradient)
            if units is None:
                return {}
            found[name] = units
        return found if any(bool(units.cut.any()) for units in found.values()) else {}

    @property
    def swapped(self) -> dict[str, str]:
        """Parameter -> another one whose gradient lies in its .grad now, the backward pass having given it its own."""
        odd = {n: m for n, m in self._meetings.items() if m.gradient.numel() > 1 and not m.parallel}
        found = {}
        for name, met in odd.items():
            for other in odd:
                given = self.given[other]
                if other == name or given is None or given.shape != met.gradient.shape:
                    continue
                if Meeting.of(met.gradient, given).parallel:
                    found[name] = other
                    break
        return found

    def _trainable(self) -> dict[str, Tensor]:
        found = {n: p for n, p in self.draft.names.parameters() if is_trainable_leaf(p)}
        for name, weak in self.tensors.leaf_tensors.items():
            tensor = weak()
            if tensor is not None:
                found.setdefault(name, tensor)
        return found

    def _copies(self) -> dict[str, Tensor | None]:
        """Copies of .grad; the copies of the last backward pass are overwritten."""
        made: dict[str, Tensor | None] = {}
        for name, parameter in self._trainable().items():
            gradient = parameter.grad
            if gradient is None:
                made[name] = None
                continue
            gradient = local(gradient).detach()
            old = self.given.get(name)
            if old is not None and old.shape == gradient.shape and old.dtype == gradient.dtype:
                made[name] = old.copy_(gradient)
            else:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                made[name] = self.draft.copy(dense)
        return made


def world_size() -> int:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
