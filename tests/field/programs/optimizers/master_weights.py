"""bfloat16 parameters with float32 master copies in a list of the optimizer: the copies are the real weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from toy import finish, fit, seed, tiny_model


class MasterSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.master = [p.detach().float().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        group = self.param_groups[0]
        for parameter, master in zip(group["params"], self.master):
            master.add_(parameter.grad.float(), alpha=-group["lr"])
            parameter.copy_(master)


seed()
model = tiny_model(dropout=0.0).to(torch.bfloat16)
optimizer = MasterSGD(model.parameters())
fit(model, optimizer)
finish(model, optimizer.master)
