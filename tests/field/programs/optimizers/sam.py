"""Sharpness-aware minimisation: two passes a step and an inner optimizer that shares the parameter groups."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from toy import batch, finish, loss_of, seed, tiny_model


class SAM(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], radius: float = 0.05) -> None:
        super().__init__(parameters, {"radius": radius})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        """To the worst point nearby; where each parameter came from is kept in the state."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        for parameter in parameters:
            self.state[parameter]["home"] = parameter.detach().clone()
            parameter.add_(parameter.grad * (self.defaults["radius"] / (norm + 1e-12)))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data = self.state[parameter]["home"]
        self.base.step()


seed()
model = tiny_model()
optimizer = SAM(model.parameters())
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    loss.backward()
    optimizer.climb()
    optimizer.zero_grad()
    loss_of(model(tokens), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, repr(loss.item()))
finish(model, optimizer)
