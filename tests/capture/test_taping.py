"""Where a tape begins: with the step, also where that begins before any module is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from traindoctor.capture.watch import Watch
from traindoctor.experiment.patient import Patient


class Flow(nn.Module):
    """Called by its method: the first thing that a step computes is a product with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4))
        self.layer = nn.Linear(4, 4)

    def log_prob(self, x: Tensor) -> Tensor:
        z = self.layer(x * self.scale.exp())
        return -(z**2).sum(-1) + self.scale.sum()


def watched(folder: Path, loss: Callable[[int], Tensor], model: nn.Module) -> Patient:
    watch = Watch(folder, budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(24):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()
    finally:
        watch.detach()
    return watch.patient


def test_what_is_computed_before_the_first_module_is_on_the_tape(tmp_path: Path) -> None:
    flow = Flow()
    patient = watched(tmp_path, lambda _: -flow.log_prob(torch.randn(8, 4)).mean(), flow)
    first, *later = [patient.tapes[step] for step in sorted(patient.tapes)]
    assert first.begins_late
    assert later[-1].gaps == []  # what is asked of the run is asked of the latest
    assert len(later[-1].parameters) == 3


def test_state_that_is_carried_on_is_told_and_no_earlier_begin_is_tried_again(
    tmp_path: Path,
) -> None:
    layer = nn.Linear(4, 4)
    kept = [torch.zeros(8, 4)]

    def loss(step: int) -> Tensor:
        value = layer(torch.randn(8, 4) + kept[0])
        kept[0] = 0.1 * layer.weight.sum() * torch.ones(8, 4)  # made in this step, used in the next
        return value.square().mean()

    torch.manual_seed(0)
    model = nn.Sequential(layer)
    watch = Watch(tmp_path, budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(6):
            optimizer.zero_grad()
            loss(step).backward(retain_graph=True)
            optimizer.step()
    finally:
        watch.detach()
    assert watch.faults == []
    assert any(tape.begins_late for tape in watch.patient.tapes.values())
