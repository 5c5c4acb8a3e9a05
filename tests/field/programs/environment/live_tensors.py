"""Counts the live tensors and their bytes at each step through gc: nobody else may keep logits or batches alive."""

from __future__ import annotations

import gc

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
LOGITS = (5, 12, 23)


def of_this_run() -> list[torch.Tensor]:
    """Logits of the odd batch size are the script's alone, whoever holds them."""
    return [
        thing
        for thing in gc.get_objects()
        if type(thing) is torch.Tensor and tuple(thing.shape) == LOGITS
    ]


peak = 0
for step in range(12):
    tokens, targets = batch(5)
    logits = model(tokens)
    loss = loss_of(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gc.collect()
    peak = max(peak, len(of_this_run()))
    print(step, repr(loss.item()), len(of_this_run()))
    del logits, loss
    gc.collect()
    print("after", len(of_this_run()))
print("peak", peak, len(gc.garbage), gc.isenabled(), gc.get_threshold())
finish(model, optimizer)
