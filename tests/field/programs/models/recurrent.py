"""A GRU over packed sequences with the hidden state carried on: truncated backpropagation through time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from toy import DEVICE, VOCABULARY, batch, finish, seed

seed()
embed = nn.Embedding(VOCABULARY, 12).to(DEVICE)
cell = nn.GRU(12, 16, batch_first=True).to(DEVICE)
head = nn.Linear(16, VOCABULARY).to(DEVICE)
model = nn.ModuleList([embed, cell, head])
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
hidden = torch.zeros(1, 4, 16, device=DEVICE)
lengths = torch.tensor([12, 10, 7, 3])
for step in range(12):
    tokens, targets = batch()
    hidden = hidden.detach()
    packed = pack_padded_sequence(embed(tokens), lengths, batch_first=True)
    output, hidden = cell(packed, hidden)
    logits = head(pad_packed_sequence(output, batch_first=True)[0])
    padded = torch.arange(12)[None, :] >= lengths[:, None]
    wanted = targets.masked_fill(padded.to(DEVICE), -100)
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.25)
    optimizer.step()
    print(step, repr(loss.item()))
finish(model, optimizer, hidden)
