"""Threads and environment set before `import torch`: importing torch any earlier would lose them."""

from __future__ import annotations

import os
import sys

print("torch" in sys.modules, "numpy" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "0"

import torch  # noqa: E402
from toy import finish, fit, seed, tiny_model  # noqa: E402

print(torch.get_num_threads())
torch.set_num_threads(1)
torch.set_flush_denormal(True)
torch.set_printoptions(precision=9)
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
fit(model, optimizer, steps=8)
print(model.norm.weight.detach()[:3].cpu(), torch.get_num_threads(), sys.getrecursionlimit())
finish(model, optimizer)
