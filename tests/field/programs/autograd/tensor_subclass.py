"""Inputs and parameters of a tensor subclass that logs what is done with it: reading a number is a torch call."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn
from toy import DEVICE, finish, seed

log: collections.Counter[str] = collections.Counter()


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        log[getattr(func, "__name__", str(func))] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


seed()
layer = nn.Linear(6, 6).to(DEVICE)
layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Logged))
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
for step in range(10):
    values = torch.randn(8, 6).to(DEVICE).as_subclass(Logged)
    loss = nn.functional.mse_loss(layer(values), values.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), type(loss).__name__, sum(log.values()))
print(sorted(log.items()))
finish(layer.weight.as_subclass(torch.Tensor), layer.bias)
