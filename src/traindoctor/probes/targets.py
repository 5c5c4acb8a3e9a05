"""How many targets count, and the mean negative log-likelihood of one, whatever the script makes of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from traindoctor.events import Event, LossCalled
from traindoctor.probes.base import Cost, Later
from traindoctor.record import RecordWriter
from traindoctor.tape.operators import BINARY_LOSSES, CLASS_LOSSES

if TYPE_CHECKING:
    from torch import Tensor


class Targets:
    """`loss.token`, `loss.eval`, `target.valid`, `target.total`.

    A class loss with reduction "mean" is already the number we want; other reductions are divided by
    the valid targets; label smoothing and class weights need the scores and are read when it is due.
    """

    name: ClassVar[str] = "targets"
    cost: ClassVar[Cost] = "free"
    every: ClassVar[int] = 1
    hears: ClassVar[tuple[type, ...]] = (LossCalled,)

    def __init__(self) -> None:
        self._train: list[tuple[Tensor, Tensor, int]] = []  # (nll summed, valid, total)
        self._eval: list[tuple[Tensor, Tensor, int]] = []
        self._later = Later()
        self._facts: dict[str, object] | None = None
        self._told = False

    def on(self, event: Event, *, due: bool) -> None:
        if not isinstance(event, LossCalled):
            return
        measured = summed_nll(event, exact=due)
        if measured is None:
            return
        (self._train if event.wants_grad else self._eval).append(measured)
        if event.wants_grad and not self._told:
            classes = event.input.shape[1] if event.input.ndim > 1 else 1
            self._facts = {
                "kind": event.kind,
                "classes": int(classes),
                "reduction": event.reduction,
                "ignore_index": event.ignore_index,
                "label_smoothing": event.label_smoothing,
                "shape": list(event.input.shape),
            }

    def close_step(self, step: int, record: RecordWriter, *, due: bool) -> None:
        if self._facts is not None and not self._told:
            record.fact("loss.site", self._facts)
            self._told = True
        pending: list[tuple[str, Tensor]] = []
        for entries, series in ((self._train, "loss.token"), (self._eval, "loss.eval")):
            if not entries:
                continue
            nll, valid = sum_all([e[0] for e in entries]), sum_all([e[1] for e in entries])
            pending.append((series, nll / valid))
            if series == "loss.token":
                pending.append(("target.valid", valid))
                record.scalar("target.total", step, float(sum(e[2] for e in entries)))
        self._train, self._eval = [], []
        for series, value in pending:
            self._later.put(step, value, partial(write, record, series, step))
        self._later.collect(step)

    def finish(self, record: RecordWriter) -> None:
        self._later.collect()


def write(record: RecordWriter, name: str, step: int, number: Tensor) -> None:
    record.scalar(name, step, float(number))


def sum_all(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def summed_nll(event: LossCalled, *, exact: bool) -> tuple[Tensor, Tensor, int] | None:
    """(sum over valid targets of the nll, number of valid targets, number of targets); small, no graph."""
    import torch

    with torch.no_grad():
        output, target = event.output.detach(), event.target.detach()
        if event.kind in BINARY_LOSSES:
            count = torch.tensor(float(target.numel()), device=output.device)
            mean = output.float().mean() if event.reduction != "sum" else output.float() / count
            return mean * count, count, target.numel()
        if event.kind not in CLASS_LOSSES:
            return None
        if target.is_floating_point():  # class probabilities: each row counts
            rows = target.numel() // target.shape[1] if target.ndim > 1 else 1
            count = torch.tensor(float(rows), device=output.device)
            nll = output.float().sum() if event.reduction != "mean" else output.float() * count
            return nll, count, rows
        valid = (target != event.ignore_index).sum().float()
        plain = event.weight is None and not event.label_smoothing
        if not plain:
            if not exact:
                return None
            scores = event.input.detach().float()
            if event.kind == "cross_entropy":
                scores = scores.log_softmax(1 if scores.ndim > 1 else 0)
            nll = torch.nn.functional.nll_loss(
                scores, target, ignore_index=event.ignore_index, reduction="sum"
            )
            return nll, valid, target.numel()
        total = output.float()
        nll = total * valid if event.reduction == "mean" else total.sum()
        return nll, valid, target.numel()
