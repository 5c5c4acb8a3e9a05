"""A model that writes files, prints, counts and draws from own generators in forward and backward passes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)
        self.draws = np.random.RandomState(4)
        self.counter = itertools.count()
        self.register_buffer("running", torch.zeros(16))
        self.plain = torch.zeros(16, device=DEVICE)

    def forward(self, x: Tensor) -> Tensor:
        call = next(self.counter)
        print("forward", call, torch.is_grad_enabled(), self.training)
        with torch.no_grad():
            self.running.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
            self.plain += x.mean((0, 1))
        noise = torch.randn(x.shape, generator=self.generator).to(x.device)
        return x + 1e-2 * noise + 1e-2 * float(self.draws.rand()) + 1e-4 * self.plain


class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        print("function forward")
        return x * 2

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        with open("backward.txt", "a") as file:
            file.write("once more\n")
        return slope * 2


class RunningLoss(nn.Module):
    mean: float | None = None

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = loss_of(logits, targets)
        self.mean = loss.item() if self.mean is None else 0.9 * self.mean + 0.1 * loss.item()
        return loss / self.mean


seed()
model, noise, criterion = tiny_model(), Noise().to(DEVICE), RunningLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    hidden = noise(model.blocks[0](model.embed(tokens)))
    loss = criterion(model.head(Loud.apply(model.norm(hidden))), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), criterion.mean)
finish(model, optimizer, noise, noise.plain, noise.generator.get_state(), next(noise.counter))
