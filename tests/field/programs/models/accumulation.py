"""Gradient accumulation with a last short group, and evaluation with generated text between the steps."""

from __future__ import annotations

import torch
from toy import LENGTH, batch, finish, loss_of, seed, tiny_model

ACCUMULATE = 3
seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


@torch.no_grad()
def sample(length: int = 6) -> list[int]:
    model.eval()
    tokens = batch(1)[0][:, :1]
    while tokens.shape[1] < min(length, LENGTH):
        chances = model(tokens)[:, -1].softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
    model.train()
    return tokens[0].tolist()


for micro in range(20):
    with torch.random.fork_rng(devices=[]):
        torch.randn(3)
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets) / ACCUMULATE
    loss.backward()
    if (micro + 1) % ACCUMULATE == 0 or micro == 19:
        optimizer.step()
        optimizer.zero_grad(set_to_none=micro % 2 == 0)
        print("text", sample())
    print(micro, repr(loss.item()))
finish(model, optimizer)
