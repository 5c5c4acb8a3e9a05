"""SGD written in the script, with clipping: there is no optimizer object to watch, only weights that change."""

from __future__ import annotations

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
velocity = [torch.zeros_like(p) for p in model.parameters()]
for step in range(15):
    tokens, targets = batch()
    model.zero_grad()
    loss = loss_of(model(tokens), targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter, speed in zip(model.parameters(), velocity):
        speed.mul_(0.9).add_(parameter.grad)
        parameter.data.add_(speed, alpha=-0.3)
    print(step, repr(loss.item()), repr(norm.item()))
finish(model, velocity)
