"""Schedule-free SGD: `train()` and `eval()` of the optimizer swap the weights between two sequences."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from toy import batch, finish, loss_of, seed, tiny_model


class ScheduleFreeSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.5) -> None:
        super().__init__(parameters, {"lr": lr, "beta": 0.9, "k": 0, "train_mode": True})

    @torch.no_grad()
    def swap(self, to_training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == to_training:
                continue
            weight = 1 - group["beta"] if to_training else 1 - 1 / group["beta"]
            for parameter in group["params"]:
                parameter.lerp_(self.state[parameter]["z"], weight)
            group["train_mode"] = to_training

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            assert group["train_mode"], "call swap(True) before a step"
            group["k"] += 1
            weight, beta, lr = 1 / group["k"], group["beta"], group["lr"]
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.detach().clone())
                parameter.lerp_(z, weight)
                parameter.add_(parameter.grad, alpha=lr * (beta * (1 - weight) - 1))
                z.sub_(parameter.grad, alpha=lr)


seed()
model = tiny_model()
optimizer = ScheduleFreeSGD(model.parameters())
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
    if step % 4 == 3:
        optimizer.swap(to_training=False)
        with torch.no_grad():
            print("validation", repr(loss_of(model(tokens), targets).item()))
        optimizer.swap(to_training=True)
finish(model, optimizer)
