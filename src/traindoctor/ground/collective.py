"""One collective as data: what this rank gave, what came back, and which part of that is this rank's own.

A replay hands the result out again. What the other ranks contributed stays as it was recorded; where this rank's
own values differ now (other weights, another dtype), its own part of the result follows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from traindoctor.errors import ReplayError

# A gradient that others sent belongs to the gradient this rank sent: rounding moves it by 1 % (bfloat16), another
# loss or another direction by as much as itself.
SAME_GRADIENT = 0.1

OTHERS_FIXED = "the other ranks' contributions are held fixed"

# What torch.distributed calls the methods of its process groups.
PUBLIC_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
}


@dataclass(frozen=True)
class Link:
    """Part of a result that is this rank's own: `result[to:to + length] += factor * change of given[of:of + length]`."""

    result: int
    given: int
    to: int = 0
    of: int = 0
    length: int | None = None
    """None: all of it."""
    factor: float = 1.0
    slot: bool = False
    """The result holds the given values themselves there (a gather), not a sum with others'."""


@dataclass(frozen=True, eq=False)
class Collective:
    """`name` as the process group calls it. Tensors are copies."""

    name: str
    reduce: str | None
    rank: int
    size: int
    given: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    links: tuple[Link, ...] | None
    """None: how the results follow from what was given is not known (MAX, a product)."""
    line: str | None = None

    def hand_out(
        self, given: Sequence[Tensor], targets: Sequence[Tensor], *, gradient: bool = False
    ) -> None:
        """Writes into `targets` what the collective would have put there. `gradient`: in a backward pass."""
        self._refuse_other_shapes(given, targets)
        changed = [not same(new, old) for new, old in zip(given, self.given)]
        if self.links is None and any(changed):
            how = f" with {self.reduce}" if self.reduce else ""
            raise ReplayError(
                f"{self.title}{how} cannot be repeated with other values: what the other ranks "
                "contributed is not known"
            )
        if gradient:
            self._refuse_other_gradients(given)
        values = [
            self._value(number, target, given, changed) for number, target in enumerate(targets)
        ]
        for target, value in zip(targets, values):
            target.copy_(value)

    @property
    def brings_others(self) -> bool:
        """Other ranks have a part in the result; else it is this rank's own, sent out."""
        from_here = self.name in ("broadcast", "scatter") and bool(self.links)
        return bool(self.results) and not from_here

    @property
    def public_name(self) -> str:
        return PUBLIC_NAMES.get(self.name, self.name)

    @property
    def title(self) -> str:
        """`all_reduce (train.py:12)`"""
        return f"{self.public_name} ({self.line})" if self.line else self.public_name

    def _value(
        self, number: int, target: Tensor, given: Sequence[Tensor], changed: Sequence[bool]
    ) -> Tensor:
        dtype = target.dtype
        made = self.results[number].to(target.device, dtype, copy=True)
        flat = made.reshape(-1)
        for link in self.links or ():
            new = given[link.given]
            if link.result != number or not (changed[link.given] or new.requires_grad):
                continue
            to = part(flat, link.to, link.length)
            own = part(new.reshape(-1), link.of, link.length).to(dtype)
            if link.slot:
                to.copy_(own)
            else:
                old = part(self.given[link.given].reshape(-1), link.of, link.length).to(own)
                change = own - old
                to.add_(change * link.factor if link.factor != 1 else change)
        return flat.view(made.shape)

    def _refuse_other_shapes(self, given: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        now = [t.shape for t in (*given, *targets)]
        then = [t.shape for t in (*self.given, *self.results)]
        if now != then:
            raise ReplayError(
                f"{self.title} cannot be repeated with other shapes: the other ranks' part "
                "belongs to the original step"
            )

    def _refuse_other_gradients(self, given: Sequence[Tensor]) -> None:
        for new, old in zip(given, self.given):
            if not torch.is_floating_point(new) or same(new, old):
                continue
            a, b = new.detach().double(), old.to(new.device).double()
            if not float((a - b).norm()) <= SAME_GRADIENT * float(b.norm()):
                raise ReplayError(
                    f"{self.title} in a backward pass: the other ranks' gradients belong to another "
                    "computation"
                )


def part(flat: Tensor, start: int, length: int | None) -> Tensor:
    return flat if length is None else flat.narrow(0, start, length)


def same(new: Tensor, old: Tensor) -> bool:
    """Bit for bit the same numbers; NaN is NaN."""
    if new.dtype != old.dtype or new.shape != old.shape:
        return False
    with torch.no_grad():
        old = old.to(new.device)
        return bool(((new == old) | ((new != new) & (old != old))).all())


class Handing:
    """Recorded collectives, handed out one by one in the order of the step, and from the start again."""

    def __init__(self, collectives: Sequence[Collective], *, gradient: bool = False) -> None:
        self.collectives = list(collectives)
        self.gradient = gradient
        """They ran in a backward pass. A graph may be walked several times: each walk gets the same."""
        self._next = self._endless()

    def _endless(self) -> Iterator[Collective]:
        while self.collectives:
            yield from self.collectives

    def hand_out(self, name: str, given: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        found = next(self._next, None)
        if found is None or found.name != name:
            raise ReplayError(
                f"the repeated step needs a collective ({name}) that the step did not use here"
            )
        found.hand_out(given, targets, gradient=self.gradient)
