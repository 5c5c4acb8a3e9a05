"""Two tasks on one body: gradients asked for by hand, the graph kept between two passes, one of them projected."""

from __future__ import annotations

import torch
from torch import nn
from toy import DEVICE, VOCABULARY, batch, finish, loss_of, seed, tiny_model

seed()
body = tiny_model()
second_head = nn.Linear(VOCABULARY, VOCABULARY).to(DEVICE)
shared = list(body.parameters())
optimizer = torch.optim.AdamW([*shared, *second_head.parameters()], lr=1e-3)
for step in range(12):
    tokens, targets = batch()
    logits = body(tokens)
    first = loss_of(logits, targets)
    second = loss_of(second_head(logits), tokens)
    slopes = [torch.autograd.grad(task, shared, retain_graph=True) for task in (first, second)]
    optimizer.zero_grad()
    (first + second).backward()
    for parameter, one, two in zip(shared, *slopes):
        product = (one * two).sum()
        if product < 0:  # the tasks disagree: drop the part of one that works against the other
            parameter.grad.sub_(product / two.square().sum().clamp(min=1e-12) * two)
    optimizer.step()
    print(step, repr(first.item()), repr(second.item()))
finish(body, second_head, optimizer)
