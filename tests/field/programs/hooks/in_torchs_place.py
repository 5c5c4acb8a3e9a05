"""A loss and a backward of the script's own in place of torch's, which they call: once, whoever listens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from toy import batch, finish, seed, tiny_model

loss_of, backward_of = F.cross_entropy, torch.Tensor.backward
calls = {"loss": 0, "backward": 0}


def loss(*args, **kwargs):
    calls["loss"] += 1
    return 2 * loss_of(*args, **kwargs)


def backward(self, *args, **kwargs):
    calls["backward"] += 1
    return backward_of(0.7 * self, *args, **kwargs)


F.cross_entropy, torch.Tensor.backward = loss, backward
seed()
model = tiny_model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(24):
    tokens, targets = batch()
    value = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    print(step, repr(value.item()), calls)
finish(model, optimizer)
