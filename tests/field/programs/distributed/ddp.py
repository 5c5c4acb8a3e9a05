"""Distributed data parallel over two ranks: bucket hooks, a sampler, an uneven last batch, a broadcast at the start."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from toy import VOCABULARY, TinyLM, digest, loss_of, random_states, seed

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(TinyLM())
seed(rank)
rows = (torch.randint(0, VOCABULARY, (40, 1)) + 3 * torch.arange(13)) % VOCABULARY
data = TensorDataset(rows[:, :-1], rows[:, 1:])
sampler = DistributedSampler(data, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for step, (tokens, targets) in enumerate(DataLoader(data, batch_size=3, sampler=sampler)):
        if step % 3 == 1:
            with model.no_sync():
                loss_of(model(tokens), targets).backward()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append((loss.item(), mean.item()))
with open(f"rank-{rank}.txt", "w") as file:
    file.write(f"{digest(model, optimizer)} {random_states()} {losses!r}\n")
dist.barrier()
dist.destroy_process_group()
