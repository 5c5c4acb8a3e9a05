"""Gradient norms, one per parameter, and the total before and after clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from traindoctor.events import BackwardEnd, Clipped, Event, StepBegin
from traindoctor.ground.names import local
from traindoctor.ground.torch_private import foreach_norm
from traindoctor.probes.base import Cost, Later, parameters_of
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names


class GradientNorm:
    """Where the script clips by norm, the total before clipping is its own number, at every step and free.

    Otherwise the norms of all gradients are taken when it is due. Parameters without gradient keep their
    column, with NaN: a list of those that have one would shift its columns from step to step.
    """

    name: ClassVar[str] = "gradient_norm"
    cost: ClassVar[Cost] = "cheap"
    every: ClassVar[int] = 4
    hears: ClassVar[tuple[type, ...]] = (BackwardEnd, Clipped, StepBegin)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._total: Tensor | None = None
        self._limit = math.nan
        self._norms: tuple[list[str], Tensor, list[int]] | None = None
        self._given: tuple[list[str], Tensor, list[int]] | None = None
        self._stepped = False
        """An optimizer of torch's has the gradients; else they may be what `torch.autograd.grad` gave."""

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, Clipped):
            if event.kind == "norm" and event.total_norm is not None and self._total is None:
                self._total = torch.as_tensor(local(event.total_norm)).detach().float()
                self._limit = event.limit
        elif isinstance(event, StepBegin):
            self._stepped = True
            if due and self._norms is None:
                self._norms = gradient_norms(held_gradients(self.names))
        elif isinstance(event, BackwardEnd) and due and not self._stepped:
            given = zip(event.inputs or (), event.results or ())
            self._given = gradient_norms(
                (self.names.of(p), g) for p, g in given if self.names.has(p)
            )

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if due and self._norms is None:
            # No optimizer of torch: .grad is as backward left it.
            self._norms = gradient_norms(held_gradients(self.names)) or self._given
        self._given = None
        total, limit, norms = self._total, self._limit, self._norms
        self._total, self._limit, self._norms = None, math.nan, None
        if norms is not None:
            names, values, sizes = norms
            packed = values if total is None else torch.cat([values, total.reshape(1).to(values)])
            self._later.put(
                step,
                packed,
                lambda row: write(record, step, names, sizes, row, total is not None, limit),
            )
        elif total is not None:
            self._later.put(step, total, lambda norm: write_total(record, step, float(norm), limit))
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def held_gradients(names: Names) -> Iterator[tuple[str, Tensor | None]]:
    return ((name, p.grad) for name, p in parameters_of(names))


def gradient_norms(
    gradients: Iterable[tuple[str, Tensor | None]],
) -> tuple[list[str], Tensor, list[int]] | None:
    """(names, 2-norm of each gradient, sizes); NaN has no place in it but from the gradients themselves."""
    rows = [(name, local(gradient)) for name, gradient in gradients if gradient is not None]
    dense = [(name, g) for name, g in rows if not g.is_sparse and g.numel()]
    if not dense:
        return None
    device = dense[0][1].device
    norms = foreach_norm([g.detach() for _, g in dense])
    stacked = torch.stack([norm.to(device=device, dtype=torch.float32) for norm in norms])
    return [name for name, _ in dense], stacked, [g.numel() for _, g in dense]


def write(
    record: RecordWriter,
    step: int,
    names: list[str],
    sizes: list[int],
    row: Tensor,
    clipped: bool,
    limit: float,
) -> None:
    norms = row[: len(names)]
    after = float(norms.norm())
    before = float(row[-1]) if clipped else after
    # The gradients were scaled by the clip before we looked: what they were before is one factor away.
    factor = before / after if clipped and after > 0 and math.isfinite(before / after) else 1.0
    root = torch.tensor(sizes, dtype=torch.float64).sqrt()
    record.layers("grad.rms", step, names, (norms * factor / root).numpy())
    record.scalar("grad.norm", step, before)
    record.scalar("grad.norm_clipped", step, after)
    record.scalar("grad.nonfinite", step, float((~torch.isfinite(norms)).sum()))


def write_total(record: RecordWriter, step: int, norm: float, limit: float) -> None:
    record.scalar("grad.norm", step, norm)
    record.scalar("grad.norm_clipped", step, min(norm, limit) if math.isfinite(norm) else norm)
    record.scalar("grad.nonfinite", step, float(not math.isfinite(norm)))
