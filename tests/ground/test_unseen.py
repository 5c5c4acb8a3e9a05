"""Warnings stand at the script's own line and come as often as without us."""

from __future__ import annotations

from pathlib import Path

from warm_python import warm_run

SCRIPT = """
import warnings
import torch
import torch.nn.functional as F

class Odd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        warnings.warn("in a Function", stacklevel=2)
        return x * 2

    @staticmethod
    def backward(ctx, slope):
        return slope * 2

model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
schedule.step()
for step in range(30):
    if step == 10:
        warnings.simplefilter("always")
    loss = F.mse_loss(Odd.apply(model(torch.ones(2, 3))), torch.ones(2, 1))
    loss = loss + torch.ones(2, dtype=torch.complex64).sum().float()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(iter(()), 1.0)
    optimizer.step()
    schedule.step()
"""


def test_the_scripts_warnings_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    said = []
    for ours in ([], ["-m", "traindoctor", "run", "--quiet", "--after", "2", "--out", "run"]):
        done = warm_run([*ours, "script.py"], folder=tmp_path)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    assert "script.py:" in said[0]
    assert said[0] == said[1]
