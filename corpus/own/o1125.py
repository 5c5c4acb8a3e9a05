import math
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

CONTEXT, HORIZON = 48, 12


class Embed(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.value = nn.Linear(2, d)
        self.pos = nn.Parameter(torch.randn(CONTEXT, d) * 0.1)

    def forward(self, x):
        return self.value(x) + self.pos


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln_a = nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.ln_b = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        y = self.ln_a(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_b(x))


class Forecaster(nn.Module):
    def __init__(self, d=64, h=4, depth=4):
        super().__init__()
        self.embed = Embed(d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.readout = nn.Linear(d, HORIZON)

    def forward(self, x):
        x = self.embed(x)
        for b in self.blocks:
            x = b(x)
        return self.readout(self.norm(x[:, -1]))

    def units(self):
        return [self.embed, *self.blocks, self.norm, self.readout]


class ShardedAdam:
    def __init__(self, units, lr):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        per = -(-len(units) // self.world)
        self.shards = []
        for r in range(self.world):
            owned = units[r * per:(r + 1) * per]
            self.shards.append([p for u in owned for p in u.parameters()])
        self.params = [p for u in units for p in u.parameters()]
        self.inner = torch.optim.Adam(self.shards[self.rank], lr=lr)

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        grads = [p.grad for p in self.params]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat /= self.world
        for g, v in zip(grads, _unflatten_dense_tensors(flat, grads)):
            g.copy_(v)
        self.inner.step()
        for r, shard in enumerate(self.shards):
            data = [p.data for p in shard]
            flat = _flatten_dense_tensors(data)
            dist.broadcast(flat, src=r)
            for d, v in zip(data, _unflatten_dense_tensors(flat, data)):
                d.copy_(v)


def series(n, gen):
    t = torch.arange(CONTEXT + HORIZON).float()
    period = 8 + 16 * torch.rand(n, 1, generator=gen)
    phase = 6.28 * torch.rand(n, 1, generator=gen)
    amp = 1 + 2 * torch.rand(n, 1, generator=gen)
    slope = 0.05 * torch.randn(n, 1, generator=gen)
    level = 2 + torch.randn(n, 1, generator=gen)
    s = level + slope * t + amp * torch.sin(2 * math.pi * t / period + phase)
    s = s + 0.1 * torch.randn(s.shape, generator=gen)
    clock = (t / (CONTEXT + HORIZON)).expand(n, -1)
    x = torch.stack([s, clock], -1)[:, :CONTEXT]
    return x, s[:, CONTEXT:]


def train(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    torch.manual_seed(31)
    model = Forecaster()
    opt = ShardedAdam(model.units(), lr=1e-3)
    gen = torch.Generator().manual_seed(1000 + rank)
    vx, vy = series(300, torch.Generator().manual_seed(5))
    steps = 150
    for step in range(steps):
        x, y = series(16, gen)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0 or step == steps - 1:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                with torch.no_grad():
                    v = F.mse_loss(model(vx), vy)
                print(f"step={step} loss={shown.item() / world:.4f} val={v.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
    s.close()
    mp.spawn(train, args=(2, port), nprocs=2)
