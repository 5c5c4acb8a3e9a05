import argparse
import math
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

T = 200


def schedule():
    s = torch.linspace(0, 1, T + 1)
    f = torch.cos((s + 0.008) / 1.008 * math.pi / 2) ** 2
    return (f[1:] / f[0]).clamp(1e-4, 0.9999)


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.linspace(0, 1, 32)
    k = torch.randint(1, 5, (n, 1), generator=g).float()
    a = 0.6 + 0.8 * torch.rand(n, 1, generator=g)
    ph = 6.28 * torch.rand(n, 1, generator=g)
    w = a * torch.sin(2 * math.pi * k * x + ph)
    jump = torch.rand(n, 1, generator=g)
    return (w + torch.where(x > jump, 0.7, -0.7))[:, None]


class Res(nn.Module):
    def __init__(self, c, temb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(4, c), nn.GroupNorm(4, c)
        self.c1, self.c2 = nn.Conv1d(c, c, 5, padding=2), nn.Conv1d(c, c, 5, padding=2)
        self.t = nn.Linear(temb, c)

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[..., None]
        return x + self.c2(F.silu(self.n2(h)))


class Denoiser(nn.Module):
    def __init__(self, c=32, temb=64):
        super().__init__()
        self.register_buffer("freqs", torch.exp(-torch.arange(16) * math.log(1000) / 16))
        self.time = nn.Sequential(nn.Linear(32, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.inp = nn.Conv1d(1, c, 3, padding=1)
        self.a = Res(c, temb)
        self.down = nn.Conv1d(c, c, 4, 2, 1)
        self.b = nn.ModuleList([Res(c, temb), Res(c, temb)])
        self.up = nn.ConvTranspose1d(c, c, 4, 2, 1)
        self.z = Res(c, temb)
        self.out = nn.Conv1d(c, 1, 3, padding=1)

    def forward(self, x, t):
        e = t[:, None].float() * self.freqs
        t = self.time(torch.cat([e.sin(), e.cos()], -1))
        h = self.a(self.inp(x), t)
        m = self.down(h)
        for r in self.b:
            m = r(m, t)
        return self.out(self.z(h + self.up(m), t))


def train(rank, opts, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=opts.nproc)
    torch.set_num_threads(1)
    torch.manual_seed(opts.seed)

    model = DDP(Denoiser())
    torch.manual_seed(opts.seed + 1 + rank)
    opt = torch.optim.Adam(model.parameters(), lr=opts.lr)
    abar = schedule()
    ds = TensorDataset(waves(4800, 1))
    sampler = DistributedSampler(ds, opts.nproc, rank, seed=opts.seed)
    loader = DataLoader(ds, batch_size=opts.batch, sampler=sampler, drop_last=True)

    vg = torch.Generator().manual_seed(9)
    vx = waves(T, 2)
    vt = torch.arange(T)
    vn = torch.randn(vx.shape, generator=vg)
    va = abar[vt, None, None]

    step, epoch = 0, 0
    while step < opts.steps:
        sampler.set_epoch(epoch)
        for (x,) in loader:
            t = torch.randint(0, T, (len(x),))
            noise = torch.randn_like(x)
            a = abar[t, None, None]
            loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 25 == 0 or step == opts.steps - 1:
                shown = loss.detach().clone()
                dist.all_reduce(shown)
                if rank == 0:
                    with torch.no_grad():
                        v = F.mse_loss(model.module(va.sqrt() * vx + (1 - va).sqrt() * vn, vt), vn)
                    print(f"step {step:4d} loss {shown.item() / opts.nproc:.4f} eval {v.item():.4f}", flush=True)
            step += 1
            if step == opts.steps:
                break
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--nproc", type=int, default=4)
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=123)
    opts = p.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(train, args=(opts, port), nprocs=opts.nproc)
