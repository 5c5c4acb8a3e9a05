"""A loss and a backward of the script's own in place of torch's, which they call: once, whoever listens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from toy import batch, finish, seed, tiny_model

loss_of, distance_of, backward_of = F.cross_entropy, F.l1_loss, torch.Tensor.backward
calls = {"loss": 0, "distance": 0, "backward": 0}


def loss(*args, **kwargs):
    calls["loss"] += 1
    return 2 * loss_of(*args, **kwargs)


def distance(*args, **kwargs):
    calls["distance"] += 1
    return 3 * distance_of(*args, **kwargs)


def backward(self, *args, **kwargs):
    calls["backward"] += 1
    return backward_of(0.7 * self, *args, **kwargs)


F.cross_entropy, F.l1_loss, torch.Tensor.backward = loss, distance, backward
seed()
model = tiny_model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(24):
    tokens, targets = batch()
    scores = model(tokens)
    value = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
    value = value + F.l1_loss(scores, torch.zeros_like(scores))
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    print(step, repr(value.item()), calls)
finish(model, optimizer)
