"""Activation checkpointing, reentrant and not, with dropout: the forward pass runs twice and is counted."""

from __future__ import annotations

import warnings

import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from toy import DEVICE, LENGTH, batch, finish, loss_of, seed, tiny_model

warnings.simplefilter("ignore")
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
counts = [0, 0]


def count(place: int) -> None:
    counts[place] += 1


model.blocks[0].register_forward_hook(lambda *_: count(0))
model.blocks[1].register_forward_hook(lambda *_: count(1))
for step in range(12):
    tokens, targets = batch()
    hidden = model.embed(tokens) + model.position(torch.arange(LENGTH, device=DEVICE))
    hidden = checkpoint(model.blocks[0], hidden, use_reentrant=True)
    hidden = checkpoint(model.blocks[1], hidden, use_reentrant=False)
    hidden = checkpoint_sequential(model.blocks[1].mlp, 2, hidden, use_reentrant=False)
    loss = loss_of(model.head(model.norm(hidden)), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), counts)
finish(model, optimizer)
