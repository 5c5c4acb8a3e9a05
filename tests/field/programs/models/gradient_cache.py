"""Gradient caching for a contrastive loss: representations first without a graph, their gradients replayed later."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from toy import DEVICE, finish, seed

seed()
encoder = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 8)).to(DEVICE)
optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
for step in range(12):
    left = torch.randn(16, 10).to(DEVICE)
    right = left + 0.1 * torch.randn(16, 10).to(DEVICE)
    chunks = [*left.split(4), *right.split(4)]
    with torch.no_grad():
        cached = torch.cat([encoder(chunk) for chunk in chunks]).requires_grad_()
    a, b = F.normalize(cached, dim=1).chunk(2)
    loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(16, device=DEVICE))
    loss.backward()
    optimizer.zero_grad()
    for chunk, slope in zip(chunks, cached.grad.split(4)):
        torch.dot(encoder(chunk).flatten(), slope.flatten()).backward()
    optimizer.step()
    print(step, repr(loss.item()))
finish(encoder, optimizer)
