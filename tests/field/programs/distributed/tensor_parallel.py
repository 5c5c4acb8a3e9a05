"""Tensor parallelism as in Megatron: all_reduce inside an autograd.Function; a lone extra call would deadlock."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from toy import VOCABULARY, batch, digest, loss_of, random_states, seed


class SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope


class SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        total = slope.contiguous().clone()
        dist.all_reduce(total)
        return total


class ParallelMLP(nn.Module):
    """Half of the hidden units on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 16)
        self.down = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return SumForward.apply(self.down(torch.relu(self.up(SumBackward.apply(x)))))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
embed, head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)
torch.manual_seed(rank + 1)
middle = ParallelMLP()
seed(0)  # both ranks see the same batches
model = nn.Sequential(embed, middle, head)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(15):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with open(f"rank-{rank}.txt", "w") as file:
    file.write(f"{digest(model, optimizer)} {random_states()} {losses!r}\n")
dist.barrier()
dist.destroy_process_group()
