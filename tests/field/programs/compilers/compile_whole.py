"""torch.compile of a whole module, in training and evaluation: compiled again for each, never more often."""

from __future__ import annotations

import sys

import torch
from torch._dynamo.utils import counters
from toy import batch, finish, loss_of, seed, tiny_model

backend, mode = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else None)
seed()
model = tiny_model(dropout=0.0)
compiled = torch.compile(model, backend=backend, mode=mode, fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
for step in range(10):
    tokens, targets = batch()
    loss = loss_of(compiled(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
    if step == 5:
        compiled.eval()
        with torch.no_grad():
            print("validation", repr(loss_of(compiled(tokens), targets).item()))
        compiled.train()
print(dict(counters["frames"]), dict(counters["stats"]), sum(counters["graph_break"].values()))
finish(model, optimizer)
