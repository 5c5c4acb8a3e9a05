"""Float16 autocast with a GradScaler that starts too high: skipped steps, unscaled and clipped gradients."""

from __future__ import annotations

import torch
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**30, growth_interval=5)
for step in range(20):
    tokens, targets = batch()
    with torch.autocast(DEVICE.type, dtype=torch.float16):
        loss = loss_of(model(tokens), targets)
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, repr(loss.item()), repr(norm.item()), scaler.get_scale())
finish(model, optimizer, scaler)
