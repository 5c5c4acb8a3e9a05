"""LBFGS with a closure and a line search: an extra call of the closure would be counted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import DEVICE, finish, seed

seed()
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
inputs = torch.randn(64, 5).to(DEVICE)
targets = inputs.sin().sum(1, keepdim=True)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=8, line_search_fn="strong_wolfe")
num_calls = 0


def closure() -> Tensor:
    global num_calls
    num_calls += 1
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    return loss


for step in range(6):
    loss = optimizer.step(closure)
    print(step, repr(loss.item()), num_calls)
finish(model, optimizer)
