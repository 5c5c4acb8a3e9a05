"""Pickles of everything in the middle of a run: none may hold a class, function or hook of a watcher."""

from __future__ import annotations

import collections
import pickle
import pickletools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from toy import DEVICE, batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
loader = DataLoader(TensorDataset(*(rows.cpu() for rows in batch(8))), batch_size=4)
things: dict[str, Any] = {
    "model": model,
    "optimizer": optimizer,
    "schedule": schedule,
    "criterion": nn.CrossEntropyLoss(),
    "cross_entropy": F.cross_entropy,
    "embedding": F.embedding,
    "softmax": F.softmax,
    "backward": torch.autograd.backward,
    "clip": nn.utils.clip_grad_norm_,
    "loader": loader,
    "scaler": scaler,
    "class": torch.optim.AdamW,
    "tensor class": torch.Tensor,
}


def fingerprint(thing: Any) -> list[tuple[str, int]]:
    """Kinds of opcodes and every name: memory addresses and storage keys are not in it."""
    codes = list(pickletools.genops(pickle.dumps(thing)))
    counts = collections.Counter(code.name for code, _, _ in codes)
    words = {value for _, value, _ in codes if isinstance(value, str) and not value.isdigit()}
    return [*sorted(counts.items()), *sorted((word, 0) for word in words)]


for step in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    schedule.step()
    print(step, repr(loss.item()))
    if step in (0, 1, 7):
        for name, thing in things.items():
            print(name, fingerprint(thing))
            again = pickle.loads(pickle.dumps(thing))
            if callable(thing) and hasattr(thing, "__qualname__"):
                print(again is thing, thing.__module__, thing.__qualname__)
        print(sorted(vars(model)), sorted(vars(optimizer)), sorted(vars(schedule)))
finish(model, optimizer)
