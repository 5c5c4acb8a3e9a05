"""Lookahead around AdamW: the step calls a real inner optimizer, so a second call would train twice."""

from __future__ import annotations

import torch
from toy import finish, fit, seed, tiny_model


class Lookahead(torch.optim.Optimizer):
    """Every few steps the weights go back half the way to slow copies of themselves."""

    def __init__(self, inner: torch.optim.Optimizer, every: int = 5, share: float = 0.5) -> None:
        self.inner = inner
        self.every = every
        self.share = share
        self.num_steps = 0
        parameters = [p for group in inner.param_groups for p in group["params"]]
        super().__init__(parameters, {"lr": inner.param_groups[0]["lr"]})
        self.param_groups = inner.param_groups
        self.slow = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        self.inner.step()
        self.num_steps += 1
        if self.num_steps % self.every:
            return
        parameters = [p for group in self.param_groups for p in group["params"]]
        for parameter, slow in zip(parameters, self.slow):
            slow.add_(parameter - slow, alpha=self.share)
            parameter.copy_(slow)


seed()
model = tiny_model()
optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2))
fit(model, optimizer)
finish(model, optimizer.inner, optimizer.slow, optimizer.num_steps)
