"""Where a tape begins: with the step, also where that begins before any module is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from traindoctor.capture.watch import Watch


class Flow(nn.Module):
    """Called by its method: the first thing that a step computes is a product with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(4))
        self.layer = nn.Linear(4, 4)

    def log_prob(self, x: Tensor) -> Tensor:
        z = self.layer(x * self.scale.exp())
        return -(z**2).sum(-1) + self.scale.sum()


SCRIPT = """
import torch
from test_taping import Flow

torch.manual_seed(0)
flow = Flow()
optimizer = torch.optim.SGD(flow.parameters(), lr=0.01)
for step in range(24):
    optimizer.zero_grad()
    (-flow.log_prob(torch.randn(8, 4)).mean()).backward()
    optimizer.step()
"""


def test_what_is_computed_before_the_first_module_is_on_the_tape(tmp_path: Path) -> None:
    """In a process of its own, as scripts are run: the gradient can be held against autograd's on a whole step."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "traindoctor", "run", "--budget", "100", "--json", "v.json"]
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*command, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert "backward-incorrect" in {one["cause"] for one in verdict["ruled_out"]}


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
