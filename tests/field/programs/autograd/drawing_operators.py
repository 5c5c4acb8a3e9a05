"""Custom operators that draw from NumPy and Python, and one that writes into a buffer."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import library
from toy import batch, finish, loss_of, seed, tiny_model


@library.custom_op("field::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * random.random() * torch.from_numpy(np.random.randn(*x.shape)).to(x)


@library.custom_op("field::averaged", mutates_args={"mean"})
def averaged(mean: torch.Tensor, x: torch.Tensor) -> None:
    mean.mul_(0.9).add_(x.mean(), alpha=0.1)


noisy.register_autograd(lambda ctx, gradient: gradient)
seed()
np.random.seed(1)
random.seed(1)
model = tiny_model()
mean = torch.zeros(())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(30):
    tokens, targets = batch()
    scores = noisy(model(tokens))
    averaged(mean, scores.detach())
    loss = loss_of(scores - mean, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.7f} {mean.item():.7f} {random.random()} {np.random.rand()}")
finish(model)
