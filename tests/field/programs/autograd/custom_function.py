"""autograd.Functions with counters, one of them once differentiable: calling them again would be counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

calls = {"forward": 0, "backward": 0, "noise": 0}


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        calls["forward"] += 1
        ctx.save_for_backward(x, weight)
        ctx.call = calls["forward"]
        return x * torch.sigmoid(x) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        calls["backward"] += 1
        x, weight = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return slope * weight * (gate + x * gate * (1 - gate)), (slope * x * gate).sum((0, 1))


class NoisyIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        calls["noise"] += 1
        with open("calls.txt", "a") as file:
            file.write(f"{calls['noise']}\n")
        return slope + 1e-4 * torch.randn_like(slope)


seed()
model = tiny_model()
weight = nn.Parameter(torch.ones(16, device=DEVICE))
optimizer = torch.optim.Adam([*model.parameters(), weight], lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    hidden = model.norm(model.blocks[0](model.embed(tokens)))
    loss = loss_of(model.head(NoisyIdentity.apply(Swish.apply(hidden, weight))), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), calls)
finish(model, weight, optimizer)
