"""FSDP2 over two ranks: parameters are DTensors, gathered and freed around each block."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from toy import TinyLM, batch, digest, loss_of, random_states, seed

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = TinyLM()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
seed(rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
losses = []
for _ in range(12):
    tokens, targets = batch()
    loss = loss_of(model(tokens), targets)
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append((loss.item(), norm.full_tensor().item()))
weights = {name: value.full_tensor() for name, value in model.state_dict().items()}
with open(f"rank-{rank}.txt", "w") as file:
    file.write(f"{digest(weights)} {random_states()} {losses!r}\n")
dist.barrier()
dist.destroy_process_group()
