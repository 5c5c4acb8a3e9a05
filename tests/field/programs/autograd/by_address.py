"""A Function that computes by addresses, into memory of just the right size: other sizes or precisions end the process."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from toy import batch, finish, loss_of, seed, tiny_model


class Workspace:
    """Memory that a kernel writes to, and what it counts there."""

    def __init__(self, size: int) -> None:
        self.memory = (ctypes.c_float * size)()
        self.calls = 0


class Halve(torch.autograd.Function):
    """Copies its input into the workspace, halves it there, and copies it back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, space: Workspace) -> Tensor:
        given = x.detach().cpu().contiguous()
        out = torch.zeros_like(given)
        size = 4 * given.numel()
        ctypes.memmove(space.memory, given.data_ptr(), size)
        space.calls += 1
        for place in range(0, given.numel(), 7):
            space.memory[place] *= 0.5
        ctypes.memmove(out.data_ptr(), space.memory, size)
        ctx.shape = x.shape
        return out.to(x.device)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        factors = torch.ones(slope.numel(), device=slope.device)
        factors[::7] = 0.5
        return slope * factors.view(ctx.shape), None


seed()
model = tiny_model()
space = Workspace(4 * 12 * 16)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    hidden = model.norm(model.blocks[0](model.embed(tokens)))
    loss = loss_of(model.head(Halve.apply(hidden, space)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), space.calls)
finish(model, optimizer, list(space.memory))
