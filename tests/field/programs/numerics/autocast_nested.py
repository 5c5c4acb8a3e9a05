"""Autocast in bfloat16 with parts switched off inside, cached casts, and a loss outside of it."""

from __future__ import annotations

import torch
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        hidden = model.embed(tokens) + model.position.weight
        for block in model.blocks:
            hidden = block(hidden)
            with torch.autocast(DEVICE.type, enabled=False):
                hidden = model.norm(hidden.float())
                with torch.autocast(DEVICE.type, dtype=torch.bfloat16, cache_enabled=False):
                    again = model.head(hidden)
        logits = model.head(hidden)
        states = torch.is_autocast_enabled(DEVICE.type), torch.is_autocast_cache_enabled()
    loss = loss_of(logits.float(), targets) + 1e-3 * again.float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), logits.dtype, states, torch.is_autocast_enabled(DEVICE.type))
finish(model, optimizer)
