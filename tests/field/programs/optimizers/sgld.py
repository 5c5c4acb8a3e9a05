"""Langevin dynamics: noise from torch, `random` or numpy inside the step; a step on trial would shift them all."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from toy import DEVICE, finish, fit, seed, tiny_model


class Langevin(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], source: str, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})
        self.source = source
        self.generator = torch.Generator(DEVICE).manual_seed(1)

    def noise(self, parameter: Tensor) -> Tensor:
        if self.source == "global":
            return torch.randn_like(parameter)
        if self.source == "generator":
            return torch.empty_like(parameter).normal_(generator=self.generator)
        return torch.full_like(parameter, random.random() * np.random.rand())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])
                parameter.add_(self.noise(parameter), alpha=1e-3)


seed()
model = tiny_model()
optimizer = Langevin(model.parameters(), source=sys.argv[1])
fit(model, optimizer)
finish(model, optimizer.generator.get_state())
