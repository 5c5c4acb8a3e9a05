"""`torch.set_default_device` and a model built on meta: every factory call follows the script's device."""

from __future__ import annotations

import torch
from toy import DEVICE, TinyLM, batch, finish, loss_of, seed

torch.set_default_device(DEVICE)
seed()
with torch.device("meta"):
    model = TinyLM()
    shapes = torch.empty(3, 4)
print(shapes.device, next(model.parameters()).device)
model = model.to_empty(device=DEVICE)
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(DEVICE.type, init_scale=256.0)
for step in range(15):
    tokens, targets = batch()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.device("meta"):
        ghost = torch.zeros(2) + 1
    where = torch.empty(0).device.type, ghost.device.type
    print(step, repr(loss.item()), where, torch.get_default_device().type)
finish(model, optimizer, scaler)
