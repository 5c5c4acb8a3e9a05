"""An LSTM with dropout between its layers: cuDNN draws it from a state of its own, which follows the generator's seed."""

from __future__ import annotations

import torch
from torch import nn
from toy import finish, seed

seed()
embed = nn.Embedding(50, 64).cuda()
cell = nn.LSTM(64, 64, 2, dropout=0.2).cuda()
head = nn.Linear(64, 50).cuda()
drop = nn.Dropout(0.2)
model = nn.ModuleList([embed, cell, head])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randint(0, 50, (40, 17, 4)).cuda()
state = None
for step, tokens in enumerate(data):
    hidden, state = cell(drop(embed(tokens[:-1])), state)
    state = tuple(part.detach() for part in state)
    scores = head(drop(hidden))
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()), torch.cuda.get_rng_state().sum().item())
finish(model, optimizer)
