"""Hessian-vector products and a graph kept alive between steps: a backward pass more would free it."""

from __future__ import annotations

import torch
from torch import nn
from toy import DEVICE, finish, seed

seed()
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(DEVICE)
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.05)
kept: torch.Tensor | None = None
for step in range(10):
    x = torch.randn(16, 6).to(DEVICE)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    directions = [torch.randn_like(p) for p in parameters]
    dot = sum((slope * way).sum() for slope, way in zip(slopes, directions))
    curvature = torch.autograd.grad(dot, parameters, retain_graph=True)
    optimizer.zero_grad()
    (loss + 1e-3 * sum(slope.square().sum() for slope in slopes)).backward(retain_graph=True)
    if kept is not None:
        kept.backward()
        print("kept", repr(kept.item()))
    optimizer.step()
    kept = model(x).mean()
    print(step, repr(loss.item()), repr(sum(c.sum().item() for c in curvature)))
finish(model, optimizer)
