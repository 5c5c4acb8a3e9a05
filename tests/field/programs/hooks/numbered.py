"""Keys of the script's own hooks: they stand in pickles of whole models."""

from __future__ import annotations

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
calls: list[int] = []
keys: list[list[int]] = []
for _ in range(12):
    handle = model.register_forward_hook(lambda *_: calls.append(len(keys)))
    first = next(model.parameters())
    on_gradient = first.register_hook(lambda gradient: 0.5 * gradient)
    after = optimizer.register_step_post_hook(lambda *_: calls.append(-1))
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    keys.append([handle.id, on_gradient.id, after.id, *model._forward_hooks])
    for one in (handle, on_gradient, after):
        one.remove()
print(keys, calls)
finish(model, optimizer)
