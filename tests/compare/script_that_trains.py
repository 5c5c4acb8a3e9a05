"""A tiny transformer on one process or several: what tests/compare/test_scripts.py runs, never imported."""

import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32")
parser.add_argument("--ranks", choices=["ddp", "fsdp", "apart"], help="under torchrun")
parser.add_argument("--deal", choices=["blocks", "strided"], default="blocks")
parser.add_argument("--fault", choices=["mask", "scale", "dies", "never steps"])
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--device", default="cpu")
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(options.seed)
V, D, T, B = 17, 16, 8, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm2, self.up, self.down = nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x):  # (B, T, D)
        b, t, _ = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.view(b, t, 2, D // 2).transpose(1, 2) for part in parts)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=options.fault != "mask")
        x = x + self.out(h.transpose(1, 2).reshape(b, t, D))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def wrapped(model):
    if options.ranks == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if options.ranks == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return torch.compile(model) if options.compile else model


data = torch.randint(0, V, (64, T + 1), generator=torch.Generator().manual_seed(1))
rank, world = 0, 1
if options.ranks:
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
model = wrapped(Model().to(options.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(options.steps):
    rows = data[step * B % 64 : step * B % 64 + B]
    rows = rows[rank::world] if options.deal == "strided" else rows.chunk(world)[rank]
    rows = rows.to(options.device)
    with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bfloat16"):
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.float().reshape(-1, V), rows[:, 1:].reshape(-1))
    if options.fault == "scale":
        loss = loss * 1.5
    if options.fault == "dies":
        raise RuntimeError("the data is gone")
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 0.05)
    if options.fault != "never steps":
        optimizer.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.9f} next draw {torch.rand(()).item():.9f}")
if options.ranks:
    dist.destroy_process_group()
