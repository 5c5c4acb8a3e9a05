"""Lion, as people paste it: a sign update with one moment, unknown to torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from toy import finish, fit, seed, tiny_model


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 3e-3) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            fast, slow = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["moment"] = torch.zeros_like(parameter)
                moment = state["moment"]
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = moment.lerp(parameter.grad, 1 - fast).sign_()
                parameter.add_(update, alpha=-group["lr"])
                moment.lerp_(parameter.grad, 1 - slow)


seed()
model = tiny_model()
optimizer = Lion(model.parameters())
fit(model, optimizer)
finish(model, optimizer)
