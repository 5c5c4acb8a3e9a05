"""Training on a side stream with events and pinned copies: work of ours on another stream would race with it."""

from __future__ import annotations

import torch
from toy import DEVICE, VOCABULARY, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
compute, copies = torch.cuda.Stream(), torch.cuda.Stream()
compute.wait_stream(torch.cuda.current_stream())
for step in range(20):
    rows = (torch.randint(0, VOCABULARY, (4, 1)) + 3 * torch.arange(13)) % VOCABULARY
    with torch.cuda.stream(copies):
        moved = rows.pin_memory().to(DEVICE, non_blocking=True)
        ready = copies.record_event()
    with torch.cuda.stream(compute):
        compute.wait_event(ready)
        moved.record_stream(compute)
        loss = loss_of(model(moved[:, :-1]), moved[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        current = torch.cuda.current_stream() == compute
    compute.synchronize()
    print(step, repr(loss.item()), current, torch.cuda.current_device())
torch.cuda.synchronize()
finish(model, optimizer)
