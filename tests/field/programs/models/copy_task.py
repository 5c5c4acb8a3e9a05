"""An encoder and a decoder that copy their input: same tensor as source and target, a mask made every step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy import DEVICE, finish, seed

V, T, D = 20, 10, 16


class Copier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.position = nn.Embedding(T, D)
        self.core = nn.Transformer(D, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=target.device)
        places = self.position(torch.arange(T, device=target.device))
        hidden = self.core(
            self.source(source) + places, self.target(target) + places[:length], tgt_mask=mask
        )
        return self.head(hidden)


seed()
model = Copier().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(12):
    rows = torch.randint(1, V, (8, T)).to(DEVICE)
    rows[:, 0] = 1
    logits = model(rows, rows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
finish(model, optimizer)
