"""An optimizer that only steps others, each with a schedule of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from toy import batch, finish, loss_of, seed, tiny_model


class Container(torch.optim.Optimizer):
    def __init__(self, model: nn.Module, lr: float) -> None:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim < 2]
        self.parts = [
            torch.optim.AdamW(matrices, lr=lr),
            torch.optim.SGD(others, lr=lr, momentum=0.9),
        ]
        super().__init__([*matrices, *others], {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)


seed()
model = tiny_model()
optimizer = Container(model, 3e-3)
schedules = [LambdaLR(part, lambda step: 1 / (1 + step)) for part in optimizer.parts]
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for schedule in schedules:
        schedule.step()
    print(step, repr(loss.item()))
finish(model, *optimizer.parts)
