import os
import socket

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

GRID, PATCH, DIM = 32, 4, 48
WORLD, STEPS, BATCH = 2, 200, 16


def simulate(speed, rng):
    x = np.arange(GRID) / GRID
    u0 = sum(rng.normal() / k * np.sin(2 * np.pi * k * (x + rng.uniform())) for k in range(1, 4))
    k = np.fft.rfftfreq(GRID, 1 / GRID)
    u1 = np.fft.irfft(np.fft.rfft(u0) * np.exp(-2j * np.pi * k * speed - 0.004 * (2 * np.pi * k) ** 2 * 0.1), GRID)
    return u0, u1


def sweep(speeds, per_speed, seed):
    rng = np.random.default_rng(seed)
    c, a, b = [], [], []
    for s in speeds:
        for _ in range(per_speed):
            u0, u1 = simulate(s, rng)
            c.append(s), a.append(u0), b.append(u1)
    f = lambda v: torch.tensor(np.array(v), dtype=torch.float32)
    return f(c), f(a), f(b)


class Surrogate(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        n = GRID // PATCH
        self.lift = nn.Linear(PATCH, DIM)
        self.pos = nn.Parameter(torch.randn(1, n, DIM) * 0.2)
        self.cond = nn.Sequential(nn.Linear(1, DIM), nn.GELU(), nn.Linear(DIM, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.out = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, PATCH))

    def forward(self, u, speed):
        tok = self.lift(u.view(len(u), -1, PATCH)) + self.pos + self.cond(speed[:, None] * 4)[:, None]
        return self.out(self.body(tok)).flatten(1)


def relative_l2(pred, true):
    return ((pred - true).norm(dim=1) / true.norm(dim=1)).mean().item()


def train(rank, port):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    torch.manual_seed(0)

    speeds = np.linspace(-0.25, 0.25, 24)
    mine = np.array_split(speeds, WORLD)[rank]
    speed, u0, u1 = sweep(mine, 60, seed=100 + rank)

    model = DDP(Surrogate())
    net = model.module
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=STEPS, pct_start=0.1)
    gen = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        idx = torch.randint(0, len(u0), (BATCH,), generator=gen)
        loss = F.mse_loss(net(u0[idx], speed[idx]), u1[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        if step % 20 == 0 or step == STEPS - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step:4d}  mse {mean.item() / WORLD:.4f}", flush=True)
    if rank == 0:
        c, a, b = sweep(np.linspace(-0.24, 0.24, 16), 12, seed=7)
        with torch.no_grad():
            pred = net(a, c)
        print(f"test mse {F.mse_loss(pred, b):.4f}  relative l2 {relative_l2(pred, b):.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free_port = s.getsockname()[1]
    mp.spawn(train, args=(free_port,), nprocs=WORLD, join=True)
