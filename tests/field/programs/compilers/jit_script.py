"""torch.jit.script of a model with Embedding and CrossEntropyLoss: the compiler reads the source of torch's functions."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from toy import DEVICE, VOCABULARY, batch, finish, seed

warnings.simplefilter("ignore")


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        if hidden.mean() > 100:
            hidden = hidden * 2
        return self.criterion(self.head(torch.tanh(hidden)).flatten(0, 1), targets.flatten())


seed()
model = torch.jit.script(WithLoss().to(DEVICE))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(15):
    loss = model(*batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
torch.jit.script(nn.Embedding(4, 4))  # once more after steps were watched
model.save("scripted.pt")
print(model.code)
finish(model, optimizer)
