"""Parameters in bfloat16 and a float32 loss, AdamW with foreach: no float32 copy of anything."""

from __future__ import annotations

import torch
from toy import DEVICE, TinyLM, batch, finish, loss_of, seed

seed()
model = TinyLM().to(DEVICE, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
for step in range(15):
    tokens, targets = batch()
    loss = loss_of(model(tokens).float(), targets)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    print(step, repr(loss.item()), repr(norm.item()), norm.dtype)
finish(model, optimizer)
