"""Averaged weights: torch's AveragedModel and a hand-made copy, swapped in for evaluation and out again."""

from __future__ import annotations

import copy

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=16)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
shadow = copy.deepcopy(model)
for step in range(16):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    averaged.update_parameters(model)
    with torch.no_grad():
        for slow, fast in zip(shadow.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
    print(step, repr(loss.item()))
    if step % 5 == 4:
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(shadow.state_dict())
        model.eval()
        with torch.no_grad():
            print("averaged", repr(loss_of(model(tokens), targets).item()))
        model.load_state_dict(kept)
        model.train()
finish(model, optimizer, averaged, shadow)
