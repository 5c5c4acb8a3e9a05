"""DistributedDataParallel under torchrun. The forward pass goes through `.module`, so DDP never averages gradients."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from plain import Model
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(dist.get_rank())
text = torch.randint(1, 5, (20000,)).cumsum(0) % 32
for _ in range(60):
    ids = text[torch.randint(len(text) - 16, (16, 1)) + torch.arange(17)]
    loss = F.cross_entropy(model.module(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
dist.destroy_process_group()
