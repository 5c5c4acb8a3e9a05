"""One optimizer per parameter, stepped inside the backward pass: gradients are gone before it ends."""

from __future__ import annotations

import torch
from torch import nn
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}


def step_and_forget(parameter: nn.Parameter) -> None:
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_forget)
for step in range(10):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    loss.backward()
    print(step, repr(loss.item()), all(p.grad is None for p in model.parameters()))
finish(model, *optimizers.values())
