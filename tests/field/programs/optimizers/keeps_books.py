"""A subclass of SGD that keeps a log, a tensor counter and its own list of parameters beside the groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from toy import finish, fit, seed, tiny_model

steps_of_all: list[int] = []


class LoggingSGD(torch.optim.SGD):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.1) -> None:
        self.own = list(parameters)
        super().__init__(self.own, lr=lr, momentum=0.9)
        self.log: list[float] = []
        self.counter = torch.zeros(())

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        self.log.append(sum(p.grad.abs().sum().item() for p in self.own))
        self.counter += 1
        steps_of_all.append(len(self.log))
        with open("steps.txt", "a") as file:
            file.write(f"{len(self.log)}\n")
        result = super().step(closure)
        with torch.no_grad():
            for parameter in self.own:
                parameter.mul_(0.999)
        return result


seed()
model = tiny_model()
optimizer = LoggingSGD(model.parameters())
fit(model, optimizer)
print(len(optimizer.log), optimizer.counter.item(), steps_of_all)
finish(model, optimizer, optimizer.log)
