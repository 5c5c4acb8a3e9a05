"""Weight norm, spectral norm, orthogonal and own parametrizations: reading a weight computes, sometimes with state."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

warnings.simplefilter("ignore")


class Symmetric(nn.Module):
    reads = 0

    def forward(self, matrix: Tensor) -> Tensor:
        Symmetric.reads += 1
        return matrix.triu() + matrix.triu(1).transpose(-1, -2)


seed()
model = tiny_model()
weight_norm(model.head)
spectral_norm(model.blocks[0].mlp[0])
orthogonal(model.blocks[1].mix)
parametrize.register_parametrization(model.blocks[0].mix, "weight", Symmetric())
old = torch.nn.utils.weight_norm(nn.Linear(16, 16)).to(DEVICE)
optimizer = torch.optim.AdamW([*model.parameters(), *old.parameters()], lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets) + old(model.embed(tokens)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), Symmetric.reads)
finish(model, old, optimizer)
