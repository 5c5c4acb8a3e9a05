"""Checkpoints written, read back and resumed from, with random states: the files must have the same bytes."""

from __future__ import annotations

import random

import numpy as np
import torch
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model


def build() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 30)


def train(steps: range) -> None:
    for step in steps:
        tokens, targets = batch()
        loss = loss_of(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(step, repr(loss.item()))


seed()
model, optimizer, schedule = build()
train(range(6))
state = {
    "model": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "schedule": schedule.state_dict(),
    "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
}
torch.save(state, "checkpoint.pt")
torch.save(model, "model.pt")
torch.save(optimizer, "optimizer.pt")
train(range(6, 12))
model, optimizer, schedule = build()
kept = torch.load("checkpoint.pt", map_location=DEVICE, weights_only=False)
model.load_state_dict(kept["model"])
optimizer.load_state_dict(kept["optimizer"])
schedule.load_state_dict(kept["schedule"])
torch.set_rng_state(kept["random"][0].cpu())
random.setstate(kept["random"][1])
train(range(6, 12))
whole = torch.load("model.pt", weights_only=False)
print(type(whole).__name__, len(torch.load("optimizer.pt", weights_only=False).param_groups))
finish(model, optimizer, schedule, whole)
