"""MAML through functional_call: gradients of gradients, and parameters that are not those of the module."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value
from toy import DEVICE, finish, seed

seed()
model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def task() -> tuple[torch.Tensor, torch.Tensor]:
    phase, x = torch.rand(1) * 3, torch.rand(16, 1) * 10 - 5
    return x.to(DEVICE), (x + phase).sin().to(DEVICE)


def loss_with(
    parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    return F.mse_loss(functional_call(model, parameters, (x,)), y)


for step in range(10):
    total = torch.zeros((), device=DEVICE)
    for _ in range(2):
        x, y = task()
        fast = dict(model.named_parameters())
        for _ in range(2):
            slopes = torch.autograd.grad(
                loss_with(fast, x, y), list(fast.values()), create_graph=True
            )
            fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), slopes)}
        total = total + loss_with(fast, x, y)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(step, repr(total.item()))
detached = {name: p.detach() for name, p in model.named_parameters()}
for step in range(5):
    slopes, loss = grad_and_value(loss_with)(detached, *task())
    detached = {name: p - 0.05 * slopes[name] for name, p in detached.items()}
    print("functional", step, repr(loss.item()))
finish(model, optimizer, detached)
