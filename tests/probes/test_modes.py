"""The mode of what learns is followed; what is frozen may be in evaluation mode for good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from traindoctor.capture.watch import Watch
from traindoctor.probes.eval_dropout import EvalDropout
from traindoctor.probes.modes import Modes
from traindoctor.record import open_record


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Dropout(0.2)))


@pytest.mark.parametrize("backbone", [normed, dropping])
@pytest.mark.parametrize(
    ("frozen", "evaluating", "shares"),
    [(True, True, {1.0}), (False, True, {0.5}), (False, False, {1.0})],
)
def test_frozen_parts_do_not_count(
    tmp_path: Path, backbone, frozen: bool, evaluating: bool, shares: set[float]
) -> None:
    model = nn.Sequential(backbone(), nn.Linear(4, 4), nn.Dropout(0.1))
    model[0].requires_grad_(not frozen)
    model[0].train(not evaluating)
    watch = Watch(tmp_path, replay=False, probes=[Modes()], budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
    finally:
        watch.close("done")
    assert watch.faults == []
    record = open_record(tmp_path)
    assert set(record["mode.training"].values) == shares
    assert set(record["mode.whole"].values) == {1.0}


class Scaled(nn.Module):
    """Dropout as a function that is not told the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.inner(x), 0.5, training=True)


@pytest.mark.parametrize(
    ("model", "training", "series"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)), True, "mode.eval_training"),
        (Scaled(), False, "mode.eval_dropout"),
    ],
)
def test_an_evaluation_behind_the_last_step_counts(
    tmp_path: Path, model: nn.Module, training: bool, series: str
) -> None:
    watch = Watch(tmp_path, replay=False, probes=[Modes(), EvalDropout()], budget=1.0)
    watch.attach()
    try:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        model.train(training)
        with torch.no_grad():
            model(torch.randn(8, 4))
    finally:
        watch.close(0)
    seen = open_record(tmp_path).get(series)
    assert seen is not None
    assert seen.values.tolist() == [1.0]
