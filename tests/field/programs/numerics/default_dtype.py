"""Another default dtype: whatever a watcher allocates in passing gets it too, and may fail or round."""

from __future__ import annotations

import sys

import torch
from toy import batch, finish, loss_of, seed, tiny_model

dtype = getattr(torch, sys.argv[1])
torch.set_default_dtype(dtype)
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(step, repr(loss.item()), norm.dtype, torch.tensor(1.0).dtype, torch.get_default_dtype())
finish(model, optimizer)
