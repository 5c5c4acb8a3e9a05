"""A script that starts another interpreter that trains, before and after its own steps, and reads its output."""

from __future__ import annotations

import subprocess
import sys

import torch
from toy import finish, fit, seed, tiny_model

CHILD = """
import sys
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(5):
    loss = layer(torch.randn(3, 2)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
print("child says goodbye", file=sys.stderr)
sys.exit(4)
"""


def run_child() -> None:
    result = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    print(result.returncode, result.stdout, result.stderr)


run_child()
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
run_child()
finish(model, optimizer)
