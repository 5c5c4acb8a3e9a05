"""Nested (jagged) tensors through a linear layer: `shape`, `clone` and hashing of them are special."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from toy import DEVICE, finish, seed

warnings.simplefilter("ignore")
seed()
layer = nn.Linear(8, 8).to(DEVICE)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
for step in range(12):
    rows = [torch.randn(length, 8).to(DEVICE) for length in (3, 5, 1 + step % 4)]
    ragged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    loss = (torch.relu(layer(ragged)) * 2).values().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), ragged.is_nested, ragged.offsets().tolist())
finish(layer, optimizer)
