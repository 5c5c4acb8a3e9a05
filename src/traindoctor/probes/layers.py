"""Gradients and weights, layer by layer: largest value, share of zeros, where non-finite values are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from traindoctor.events import Event, StepBegin
from traindoctor.ground.names import local
from traindoctor.probes.base import Cost, Later, parameters_of
from traindoctor.record import RecordWriter

if TYPE_CHECKING:
    from traindoctor.ground.names import Names

# Numbers for one parameter: largest gradient, its share of zeros, largest weight, non-finite weights.
COLUMNS = 4


class Layers:
    """`grad.absmax`, `grad.zeros`, `weight.absmax` by parameter, `param.nonfinite` in all.

    aminmax instead of an infinity norm: on the CPU the latter takes fifteen times as long.
    """

    name: ClassVar[str] = "layers"
    cost: ClassVar[Cost] = "costly"
    every: ClassVar[int] = 50
    hears: ClassVar[tuple[type, ...]] = (StepBegin,)

    names: Names

    def __init__(self) -> None:
        self._later = Later()
        self._measured: tuple[list[str], Tensor] | None = None

    def on(self, event: Event, *, due: bool) -> None:
        if isinstance(event, StepBegin) and due and self._measured is None:
            self._measured = measure(self.names)

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        measured, self._measured = self._measured, None
        if measured is not None:
            names, table = measured
            self._later.put(step, table, lambda values: write(record, step, names, values))
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def measure(names: Names) -> tuple[list[str], Tensor] | None:
    rows = []
    kept = []
    for name, parameter in parameters_of(names):
        weight = local(parameter).detach()
        if not weight.numel():
            continue
        low, high = torch.aminmax(weight)
        # A single number that is not finite exactly if some entry is not.
        row = [
            torch.maximum(high, -low),
            torch.full_like(low, torch.nan),
            torch.full_like(low, torch.nan),
        ]
        if parameter.grad is not None and not parameter.grad.is_sparse:
            gradient = local(parameter.grad).detach()
            low, high = torch.aminmax(gradient)
            row[1] = torch.maximum(high, -low)
            row[2] = (gradient == 0).float().mean()
        broken = torch.isfinite(row[0]).logical_not().float()
        rows.append(torch.stack([x.float() for x in (*row, broken)]))
        kept.append(name)
    if not rows:
        return None
    return kept, torch.stack([row.to(rows[0].device) for row in rows])  # (parameters, COLUMNS)


def write(record: RecordWriter, step: int, names: list[str], table: Tensor) -> None:
    record.layers("weight.absmax", step, names, table[:, 0].numpy())
    record.layers("grad.absmax", step, names, table[:, 1].numpy())
    record.layers("grad.zeros", step, names, table[:, 2].numpy())
    record.scalar("param.nonfinite", step, float(table[:, 3].sum()))
