"""Weak references to activations and losses whose callbacks must fire at the same line as ever."""

from __future__ import annotations

import weakref

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
events: list[str] = []
references: list[weakref.ref] = []


def follow(thing: torch.Tensor, name: str) -> None:
    references.append(weakref.ref(thing, lambda _: events.append(f"{name} gone")))


for step in range(10):
    tokens, targets = batch()
    follow(tokens, f"tokens {step}")
    logits = model(tokens)
    follow(logits, f"logits {step}")
    loss = loss_of(logits, targets)
    del logits
    events.append(f"backward {step}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow(loss, f"loss {step}")
    events.append(f"step {step}")
    print(step, repr(loss.item()))
    del loss, tokens, targets
    events.append(f"end {step}")
for event in events:
    print(event)
print(sum(reference() is not None for reference in references))
finish(model, optimizer)
