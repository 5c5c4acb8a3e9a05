"""Muon for matrices beside AdamW for the rest: two optimizers a step, one that mixes rows of a gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from toy import batch, finish, loss_of, seed, tiny_model

# The quintic of Keller Jordan's Muon: it drives singular values towards one.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    a, b, c = COEFFICIENTS
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                buffer = self.state[parameter].setdefault("buffer", torch.zeros_like(parameter))
                buffer.mul_(group["momentum"]).add_(parameter.grad)
                update = orthogonal(parameter.grad.add(buffer, alpha=group["momentum"]))
                parameter.add_(update, alpha=-group["lr"])


seed()
model = tiny_model()
matrices = [p for name, p in model.named_parameters() if "blocks" in name and p.ndim == 2]
rest = [p for name, p in model.named_parameters() if "blocks" not in name or p.ndim != 2]
optimizers = [Muon(matrices), torch.optim.AdamW(rest, lr=1e-2)]
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    print(step, repr(loss.item()))
finish(model, *optimizers)
