"""Parameters whose insides are exchanged: by `Module.to`, and by hand."""

from __future__ import annotations

import weakref

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.__future__.set_swap_module_params_on_conversion(True)


def train(steps):
    for _ in range(steps):
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.7f}")
    optimizer.zero_grad()
    del loss


train(12)
model.to(torch.float64)
print({p.dtype for p in model.parameters()}, optimizer.param_groups[0]["params"][0].dtype)
train(6)
model.to(torch.float32)
train(6)
head = list(model.parameters())[-1]
torch.utils.swap_tensors(head, torch.nn.Parameter(head.detach().clone() / 2))
train(6)
held = weakref.ref(head)
try:
    torch.utils.swap_tensors(head, torch.nn.Parameter(head.detach().clone()))
except RuntimeError as error:
    print(error)
finish(model)
