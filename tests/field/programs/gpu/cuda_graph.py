"""A whole training step captured in a CUDA graph and replayed: any foreign work during capture would break it."""

from __future__ import annotations

import torch
from toy import batch, finish, loss_of, seed, tiny_model

seed()
model = tiny_model(dropout=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
tokens, targets = (rows.clone() for rows in batch())
warm_up = torch.cuda.Stream()
warm_up.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(warm_up):
    for step in range(4):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        print("warm", step, repr(loss.item()))
torch.cuda.current_stream().wait_stream(warm_up)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    captured = loss_of(model(tokens), targets)
    captured.backward()
    optimizer.step()
for step in range(15):
    for static, fresh in zip((tokens, targets), batch()):
        static.copy_(fresh)
    graph.replay()
    print(step, repr(captured.item()))
finish(model, optimizer)
