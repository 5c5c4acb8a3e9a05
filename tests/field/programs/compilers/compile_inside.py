"""A compiled module or function inside a plain module, in training and evaluation: no more frames than without us."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model()
function = torch.compile(lambda tokens: model(tokens), backend="eager")
module = torch.compile(model, backend="eager")


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = module if sys.argv[1] == "module" else model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens) if sys.argv[1] == "module" else function(tokens)


wrapped = Wrapper()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(10):
    tokens, targets = batch()
    loss = loss_of(wrapped(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
    if step in (3, 7):
        wrapped.eval()
        with torch.no_grad():
            print("validation", repr(loss_of(wrapped(tokens), targets).item()))
        wrapped.train()
print(dict(counters["frames"]), dict(counters["stats"]), sum(counters["graph_break"].values()))
finish(model, optimizer)
