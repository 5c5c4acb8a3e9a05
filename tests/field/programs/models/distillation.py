"""A frozen teacher in eval mode and a student with BatchNorm: a second forward pass would move its statistics."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from toy import DEVICE, VOCABULARY, batch, finish, loss_of, seed, tiny_model

seed()
teacher = tiny_model().eval().requires_grad_(False)
student = tiny_model(width=8)
normalise = nn.BatchNorm1d(VOCABULARY).to(DEVICE)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
optimizer.add_param_group({"params": normalise.parameters()})
for step in range(15):
    tokens, targets = batch()
    with torch.no_grad():
        soft = teacher(tokens).flatten(0, 1).softmax(-1)
    logits = normalise(student(tokens).flatten(0, 1))
    distance = F.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
    loss = distance + loss_of(logits.view(*tokens.shape, -1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), normalise.num_batches_tracked.item())
finish(student, teacher, normalise, optimizer)
