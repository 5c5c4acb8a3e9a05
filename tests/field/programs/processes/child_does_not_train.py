"""Interpreters that only import torch, or not even that: they must start, be silent and leave no file."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from toy import finish, fit, seed, tiny_model

CHILDREN = {
    "torch": "import torch; print(torch.ones(2).sum().item())",
    "plain": "import sys; print('torch' in sys.modules, 'numpy' in sys.modules)",
    "late": "import importlib.util as u; print(u.find_spec('torch').name); import torch; print('ok')",
    "broken": "import torch; raise SystemExit('no more')",
    "isolated": "import torch; print(torch.zeros(1).item())",
}


def run_children() -> None:
    for name, code in CHILDREN.items():
        options = ["-I"] if name == "isolated" else []
        result = subprocess.run(
            [sys.executable, *options, "-c", code], capture_output=True, text=True
        )
        print(name, result.returncode, result.stdout.strip(), result.stderr.strip())


seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
run_children()
print(os.system(f"{sys.executable} -c 'import torch'"), sorted(os.listdir()))
finish(model, optimizer)
